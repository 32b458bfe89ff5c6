#include "agent/service/cache_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kvfabric/v1/cache.pb.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

using ::testing::HasSubstr;

v1::PutRequest Request(std::mt19937_64& random) {
  v1::PutRequest request;
  request.set_remaining_ms(static_cast<std::uint32_t>(random() % 5000));
  request.mutable_ns()->set_pool("default/pool");
  request.mutable_lane()->set_rank(3);
  const std::size_t blocks = random() % 6;
  for (std::size_t i = 0; i < blocks; ++i) {
    request.mutable_range()->add_keys(std::string(1 + random() % 40, 'k'));
    v1::PutBlock& block = *request.add_blocks();
    block.set_checksum(random());
    block.set_metadata(std::string(random() % 50, 'm'));
    std::string data(random() % 3000, '\0');
    for (char& c : data) c = static_cast<char>(random());
    block.set_data(data);
  }
  return request;
}

// `text` cut at random places, with empty segments between.
std::vector<ByteSpan> Cut(const std::string& text, std::mt19937_64& random) {
  std::vector<ByteSpan> segments;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = std::min<std::size_t>(text.size() - at, random() % 700);
    segments.push_back(AsBytes(text).subspan(at, n));
    at += n;
  }
  return segments;
}

TEST(CacheWire, ReadsWhatGeneratedClientsWriteHoweverItIsCut) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 300; ++round) {
    const v1::PutRequest request = Request(random);
    const std::string text = request.SerializeAsString();
    const std::vector<ByteSpan> segments = Cut(text, random);
    const auto put = ParsePut(segments, {});
    ASSERT_TRUE(put.ok()) << put.status().ToString();
    ASSERT_EQ(put->blocks.size(), static_cast<std::size_t>(request.blocks_size()));
    for (std::size_t i = 0; i < put->blocks.size(); ++i) {
      const v1::PutBlock& block = request.blocks(static_cast<int>(i));
      EXPECT_EQ(put->blocks[i].checksum, block.checksum());
      EXPECT_EQ(put->blocks[i].metadata, block.metadata());
      EXPECT_EQ(AsText(put->blocks[i].data), block.data());
    }
    v1::PutRequest head;
    ASSERT_TRUE(head.ParseFromString(put->head));
    v1::PutRequest expected = request;
    expected.clear_blocks();
    EXPECT_EQ(head.SerializeAsString(), expected.SerializeAsString());
  }
}

TEST(CacheWire, LeavesABlockThatLiesInOneSegmentWhereItIs) {
  v1::PutRequest request;
  request.add_blocks()->set_data(std::string(5000, 'x'));
  const std::string text = request.SerializeAsString();
  const ByteSpan whole = AsBytes(text);
  const auto put = ParsePut(std::vector<ByteSpan>{whole}, {});
  ASSERT_TRUE(put.ok());
  EXPECT_GE(put->blocks.at(0).data.data(), whole.data());
  EXPECT_LE(put->blocks.at(0).data.data() + 5000, whole.data() + whole.size());
  EXPECT_EQ(put->gathered_bytes, 0U);
  const auto cut = ParsePut(std::vector<ByteSpan>{whole.first(100), whole.subspan(100)}, {});
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->gathered_bytes, 5000U);
}

TEST(CacheWire, WritesWhatGeneratedClientsRead) {
  const std::string data(300'000, 'd');
  const std::string text = EncodeGetHead(1'700'000'000'000'000, 9) +
                           EncodeGetBlockPrefix(0xFFFFFFFFFFFFFFFF, "meta", data.size()) + data +
                           EncodeGetMiss() + EncodeGetBlockPrefix(1, "", 0);
  v1::GetReply reply;
  ASSERT_TRUE(reply.ParseFromString(text));
  EXPECT_EQ(reply.boot_epoch(), 1'700'000'000'000'000U);
  EXPECT_EQ(reply.map_epoch(), 9U);
  ASSERT_EQ(reply.blocks_size(), 3);
  EXPECT_TRUE(reply.blocks(0).found());
  EXPECT_EQ(reply.blocks(0).checksum(), 0xFFFFFFFFFFFFFFFFU);
  EXPECT_EQ(reply.blocks(0).metadata(), "meta");
  EXPECT_EQ(reply.blocks(0).data(), data);
  EXPECT_FALSE(reply.blocks(1).found());
  EXPECT_TRUE(reply.blocks(2).found());
  EXPECT_EQ(reply.blocks(2).data(), "");
}

TEST(CacheWire, RefusesTruncatedRequests) {
  std::mt19937_64 random(TestSeed());
  v1::PutRequest request = Request(random);
  request.add_blocks()->set_data("tail");
  const std::string text = request.SerializeAsString();
  const auto whole = ParsePut(std::vector<ByteSpan>{AsBytes(text)}, {});
  ASSERT_TRUE(whole.ok());
  for (std::size_t n = 0; n < text.size(); ++n) {
    const auto put = ParsePut(std::vector<ByteSpan>{AsBytes(text).first(n)}, {});
    // A cut between fields is a shorter message; it never holds a block that was not whole.
    if (put.ok()) {
      EXPECT_LT(put->blocks.size(), whole->blocks.size());
    }
  }
}

TEST(CacheWire, RefusesWhatBreaksItsLimits) {
  v1::PutRequest request;
  request.add_blocks()->set_data(std::string(64, 'x'));
  request.add_blocks()->set_data(std::string(64, 'x'));
  const std::string text = request.SerializeAsString();
  PutWireLimits limits;
  limits.max_blocks = 1;
  EXPECT_THAT(ParsePut(std::vector<ByteSpan>{AsBytes(text)}, limits).status().message(),
              HasSubstr("more than 1 blocks"));
  limits = {};
  limits.max_gathered_bytes = 100;
  const std::vector<ByteSpan> cut = {AsBytes(text).first(20), AsBytes(text).subspan(20, 70),
                                     AsBytes(text).subspan(90)};
  EXPECT_THAT(ParsePut(cut, limits).status().message(), HasSubstr("more than 100 bytes"));

  request.Clear();
  request.add_blocks()->set_metadata(std::string(4097, 'm'));
  EXPECT_THAT(
      ParsePut(std::vector<ByteSpan>{AsBytes(request.SerializeAsString())}, {}).status().message(),
      HasSubstr("limit 4096"));
  request.Clear();
  request.mutable_range()->set_run_tag(std::string(200, 't'));
  limits = {};
  limits.max_head_bytes = 100;
  const std::string head = request.SerializeAsString();
  EXPECT_FALSE(ParsePut(std::vector<ByteSpan>{AsBytes(head)}, limits).ok());
}

TEST(CacheWire, RefusesLengthsBeyondTheirMessage) {
  // blocks { data: length 2^63 }
  const std::string huge(
      "\x2a\x0c\x1a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
      "ab",
      14);
  EXPECT_FALSE(ParsePut(std::vector<ByteSpan>{AsBytes(huge)}, {}).ok());
  // blocks of 2 bytes, in which a field of 5 starts
  const std::string over(
      "\x2a\x02\x1a\x05"
      "hello",
      9);
  EXPECT_FALSE(ParsePut(std::vector<ByteSpan>{AsBytes(over)}, {}).ok());
  // A group, and field number 0.
  EXPECT_FALSE(ParsePut(std::vector<ByteSpan>{AsBytes("\x0b\x0c")}, {}).ok());
  EXPECT_FALSE(ParsePut(std::vector<ByteSpan>{AsBytes(std::string_view("\x00\x01", 2))}, {}).ok());
}

}  // namespace
}  // namespace kvfabric
