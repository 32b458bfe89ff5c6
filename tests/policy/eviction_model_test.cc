// LeafLru against a naive map: random inserts, touches, erases, flags and pins, every choice
// compared with a linear scan.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "agent/policy/leaf_lru.h"
#include "tests/fakes/test_seed.h"
#include "tests/policy/policy_blocks.h"

namespace kvfabric {
namespace {

using Outcome = EvictionPolicy::Outcome;

struct ModelBlock {
  PolicyHandle handle{};
  std::uint64_t parent = 0;
  std::uint32_t depth = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t last_touch_us = 0;
  bool has_other_holder = false;
  bool spilled_in = false;
  bool pinned = false;
};

// A tree of numbered blocks: the parent of n is n / 3, its depth the number of divisions.
std::uint64_t ParentOf(std::uint64_t number) { return number / 3; }
std::uint32_t DepthOf(std::uint64_t number) {
  std::uint32_t depth = 0;
  for (std::uint64_t at = ParentOf(number); at != 0; at = ParentOf(at)) ++depth;
  return depth;
}

class EvictionModel {
 public:
  explicit EvictionModel(std::uint64_t seed) : random_(seed) {}

  void Step() {
    now_us_ += static_cast<std::int64_t>(random_() % 3);  // equal stamps happen
    switch (random_() % 10) {
      case 0:
      case 1:
      case 2:
      case 3:
        return InsertRandom();
      case 4:
      case 5:
        return TouchPath();
      case 6:
        return random_() % 2 == 0 ? FlipFlag() : FlipPin();
      case 7:
        return EraseRandom();
      default:
        return Evict();
    }
  }

  void Check() const {
    ASSERT_EQ(policy_.block_count(), blocks_.size());
    std::uint64_t bytes = 0;
    for (const auto& [number, block] : blocks_) {
      bytes += block.size_bytes;
      ASSERT_EQ(policy_.IsLeaf(block.handle), IsLeaf(number)) << number;
      const Victim seen = policy_.Describe(block.handle);
      ASSERT_EQ(seen.id, TestKeyId(number));
      ASSERT_EQ(seen.last_touch_us, block.last_touch_us) << number;
      ASSERT_EQ(seen.depth, block.depth);
      ASSERT_EQ(seen.spillable(), !block.has_other_holder && !block.spilled_in);
    }
    ASSERT_EQ(policy_.used_bytes(), bytes);
  }

 private:
  static constexpr std::uint64_t kNumbers = 400;

  bool IsLeaf(std::uint64_t number) const {
    for (std::uint64_t child = 3 * number; child < 3 * number + 3; ++child) {
      if (blocks_.count(child) > 0) return false;
    }
    return true;
  }

  std::uint64_t RandomPresent() {
    auto it = blocks_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random_() % blocks_.size()));
    return it->first;
  }

  void InsertRandom() {
    const std::uint64_t number = 1 + random_() % kNumbers;
    if (blocks_.count(number) > 0) return;
    PolicyBlock block = TestBlock(number, ParentOf(number), DepthOf(number));
    block.size_bytes = 1 + random_() % 1000;
    block.has_other_holder = random_() % 4 == 0;
    block.spilled_in = random_() % 4 == 0;
    if (random_() % 3 == 0) {
      block.travelled_last_touch_us = now_us_ - static_cast<std::int64_t>(random_() % 50);
    }
    ModelBlock model;
    model.handle = policy_.Insert(block, now_us_);
    model.parent = ParentOf(number);
    model.depth = block.depth;
    model.size_bytes = block.size_bytes;
    model.last_touch_us = block.travelled_last_touch_us.value_or(now_us_);
    model.has_other_holder = block.has_other_holder;
    model.spilled_in = block.spilled_in;
    blocks_[number] = model;
  }

