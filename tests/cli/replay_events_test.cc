#include "cli/replay_events.h"

#include <gtest/gtest.h>

namespace kvfabric::cli {
namespace {

ReplayEvent Parse(EventKind kind, const char* text) {
  Result<ReplayEvent> event = ParseReplayEvent(kind, text);
  EXPECT_TRUE(event.ok()) << text << ": " << event.status().ToString();
  return event.ok() ? *event : ReplayEvent{};
}

TEST(ReplayEvent, ReadsTimeNodeAndDuration) {
  EXPECT_EQ(Parse(EventKind::kKill, "60").at_s, 60);
  EXPECT_EQ(Parse(EventKind::kKill, "60").node, "");
  EXPECT_EQ(Parse(EventKind::kKill, "1.5:node-2").node, "node-2");
  const ReplayEvent stop = Parse(EventKind::kStop, "10:node-1:30");
  EXPECT_EQ(stop.node, "node-1");
  EXPECT_EQ(stop.for_s, 30);
  EXPECT_FALSE(Parse(EventKind::kStop, "10:node-1").for_s.has_value());
}

TEST(ReplayEvent, TakesANumberAfterStopForItsDuration) {
  const ReplayEvent stop = Parse(EventKind::kStop, "10:30");
  EXPECT_EQ(stop.node, "");
  EXPECT_EQ(stop.for_s, 30);
}

TEST(ReplayEvent, RefusesWithTheFormItTakes) {
  const struct {
    EventKind kind;
    const char* text;
  } cases[] = {{EventKind::kKill, ""},      {EventKind::kKill, "-1"},
               {EventKind::kKill, "x"},     {EventKind::kKill, "1:a:2"},
               {EventKind::kAdd, "1:node"}, {EventKind::kStop, "1:a:b"},
               {EventKind::kKill, "nan"},   {EventKind::kStop, "1:a:2:3"}};
  for (const auto& c : cases) {
    const Result<ReplayEvent> event = ParseReplayEvent(c.kind, c.text);
    ASSERT_FALSE(event.ok()) << c.text;
    EXPECT_NE(event.status().message().find("--"), std::string::npos) << c.text;
  }
}

TEST(Route, ReadsTheThreeKinds) {
  EXPECT_EQ(ParseRoute("round-robin")->kind, RouteSpec::Kind::kRoundRobin);
  EXPECT_EQ(ParseRoute("hash")->kind, RouteSpec::Kind::kHash);
  EXPECT_EQ(ParseRoute("node=2")->node, "2");
  EXPECT_FALSE(ParseRoute("node=").ok());
  EXPECT_FALSE(ParseRoute("random").ok());
}

}  // namespace
}  // namespace kvfabric::cli
