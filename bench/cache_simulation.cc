#include "bench/cache_simulation.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <queue>
#include <vector>

#include "common/check.h"

namespace kvfabric {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

// For every block of every request, in stream order: the next request that uses it.
std::vector<std::uint32_t> NextUses(const BlockStream& stream) {
  std::vector<std::uint32_t> next(stream.accesses(), kNever);
  std::vector<std::uint32_t> seen(stream.distinct_blocks(), kNever);
  std::size_t at = stream.accesses();
  for (std::size_t r = stream.request_count(); r-- > 0;) {
    const auto blocks = stream.request(r).blocks;
    for (std::size_t i = blocks.size(); i-- > 0;) {
      next[--at] = seen[blocks[i]];
      seen[blocks[i]] = static_cast<std::uint32_t>(r);
    }
  }
  return next;
}

// What MIN holds: the blocks with the nearest next uses.
class NearestUses {
 public:
  NearestUses(std::size_t blocks, std::size_t capacity)
      : next_use_(blocks, kNever), capacity_(capacity) {}

  bool Holds(std::uint32_t block) const { return next_use_[block] != kNever; }

  void Set(std::uint32_t block, std::uint32_t depth, std::uint32_t next_use) {
    if (Holds(block)) --held_;
    next_use_[block] = next_use;
    if (next_use == kNever) return;  // bypass: worth nothing
    ++held_;
    queue_.push({next_use, depth, block});
  }

  void EvictToCapacity() {
    while (held_ > capacity_) {
      const Use use = queue_.top();
      queue_.pop();
      if (next_use_[use.block] != use.next_use) continue;  // used since
      next_use_[use.block] = kNever;
      --held_;
    }
  }

 private:
  struct Use {
    std::uint32_t next_use, depth, block;
    bool operator<(const Use& other) const {
      return next_use != other.next_use ? next_use < other.next_use : depth < other.depth;
    }
  };
  std::vector<std::uint32_t> next_use_;  // by block; kNever = not held
  std::priority_queue<Use> queue_;       // the farthest first; entries may be out of date
  const std::size_t capacity_;
  std::size_t held_ = 0;
};

}  // namespace

HitCount SimulatePolicy(const BlockStream& stream, EvictionPolicy& policy,
                        std::size_t capacity_blocks) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<PolicyHandle> held(stream.distinct_blocks(), kNoPolicyHandle);
  std::vector<std::uint32_t> block_of;  // by handle
  std::vector<PolicyHandle> found;
  HitCount count;
  const auto always = [](const Victim&) { return true; };
  for (std::size_t r = 0; r < stream.request_count(); ++r) {
    const BlockStream::Request request = stream.request(r);
    found.clear();
    for (const std::uint32_t block : request.blocks) {
      if (held[block] == kNoPolicyHandle) break;
      found.push_back(held[block]);
    }
    count.hit_tokens += found.size() * stream.block_tokens();
    policy.TouchChain(found, request.at_us);
    for (std::size_t depth = found.size(); depth < request.blocks.size(); ++depth) {
      const std::uint32_t block = request.blocks[depth];
      KVF_CHECK(held[block] == kNoPolicyHandle, "a leaf policy leaves no gaps");
      const PolicyHandle handle =
          policy.Insert({.id = SimulatedKeyId(block),
                         .parent = depth == 0 ? KeyId{} : SimulatedKeyId(request.blocks[depth - 1]),
                         .depth = static_cast<std::uint32_t>(depth),
                         .size_bytes = 1,
                         .travelled_last_touch_us = {}},
                        request.at_us);
      held[block] = handle;
      const auto number = static_cast<std::size_t>(handle);
      if (number >= block_of.size()) block_of.resize(number + 1);
      block_of[number] = block;
    }
    count.policy_calls += request.blocks.size();
    while (policy.block_count() > capacity_blocks) {
      const EvictionPolicy::Choice choice = policy.NextVictim(request.at_us, always);
      KVF_CHECK(choice.outcome == EvictionPolicy::Outcome::kVictim, "a full cache has a leaf");
      held[block_of[static_cast<std::size_t>(choice.victim.handle)]] = kNoPolicyHandle;
      policy.Erase(choice.victim.handle);
      ++count.policy_calls;
    }
  }
  count.prompt_tokens = stream.prompt_tokens();
  count.seconds = SecondsSince(start);
  return count;
}

HitCount SimulateOptimum(const BlockStream& stream, std::size_t capacity_blocks) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::uint32_t> next_uses = NextUses(stream);
  NearestUses cache(stream.distinct_blocks(), capacity_blocks);
  HitCount count;
  std::size_t at = 0;
  for (std::size_t r = 0; r < stream.request_count(); ++r) {
    const auto blocks = stream.request(r).blocks;
    const auto miss = std::find_if(blocks.begin(), blocks.end(),
                                   [&](std::uint32_t block) { return !cache.Holds(block); });
    count.hit_tokens += static_cast<std::uint64_t>(miss - blocks.begin()) * stream.block_tokens();
    for (std::size_t depth = 0; depth < blocks.size(); ++depth) {
      cache.Set(blocks[depth], static_cast<std::uint32_t>(depth), next_uses[at++]);
    }
    cache.EvictToCapacity();
  }
  count.prompt_tokens = stream.prompt_tokens();
  count.seconds = SecondsSince(start);
  return count;
}

}  // namespace kvfabric
