#include "trace/trace_reader.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/fakes/temp_dir.h"
#include "trace/trace_directory.h"

namespace kvfabric {
namespace {

std::string Line(std::uint64_t number, std::size_t blocks = 3) {
  std::string ids;
  for (std::size_t i = 0; i < blocks; ++i) {
    ids += (i == 0 ? "" : ",") + std::to_string(number * 1'000'000 + i);
  }
  return R"({"timestamp":)" + std::to_string(number) + R"(,"input_length":)" +
         std::to_string(blocks * 512) + R"(,"output_length":1,"hash_ids":[)" + ids + "]}";
}

class TraceFile {
 public:
  std::filesystem::path Plain(const std::string& content, const char* name = "t.jsonl") const {
    const auto path = dir_.path() / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::filesystem::path Gzip(const std::string& content, const char* name = "t.jsonl.gz") const {
    const auto path = dir_.path() / name;
    gzFile file = gzopen(path.c_str(), "wb");
    EXPECT_EQ(gzwrite(file, content.data(), static_cast<unsigned>(content.size())),
              static_cast<int>(content.size()));
    EXPECT_EQ(gzclose(file), Z_OK);
    return path;
  }
  const std::filesystem::path& dir() const { return dir_.path(); }

 private:
  TempDir dir_;
};

// Reads to the end or the first error.
struct ReadAll {
  explicit ReadAll(const std::filesystem::path& path, TraceReader::Options options = {}) {
    auto reader = TraceReader::Open(path, options);
    if (!reader.ok()) {
      status = reader.status();
      return;
    }
    TraceRequest request;
    for (;;) {
      const Result<bool> more = (*reader)->Next(request);
      if (!more.ok()) {
        status = more.status();
        EXPECT_EQ((*reader)->Next(request).status(), status);  // it stays there
        return;
      }
      if (!*more) return;
      requests.push_back(request);
    }
  }
  std::vector<TraceRequest> requests;
  Status status;
};

TEST(TraceReader, ReadsPlainAndGzipAlikeWhateverTheName) {
  TraceFile file;
  std::string content;
  for (std::uint64_t n = 0; n < 500; ++n) content += Line(n, 1 + n) + "\n";  // > one buffer
  for (const auto& path : {file.Plain(content), file.Plain(content, "plain.gz"), file.Gzip(content),
                           file.Gzip(content, "packed.jsonl")}) {
    const ReadAll read(path);
    ASSERT_TRUE(read.status.ok()) << path << read.status.ToString();
    ASSERT_EQ(read.requests.size(), 500U) << path;
    for (std::uint64_t n = 0; n < 500; ++n) {
      ASSERT_EQ(read.requests[n].timestamp_ms, static_cast<double>(n));
      ASSERT_EQ(read.requests[n].block_ids.size(), n + 1);
      ASSERT_EQ(read.requests[n].block_ids.back(), n * 1'000'000 + n);
    }
  }
}

TEST(TraceReader, ReadsGzipMembersOneAfterTheOther) {
  TraceFile file;
  const auto first = file.Gzip(Line(1) + "\n", "a.gz");
  const auto second = file.Gzip(Line(2) + "\n", "b.gz");
  std::ofstream(first, std::ios::binary | std::ios::app)
      << std::ifstream(second, std::ios::binary).rdbuf();
  EXPECT_EQ(ReadAll(first).requests.size(), 2U);
}

TEST(TraceReader, TakesALastLineWithoutEndAndPassesBlankLines) {
  TraceFile file;
  const ReadAll read(file.Plain("\n" + Line(1) + "\r\n  \n" + Line(2)));
  ASSERT_TRUE(read.status.ok()) << read.status.ToString();
  EXPECT_EQ(read.requests.size(), 2U);
  EXPECT_TRUE(ReadAll(file.Plain("")).status.ok());
}

TEST(TraceReader, NamesFileLineAndCause) {
  TraceFile file;
  const auto path = file.Plain(Line(1) + "\n\n" + Line(2) + "\n{\"timestamp\":0}\n" + Line(3));
  const ReadAll read(path);
  EXPECT_EQ(read.requests.size(), 2U);
  EXPECT_EQ(read.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read.status.message(), "trace " + path.string() + ": line 4: input_length: missing");
}

TEST(TraceReader, BoundsTheLengthOfALine) {
  TraceFile file;
  const std::string line = Line(1);
  const auto path = file.Plain(line + "\n" + line + " \n");
  const ReadAll read(path, {.max_line_bytes = line.size()});
  EXPECT_EQ(read.requests.size(), 1U);
  EXPECT_EQ(read.status.message(), "trace " + path.string() + ": line 2: line too long (limit " +
                                       std::to_string(line.size()) + " bytes)");
  // A line without end that crosses many buffers, and packs well.
  const ReadAll bomb(file.Gzip(std::string(std::size_t{4} << 20U, ' ')),
                     {.max_line_bytes = std::size_t{1} << 20U});
  EXPECT_NE(bomb.status.message().find("line 1: line too long"), std::string::npos);
}

TEST(TraceReader, SaysWhereAGzipFileIsCutOff) {
  TraceFile file;
  std::string content;
  for (std::uint64_t n = 0; n < 3000; ++n) content += Line(n * 7919 % 3001, 1 + n % 50) + "\n";
  const auto path = file.Gzip(content);
  const auto whole = std::filesystem::file_size(path);
  for (const auto bytes : {whole / 2, whole - 9, whole - 1, std::uintmax_t{12}}) {
    std::filesystem::resize_file(path, bytes);
    const ReadAll read(path);
    EXPECT_EQ(read.status.code(), StatusCode::kDataLoss) << bytes << read.status.ToString();
    EXPECT_NE(read.status.message().find("cut off"), std::string::npos) << read.status.ToString();
    EXPECT_NE(read.status.message().find(": line " + std::to_string(read.requests.size() + 1)),
              std::string::npos)
        << bytes << read.status.ToString();
    file.Gzip(content);
  }
}

TEST(TraceReader, FindsDamageInAGzipFile) {
  TraceFile file;
  std::string content;
  for (std::uint64_t n = 0; n < 3000; ++n) content += Line(n) + "\n";
  const auto path = file.Gzip(content);
  {
    std::fstream damaged(path, std::ios::binary | std::ios::in | std::ios::out);
    damaged.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path)) - 6);
    damaged.put('\x5a');  // in the stored CRC
  }
  const ReadAll read(path);
  EXPECT_EQ(read.status.code(), StatusCode::kDataLoss) << read.status.ToString();
}

