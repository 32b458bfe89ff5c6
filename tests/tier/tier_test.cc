// What every Tier promises, shown on the one over the arena and on the fake that others test with.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "agent/tier/dram_tier.h"
#include "common/checksum.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/manual_executor.h"
#include "tests/tier/fake_tier.h"

namespace kvfabric {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

class TierContract : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      auto arena = DramArena::Create({.bytes = 4 * kMiB, .clock = &clock_});
      ASSERT_TRUE(arena.ok());
      arena_ = std::move(arena).value();
      tier_ = std::make_unique<DramTier>(*arena_, workers_, clock_);
    } else {
      auto fake = std::make_unique<FakeTier>(4 * kMiB, clock_);
      fake_ = fake.get();
      tier_ = std::move(fake);
    }
  }

  // Moves one block and returns what the completion said; nullopt when it never ran.
  std::optional<TierResult> Move(TierOperation::Kind kind, const TierSlot& slot,
                                 std::vector<std::byte>& bytes, std::uint64_t checksum,
                                 Deadline deadline) {
    std::optional<TierResult> result;
    tier_->Submit({{.kind = kind,
                    .slot = slot,
                    .buffer = {.memory = MemoryKind::kClientStaging,
                               .data = bytes.data(),
                               .size_bytes = bytes.size()},
                    .checksum = checksum}},
                  deadline, caller_,
                  [&result](std::vector<TierResult> results) { result = results.at(0); });
    EXPECT_FALSE(result.has_value()) << "completed inside Submit";
    workers_.RunAll();
    if (fake_ != nullptr) fake_->LetOneGo();
    EXPECT_FALSE(result.has_value()) << "completed elsewhere than on the caller's executor";
    caller_.RunAll();
    return result;
  }

  Deadline Soon() const { return Deadline::After(clock_, std::chrono::milliseconds(100)); }

  FakeClock clock_;
  ManualExecutor workers_;
  ManualExecutor caller_;
  std::unique_ptr<DramArena> arena_;
  std::unique_ptr<Tier> tier_;
  FakeTier* fake_ = nullptr;
};

TEST_P(TierContract, LoadsWhatWasStored) {
  std::vector<std::byte> bytes(300'000, std::byte{7});
  const TierSlot slot = tier_->Allocate("a", bytes.size()).value();
  const auto stored = Move(TierOperation::Kind::kStore, slot, bytes, 0, Soon());
  ASSERT_TRUE(stored.has_value() && stored->status.ok());
  EXPECT_EQ(stored->checksum, BlockChecksum(bytes));
  std::vector<std::byte> read(bytes.size());
  const auto loaded = Move(TierOperation::Kind::kLoad, slot, read, stored->checksum, Soon());
  ASSERT_TRUE(loaded.has_value() && loaded->status.ok());
  EXPECT_EQ(read, bytes);
  tier_->Free(slot);
}

TEST_P(TierContract, AnswersDataLossOnAnotherChecksum) {
  std::vector<std::byte> bytes(1000, std::byte{7});
  const TierSlot slot = tier_->Allocate("a", bytes.size()).value();
  const auto stored =
      Move(TierOperation::Kind::kStore, slot, bytes, BlockChecksum(bytes) + 1, Soon());
  ASSERT_TRUE(stored.has_value());
  EXPECT_EQ(stored->status.code(), StatusCode::kDataLoss);
}

TEST_P(TierContract, CompletesOnceWhenTheDeadlinePassed) {
  std::vector<std::byte> bytes(1000, std::byte{7});
  const TierSlot slot = tier_->Allocate("a", bytes.size()).value();
  const auto late = Move(TierOperation::Kind::kStore, slot, bytes, 0, Deadline::At(clock_.Now()));
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->status.code(), StatusCode::kDeadlineExceeded);
}

TEST_P(TierContract, AnswersResourceExhaustedWhenFull) {
  std::vector<TierSlot> slots;
  StatusCode refused = StatusCode::kOk;
  while (slots.size() < 100 && refused == StatusCode::kOk) {
    auto slot = tier_->Allocate("a", kMiB / 2);
    refused = slot.status().code();
    if (slot.ok()) slots.push_back(*slot);
  }
  EXPECT_EQ(slots.size(), 8U);
  EXPECT_EQ(refused, StatusCode::kResourceExhausted);
  tier_->Free(slots.back());
  EXPECT_TRUE(tier_->Allocate("a", kMiB / 2).ok());
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierContract, ::testing::Values(false, true),
                         [](const auto& param) { return param.param ? "Dram" : "Fake"; });

TEST(DramTier, RefusesDeviceMemoryAndBuffersLargerThanTheSlot) {
  FakeClock clock;
  ManualExecutor workers;
  ManualExecutor caller;
  auto arena = DramArena::Create({.bytes = 4 * kMiB, .clock = &clock}).value();
  DramTier tier(*arena, workers, clock);
  std::vector<std::byte> bytes(1000);
  const TierSlot slot = tier.Allocate("a", 500).value();
  std::vector<TierResult> results;
  tier.Submit({{.slot = slot,
                .buffer = {.memory = MemoryKind::kDevice, .data = bytes.data(), .size_bytes = 10}},
               {.slot = slot, .buffer = {.data = bytes.data(), .size_bytes = 1000}}},
              Deadline::After(clock, std::chrono::milliseconds(10)), caller,
              [&results](std::vector<TierResult> r) { results = std::move(r); });
  workers.RunAll();
  caller.RunAll();
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(results[1].status.code(), StatusCode::kInvalidArgument);
}

TEST(DramTier, CompletesWithUnavailableWhenTheWorkersAreBusy) {
  FakeClock clock;
  WorkerPool closed("closed", 1, 1);
  closed.Shutdown();
  ManualExecutor caller;
  auto arena = DramArena::Create({.bytes = 4 * kMiB, .clock = &clock}).value();
  DramTier tier(*arena, closed, clock);
  std::vector<std::byte> bytes(100);
  std::vector<TierResult> results;
  tier.Submit({{.slot = tier.Allocate("a", 100).value(),
                .buffer = {.data = bytes.data(), .size_bytes = 100}}},
              Deadline::After(clock, std::chrono::milliseconds(10)), caller,
              [&results](std::vector<TierResult> r) { results = std::move(r); });
  EXPECT_TRUE(results.empty());
  caller.RunAll();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].status.code(), StatusCode::kUnavailable);
}

TEST(FakeTier, FailsTheRegionsItWasTold) {
  FakeClock clock;
  ManualExecutor caller;
  FakeTier tier(1000, clock);
  const TierSlot slot = tier.Allocate("a", 100).value();
  tier.FailRegion(slot.region, Unavailable("EIO"));
  std::vector<std::byte> bytes(100);
  std::vector<TierResult> results;
  tier.Submit({{.slot = slot, .buffer = {.data = bytes.data(), .size_bytes = 100}}},
              Deadline::After(clock, std::chrono::milliseconds(10)), caller,
              [&results](std::vector<TierResult> r) { results = std::move(r); });
  ASSERT_TRUE(tier.LetOneGo());
  caller.RunAll();
  EXPECT_EQ(results.at(0).status.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvfabric
