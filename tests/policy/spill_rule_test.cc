#include "agent/policy/spill_rule.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace kvfabric {
namespace {

using std::chrono::seconds;
using Peers = std::vector<std::optional<IdleTime>>;

TEST(SpillRule, MarginIsATenthOfTheOwnResidenceTime) {
  EXPECT_EQ(SpillMargin(seconds(300)), seconds(30));
  EXPECT_EQ(SpillMargin(seconds(0)), seconds(0));
  EXPECT_EQ(SpillMargin(-seconds(5)), seconds(0));  // a clock reading that came late
}

TEST(SpillRule, ChoosesThePeerWithTheColdestLeaf) {
  EXPECT_EQ(ChooseSpillPeer(seconds(100), seconds(100),
                            Peers{seconds(150), seconds(500), std::nullopt, seconds(400)}),
            1U);
}

TEST(SpillRule, KeepsTheBlockWhenNoPeerIsColderByTheMargin) {
  EXPECT_EQ(ChooseSpillPeer(seconds(100), seconds(100), Peers{seconds(110)}), std::nullopt);
  EXPECT_EQ(ChooseSpillPeer(seconds(100), seconds(100), Peers{seconds(111)}), 0U);
  EXPECT_EQ(ChooseSpillPeer(seconds(100), seconds(100), Peers{}), std::nullopt);
  EXPECT_EQ(ChooseSpillPeer(seconds(100), seconds(100), Peers{std::nullopt}), std::nullopt);
}

TEST(SpillRule, PrefersAPeerWithFreeSpace) {
  EXPECT_EQ(ChooseSpillPeer(seconds(100), seconds(100), Peers{seconds(900), kColdestOfAll}), 1U);
}

TEST(SpillRule, GivesTiesToTheFirst) {
  EXPECT_EQ(ChooseSpillPeer(seconds(1), seconds(1), Peers{kColdestOfAll, kColdestOfAll}), 0U);
}

}  // namespace
}  // namespace kvfabric
