#include "cli/proposals.h"

#include <gtest/gtest.h>

namespace kvfabric::cli {
namespace {

PoolView PoolWith(const std::string& name, const std::string& id, bool approved = false) {
  PoolView view;
  view.name = "default/" + name;
  view.pool.status.rebalance.proposal.id = id;
  view.pool.status.rebalance.proposal.approved = approved;
  return view;
}

TEST(FindProposal, TakesTheOnlyOneOrTheOneNamed) {
  const std::vector<PoolView> one = {PoolWith("a", ""), PoolWith("b", "11-22")};
  EXPECT_EQ((*FindProposal(one, ""))->name, "default/b");
  EXPECT_EQ((*FindProposal(one, "11-22"))->name, "default/b");
  const std::vector<PoolView> two = {PoolWith("a", "33-44"), PoolWith("b", "11-22")};
  EXPECT_EQ((*FindProposal(two, "33-44"))->name, "default/a");
  EXPECT_EQ(FindProposal(two, "").status().message(),
            "rebalance: several proposals wait (33-44 of default/a, 11-22 of default/b): name one");
}

TEST(FindProposal, SaysWhatThereIs) {
  EXPECT_EQ(FindProposal({PoolWith("a", "")}, "").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(FindProposal({PoolWith("a", "11-22")}, "55-66").status().message(),
            "proposal 55-66: not waiting: there is 11-22 of default/a");
  const std::vector<PoolView> running = {PoolWith("a", "11-22", true)};
  EXPECT_EQ(FindProposal(running, "11-22").status().message(),
            "proposal 11-22: approved before; its moves are under way");
  EXPECT_EQ(FindProposal(running, "").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvfabric::cli
