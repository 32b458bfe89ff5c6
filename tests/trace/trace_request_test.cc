#include "trace/trace_request.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvfabric {
namespace {

TraceRequest Request(std::uint32_t input_length, std::size_t blocks) {
  TraceRequest request;
  request.input_length = input_length;
  for (std::size_t i = 0; i < blocks; ++i) request.block_ids.push_back(i);
  return request;
}

TEST(FullBlocks, LeavesAPartialTailOut) {
  EXPECT_EQ(FullBlocks(Request(1535, 3), 512).size(), 2U);
  EXPECT_EQ(FullBlocks(Request(1536, 3), 512).size(), 3U);
  EXPECT_EQ(FullBlocks(Request(511, 1), 512).size(), 0U);
  EXPECT_EQ(FullBlocks(Request(0, 0), 512).size(), 0U);
  EXPECT_EQ(FullBlocks(Request(5000, 2), 512).size(), 2U);  // a trace that names too few ids
}

TEST(InferBlockTokens, FindsTheSizeThatFitsEveryRequest) {
  const std::vector<TraceRequest> usual{Request(6758, 14), Request(512, 1), Request(513, 2)};
  EXPECT_EQ(*InferBlockTokens(usual), 512U);
  const std::vector<TraceRequest> agentic{Request(18842, 19), Request(1024, 1)};
  EXPECT_EQ(*InferBlockTokens(agentic), 1024U);
  const std::vector<TraceRequest> small{Request(33, 3), Request(160, 10)};
  EXPECT_EQ(*InferBlockTokens(small), 16U);
}

TEST(InferBlockTokens, TakesTheUsualSizeWhereSeveralFit) {
  EXPECT_EQ(*InferBlockTokens(std::vector{Request(100, 1)}), 512U);
  EXPECT_EQ(*InferBlockTokens(std::vector{Request(1000, 1)}), 1024U);
}

TEST(InferBlockTokens, SaysWhyItCannotTell) {
  const auto none = InferBlockTokens(std::vector{Request(1000, 2), Request(5000, 1)});
  EXPECT_NE(none.status().message().find("no power of two"), std::string::npos);
  const auto several = InferBlockTokens(std::vector{Request(3000, 1)});
  EXPECT_NE(several.status().message().find("both 4096 and 8192"), std::string::npos);
}

}  // namespace
}  // namespace kvfabric
