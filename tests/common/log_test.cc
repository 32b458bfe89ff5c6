#include "common/log.h"

#include <gtest/gtest.h>

namespace kvfabric {
namespace {

TEST(Log, WritesFieldsThatCanBeSplitAgain) {
  InitLogging("test", LogLevel::kInfo);
  testing::internal::CaptureStderr();
  LogInfo("peer down", {{"peer", "node-1"}, {"reason", "no answer \"yet\"\n"}, {"ms", 1000}});
  LogDebug("not written");
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("test peer down peer=node-1 reason=\"no answer \\\"yet\\\"\\n\" ms=1000"),
            std::string::npos)
      << line;
  EXPECT_EQ(line.find("not written"), std::string::npos);
}

TEST(Log, ParsesLevels) {
  LogLevel level = LogLevel::kError;
  EXPECT_TRUE(ParseLogLevel("debug", &level));
  EXPECT_EQ(level, LogLevel::kDebug);
  EXPECT_FALSE(ParseLogLevel("loud", &level));
}

}  // namespace
}  // namespace kvfabric
