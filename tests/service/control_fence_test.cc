#include "agent/service/control_fence.h"

#include <gtest/gtest.h>

namespace kvfabric {
namespace {

void Ignore(const Status&) {}

TEST(ControlFence, RefusesLowerTermsAndObeysTheHighest) {
  ControlFence fence;
  const auto first = fence.Enter({"lease", 5, "op-a"}, Ignore);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(fence.Enter({"lease", 4, "op-b"}, Ignore).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fence.Check(*first, 5).ok());
  EXPECT_EQ(fence.Check(*first, 4).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fence.Check(*first, 6).ok());
  EXPECT_EQ(fence.Check(*first, 5).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(fence.highest_term(), 6U);
}

TEST(ControlFence, LetsOneOperatorATermSpeak) {
  ControlFence fence;
  Status told;
  const auto first = fence.Enter({"lease", 1, "op-a"}, [&](const Status& why) { told = why; });
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(fence.Enter({"lease", 1, "op-b"}, Ignore).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(told.ok());

  // The same operator again: its old stream may be half open.
  const auto again = fence.Enter({"lease", 1, "op-a"}, Ignore);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(told.code(), StatusCode::kAborted);
  EXPECT_EQ(fence.Check(*first, 1).code(), StatusCode::kAborted);
  EXPECT_TRUE(fence.Check(*again, 1).ok());

  fence.Leave(*first);  // late: must not free the place of the second
  EXPECT_EQ(fence.Enter({"lease", 1, "op-b"}, Ignore).status().code(), StatusCode::kAlreadyExists);
  fence.Leave(*again);
  EXPECT_TRUE(fence.Enter({"lease", 1, "op-b"}, Ignore).ok());
}

TEST(ControlFence, HandsOverToAHigherTerm) {
  ControlFence fence;
  Status told;
  const auto old_leader = fence.Enter({"lease", 1, "op-a"}, [&](const Status& why) { told = why; });
  const auto new_leader = fence.Enter({"lease", 2, "op-b"}, Ignore);
  ASSERT_TRUE(new_leader.ok());
  EXPECT_EQ(told.code(), StatusCode::kAborted);
  EXPECT_EQ(fence.Check(*old_leader, 1).code(), StatusCode::kAborted);
}

TEST(ControlFence, StartsASequenceForAnotherLeaseOnlyWhenNobodySpeaks) {
  ControlFence fence;
  Status told;
  const auto first = fence.Enter({"lease-1", 5, "op-a"}, [&](const Status& why) { told = why; });
  ASSERT_TRUE(first.ok());
  // Whatever its term: two stores must not fight over an agent.
  EXPECT_EQ(fence.Enter({"lease-2", 9, "op-b"}, Ignore).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_TRUE(told.ok());
  EXPECT_TRUE(fence.Check(*first, 5).ok());

  fence.Leave(*first);
  const auto second = fence.Enter({"lease-2", 1, "op-b"}, Ignore);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(fence.highest_term(), 1U);
  EXPECT_TRUE(fence.Check(*second, 1).ok());
  EXPECT_EQ(fence.Check(*first, 5).code(), StatusCode::kAborted);

  // Back to the first: its deposed leaders stay refused.
  fence.Leave(*second);
  EXPECT_EQ(fence.Enter({"lease-1", 4, "op-c"}, Ignore).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fence.Enter({"lease-1", 5, "op-a"}, Ignore).ok());
}

TEST(ControlFence, KeepsTheTermsOfABoundedNumberOfLeases) {
  ControlFence fence;
  for (std::size_t lease = 0; lease <= ControlFence::kMaxLeases; ++lease) {
    const auto ticket = fence.Enter({"lease-" + std::to_string(lease), 5, "op"}, Ignore);
    ASSERT_TRUE(ticket.ok());
    fence.Leave(*ticket);
  }
  EXPECT_FALSE(fence.Enter({"lease-1", 4, "op"}, Ignore).ok());
  EXPECT_TRUE(fence.Enter({"lease-0", 4, "op"}, Ignore).ok());  // the oldest went
}

}  // namespace
}  // namespace kvfabric
