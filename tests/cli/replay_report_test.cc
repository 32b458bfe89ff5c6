#include "cli/replay_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/replay_engines.h"

namespace kvfabric::cli {
namespace {

EventOutcome At(EventKind kind, double wall_s) {
  EventOutcome outcome;
  outcome.event.kind = kind;
  outcome.node = "node-1";
  outcome.wall_s = outcome.done_s = wall_s;
  return outcome;
}

TEST(ReplayReport, GivesEachCaseToTheLastEventBeforeIt) {
  ReplayReport report;
  report.events = {At(EventKind::kKill, 10), At(EventKind::kAdd, 20)};
  report.tally.wrong_exists_at = {5, 10.5, 11, 21};
  report.tally.failed_put_at = {12, 25};
  const auto effects = EffectsOf(report);
  EXPECT_EQ(effects[0].wrong_exists, 2U);
  EXPECT_DOUBLE_EQ(effects[0].wrong_exists_s, 1);
  EXPECT_DOUBLE_EQ(effects[0].failed_put_s, 2);
  EXPECT_EQ(effects[1].wrong_exists, 1U);
  EXPECT_DOUBLE_EQ(effects[1].failed_put_s, 5);
  // At 5 s nothing had happened yet, at 21 s a node had joined: its holder lived.
  EXPECT_EQ(CountStale(report), 2U);
}

TEST(ReplayReport, AKillExcusesTwoSecondsAndNoMore) {
  ReplayReport report;
  report.events = {At(EventKind::kKill, 10), At(EventKind::kAdd, 11)};
  report.events[0].done_s = 10.5;
  // 11.5 s: the add came between, the kill explains it all the same.
  report.tally.wrong_exists_at = {9.9, 10, 11.5, 12.4, 12.6, 300};
  EXPECT_EQ(CountStale(report), 3U);
}

TEST(ReplayReport, AStopAndItsEndAreOneEvent) {
  ReplayReport report;
  report.events = {At(EventKind::kStop, 10), At(EventKind::kContinue, 20)};
  report.tally.wrong_exists_at = {11, 21, 25};
  EXPECT_DOUBLE_EQ(EffectsOf(report)[0].wrong_exists_s, 15);
  EXPECT_EQ(CountStale(report), 1U);
}

TEST(ReplayReport, AnEventThatDidNotHappenExcusesNothing) {
  ReplayReport report;
  report.events = {At(EventKind::kKill, 10)};
  report.events[0].status = NotFound("node-1");
  report.tally.wrong_exists_at = {11};
  EXPECT_EQ(CountStale(report), 1U);
  EXPECT_NE(FormatReport(report).find("not done"), std::string::npos);
}

TEST(ReplayReport, JsonAndTextCarryTheSameFigures) {
  ReplayReport report;
  report.wall_s = 2;
  report.requests_in_trace = 3;
  report.maps_seen = true;
  report.moves = {.moved = 7, .bound = 6};
  report.tally.requests = 3;
  report.tally.tokens = {.prompt = 1000, .local = 200, .peer = 50};
  report.tally.wrong_bytes = 9;
  report.tally.put_failed = 4;
  report.tally.windows[2] = {.prompt = 10, .local = 5, .peer = 0};
  const auto json = nlohmann::json::parse(ReportJson(report));
  EXPECT_DOUBLE_EQ(json.at("hit_percent").get<double>(), 25);
  EXPECT_DOUBLE_EQ(json.at("hit_percent_peer").get<double>(), 5);
  EXPECT_EQ(json.at("wrong_bytes"), 9);
  EXPECT_EQ(json.at("puts_failed"), 4);
  EXPECT_EQ(json.at("moved_slots"), 7);
  EXPECT_EQ(json.at("moved_slots_bound"), 6);
  EXPECT_DOUBLE_EQ(json.at("windows")[0].at("from_s").get<double>(), 10);
  const std::string text = FormatReport(report);
  EXPECT_NE(text.find("25.00 %"), std::string::npos) << text;
  EXPECT_NE(text.find("9 in 0 blocks"), std::string::npos) << text;
  EXPECT_NE(text.find("least possible 6"), std::string::npos) << text;
}

TEST(HashRoute, SharesTheLoadAndMovesOnlyWhatANewNodeTakes) {
  const std::vector<std::string> three = {"node-0", "node-1", "node-2"};
  std::vector<std::string> four = three;
  four.push_back("node-3");
  std::vector<int> counts(4, 0);
  int moved_elsewhere = 0;
  for (std::uint64_t id = 0; id < 3000; ++id) {
    TraceRequest request;
    request.block_ids = {0, id, id + 1};
    const std::size_t before = HashRoute(request, three);
    const std::size_t after = HashRoute(request, four);
    ++counts[after];
    if (after != before && after != 3) ++moved_elsewhere;
    TraceRequest longer = request;
    longer.block_ids.push_back(77);
    EXPECT_EQ(HashRoute(longer, three), before);  // the block at depth 1 decides
  }
  EXPECT_EQ(moved_elsewhere, 0);
  for (const int count : counts) EXPECT_NEAR(count, 750, 120);
}

}  // namespace
}  // namespace kvfabric::cli
