#include "agent/service/control_fence.h"

#include <gtest/gtest.h>

namespace kvfabric {
namespace {

void Ignore(const Status&) {}

TEST(ControlFence, RefusesLowerTermsAndObeysTheHighest) {
  ControlFence fence;
  const auto first = fence.Enter(5, "op-a", Ignore);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(fence.Enter(4, "op-b", Ignore).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fence.Check(*first, 5).ok());
  EXPECT_EQ(fence.Check(*first, 4).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fence.Check(*first, 6).ok());
  EXPECT_EQ(fence.Check(*first, 5).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(fence.highest_term(), 6U);
}

TEST(ControlFence, LetsOneOperatorATermSpeak) {
  ControlFence fence;
  Status told;
  const auto first = fence.Enter(1, "op-a", [&](const Status& why) { told = why; });
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(fence.Enter(1, "op-b", Ignore).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(told.ok());

  // The same operator again: its old stream may be half open.
  const auto again = fence.Enter(1, "op-a", Ignore);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(told.code(), StatusCode::kAborted);
  EXPECT_EQ(fence.Check(*first, 1).code(), StatusCode::kAborted);
  EXPECT_TRUE(fence.Check(*again, 1).ok());

  fence.Leave(*first);  // late: must not free the place of the second
  EXPECT_EQ(fence.Enter(1, "op-b", Ignore).status().code(), StatusCode::kAlreadyExists);
  fence.Leave(*again);
  EXPECT_TRUE(fence.Enter(1, "op-b", Ignore).ok());
}

TEST(ControlFence, HandsOverToAHigherTerm) {
  ControlFence fence;
  Status told;
  const auto old_leader = fence.Enter(1, "op-a", [&](const Status& why) { told = why; });
  const auto new_leader = fence.Enter(2, "op-b", Ignore);
  ASSERT_TRUE(new_leader.ok());
  EXPECT_EQ(told.code(), StatusCode::kAborted);
  EXPECT_EQ(fence.Check(*old_leader, 1).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace kvfabric