TEST(TraceReader, SaysWhyAFileCannotBeOpenedOrRead) {
  TraceFile file;
  const auto missing = TraceReader::Open(file.dir() / "none.jsonl");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("none.jsonl"), std::string::npos);
  const ReadAll directory(file.dir());
  EXPECT_NE(directory.status.message().find("line 1: read"), std::string::npos)
      << directory.status.ToString();
}

TEST(LoadTrace, CountsTokensAndDistinctFullBlocks) {
  TraceFile file;
  const auto path =
      file.Plain(R"({"timestamp":0,"input_length":1100,"output_length":1,"hash_ids":[0,1,2]})"
                 "\n"
                 R"({"timestamp":1,"input_length":1536,"output_length":1,"hash_ids":[0,1,3]})");
  const auto trace = LoadTrace(path);
  ASSERT_TRUE(trace.ok()) << trace.status().ToString();
  EXPECT_EQ(trace->block_tokens, 512U);
  EXPECT_EQ(trace->PromptTokens(), 2636U);
  EXPECT_EQ(trace->DistinctFullBlocks(), 3U);
  EXPECT_EQ(LoadTrace(path, {.max_requests = 1})->requests.size(), 1U);
  EXPECT_EQ(LoadTrace(path, {.max_block_ids = 5}).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(LoadTrace(file.Plain("\n")).status().code(), StatusCode::kInvalidArgument);
}

TEST(LoadTrace, ReadsTheExcerptAndFindsReuseInIt) {
  const auto trace = LoadTrace(std::filesystem::path("examples") / kTraceExcerpt);
  ASSERT_TRUE(trace.ok()) << trace.status().ToString();
  EXPECT_LE(trace->requests.size(), 200U);
  EXPECT_EQ(trace->block_tokens, 512U);
  std::size_t blocks = 0;
  for (const TraceRequest& request : trace->requests) {
    blocks += FullBlocks(request, trace->block_tokens).size();
  }
  // The quickstart replays it to show hits: at least a fifth of its blocks come again.
  EXPECT_LT(trace->DistinctFullBlocks(), blocks * 4 / 5);
}

}  // namespace
}  // namespace kvfabric
