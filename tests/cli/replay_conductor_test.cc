#include "cli/replay_conductor.h"

#include <gtest/gtest.h>

#include "tests/fakes/temp_dir.h"

namespace kvfabric::cli {
namespace {

// Nothing of this fabric runs: what happens is refused, what was not due is not tried.
TEST(ReplayConductor, TellsWhatWasNotDueBeforeTheEnd) {
  TempDir temp;
  const FabricDirectory directory = *FabricDirectory::At((temp.path() / "none").string());
  ReplayEngines engines({}, {});
  ReplayClock clock(Clock::System(), 0);
  ReplayConductor conductor(directory, engines, clock, "node-0");
  conductor.Start({{.kind = EventKind::kKill, .at_s = 10, .node = "", .for_s = {}},
                   {.kind = EventKind::kStop, .at_s = 200, .node = "node-1", .for_s = 5},
                   {.kind = EventKind::kAdd, .at_s = 100, .node = "", .for_s = {}}});
  bool go = false;
  clock.Begin(10, &go);
  const auto outcomes = conductor.Finish();
  ASSERT_EQ(outcomes.size(), 3U) << "the end of a stop that was not begun is none";
  EXPECT_EQ(outcomes[0].status.code(), StatusCode::kNotFound);
  for (const std::size_t i : {1U, 2U}) {
    EXPECT_EQ(outcomes[i].status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(outcomes[i].status.message().find("ended before trace second " +
                                                std::string(i == 1 ? "100" : "200")),
              std::string::npos)
        << outcomes[i].status.message();
  }
}

}  // namespace
}  // namespace kvfabric::cli