  // What is here of the path from the root to a random block, as a look-up would touch it.
  void TouchPath() {
    std::vector<std::uint64_t> path;
    for (std::uint64_t at = 1 + random_() % kNumbers; at != 0; at = ParentOf(at)) {
      path.insert(path.begin(), at);
    }
    std::vector<PolicyHandle> handles;
    for (const std::uint64_t number : path) {
      const auto it = blocks_.find(number);
      if (it == blocks_.end()) continue;
      handles.push_back(it->second.handle);
      it->second.last_touch_us = now_us_;
    }
    policy_.TouchChain(handles, now_us_);
  }

  void EraseRandom() {
    if (blocks_.empty()) return;
    const std::uint64_t number = RandomPresent();
    policy_.Erase(blocks_[number].handle);
    blocks_.erase(number);
  }

  void FlipFlag() {
    if (blocks_.empty()) return;
    ModelBlock& block = blocks_[RandomPresent()];
    block.has_other_holder = !block.has_other_holder;
    policy_.SetHasOtherHolder(block.handle, block.has_other_holder);
  }

  void FlipPin() {
    if (blocks_.empty()) return;
    ModelBlock& block = blocks_[RandomPresent()];
    block.pinned = !block.pinned && random_() % 3 == 0;
  }

  // Rounds lie further apart than refusals last, so that the scan needs no memory of them.
  void Evict() {
    now_us_ += EvictionPolicy::kRefusedForUs + 1;
    std::set<std::uint64_t> pinned_ids;
    for (const auto& [number, block] : blocks_) {
      if (block.pinned) pinned_ids.insert(TestKeyId(number).hash());
    }
    const auto can_evict = [&](const Victim& victim) {
      return pinned_ids.count(victim.id.hash()) == 0;
    };
    EvictionPolicy::Choice choice;
    do {
      choice = policy_.NextVictim(now_us_, can_evict);
    } while (choice.outcome == Outcome::kRefused);

    const std::uint64_t expected = ColdestUnpinned();
    if (expected == 0) {
      ASSERT_EQ(choice.outcome, Outcome::kNone);
      return;
    }
    ASSERT_EQ(choice.outcome, Outcome::kVictim);
    const ModelBlock& best = blocks_[expected];
    // Any of the equally cold may go.
    ASSERT_EQ(choice.victim.has_other_holder, best.has_other_holder);
    ASSERT_EQ(choice.victim.last_touch_us, best.last_touch_us);
    ASSERT_EQ(choice.victim.depth, best.depth);
    const auto gone = std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& entry) {
      return entry.second.handle == choice.victim.handle;
    });
    ASSERT_NE(gone, blocks_.end());
    ASSERT_TRUE(IsLeaf(gone->first)) << "a parent must not go before its child";
    ASSERT_FALSE(gone->second.pinned);
    policy_.Erase(choice.victim.handle);
    blocks_.erase(gone);
  }

  std::uint64_t ColdestUnpinned() const {
    std::uint64_t best = 0;
    for (const auto& [number, block] : blocks_) {
      if (block.pinned || !IsLeaf(number)) continue;
      if (best == 0 || Colder(block, blocks_.at(best))) best = number;
    }
    return best;
  }

  static bool Colder(const ModelBlock& a, const ModelBlock& b) {
    if (a.has_other_holder != b.has_other_holder) return a.has_other_holder;
    if (a.last_touch_us != b.last_touch_us) return a.last_touch_us < b.last_touch_us;
    return a.depth > b.depth;
  }

  std::mt19937_64 random_;
  LeafLru policy_;
  std::map<std::uint64_t, ModelBlock> blocks_;
  std::int64_t now_us_ = 1'000'000;
};

TEST(EvictionModel, AgreesWithALinearScan) {
  const std::uint64_t seed = TestSeed();
  for (std::uint64_t run = 0; run < 10; ++run) {
    EvictionModel model(seed + run);
    for (int step = 0; step < 4000; ++step) {
      model.Step();
      if (testing::Test::HasFatalFailure()) FAIL() << "run " << run << " step " << step;
      if (step % 16 == 0) model.Check();
      if (testing::Test::HasFatalFailure()) FAIL() << "run " << run << " step " << step;
    }
  }
}

}  // namespace
}  // namespace kvfabric
