#include "bench/fabric_simulation.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <deque>
#include <optional>
#include <vector>

#include "agent/policy/leaf_lru.h"
#include "agent/policy/spill_rule.h"
#include "common/check.h"

namespace kvfabric {
namespace {

// The last KeyIds a node read from others: a block seen here is kept at its next read.
class RemoteReads {
 public:
  explicit RemoteReads(std::size_t blocks) : read_at_(blocks, 0) {}

  // Whether `block` was among the last 64 Ki; it is afterwards.
  bool AddAndTest(std::uint32_t block) {
    const std::uint64_t before = read_at_[block];
    read_at_[block] = ++reads_;
    return before != 0 && reads_ - before <= kRemembered;
  }

 private:
  static constexpr std::uint64_t kRemembered = std::uint64_t{64} << 10U;
  std::vector<std::uint64_t> read_at_;
  std::uint64_t reads_ = 0;
};

struct Node {
  explicit Node(std::size_t blocks) : held(blocks, kNoPolicyHandle), remote_reads(blocks) {}

  bool Holds(std::uint32_t block) const { return held[block] != kNoPolicyHandle; }

  LeafLru policy;
  std::vector<PolicyHandle> held;       // by block
  std::vector<std::uint32_t> block_of;  // by handle
  RemoteReads remote_reads;
};

struct Position {
  std::uint32_t block = 0, parent = 0, depth = 0;
};

class Fabric {
 public:
  Fabric(const BlockStream& stream, const FabricShape& shape)
      : stream_(stream),
        shape_(shape),
        capacity_per_node_(shape.capacity_blocks / shape.nodes),
        parents_(stream.distinct_blocks(), 0),
        holders_(stream.distinct_blocks(), 0) {
    KVF_CHECK(shape.nodes >= 1 && shape.nodes <= 32, "holders are a mask of 32 bits");
    for (std::size_t i = 0; i < shape.nodes; ++i) nodes_.emplace_back(stream.distinct_blocks());
  }

  void Serve(const BlockStream::Request& request, std::size_t at) {
    now_us_ = request.at_us;
    const std::size_t found = Read(request.blocks, at);
    count_.hits.hit_tokens += found * stream_.block_tokens();
    for (std::size_t depth = found; depth < request.blocks.size(); ++depth) {
      const Position position = PositionOf(request.blocks, depth);
      if (nodes_[at].Holds(position.block)) {
        nodes_[at].policy.Touch(nodes_[at].held[position.block], now_us_);
      } else {
        Insert(at, position, {});
      }
    }
    EvictToCapacity();
  }

  FabricCount count() const { return count_; }

 private:
  static Position PositionOf(std::span<const std::uint32_t> blocks, std::size_t depth) {
    return {.block = blocks[depth],
            .parent = depth == 0 ? 0 : blocks[depth - 1],
            .depth = static_cast<std::uint32_t>(depth)};
  }

  // The contiguous prefix that the nodes hold together; touched where it lies.
  std::size_t Read(std::span<const std::uint32_t> blocks, std::size_t at) {
    const auto miss = std::find_if(blocks.begin(), blocks.end(),
                                   [&](std::uint32_t block) { return holders_[block] == 0; });
    const auto found = static_cast<std::size_t>(miss - blocks.begin());
    for (std::size_t depth = found; depth-- > 0;) {  // tail first
      const std::uint32_t block = blocks[depth];
      if (nodes_[at].Holds(block)) {
        count_.local_hit_tokens += stream_.block_tokens();
        nodes_[at].policy.Touch(nodes_[at].held[block], now_us_);
        continue;
      }
      Node& holder = nodes_[static_cast<std::size_t>(std::countr_zero(holders_[block]))];
      holder.policy.Touch(holder.held[block], now_us_);
      if (nodes_[at].remote_reads.AddAndTest(block)) kept_.push_back(PositionOf(blocks, depth));
    }
    for (const Position& position : kept_) {
      Insert(
          at, position,
          {.id = {}, .parent = {}, .travelled_last_touch_us = now_us_, .has_other_holder = true});
    }
    kept_.clear();
    return found;
  }

  void Insert(std::size_t at, const Position& position, PolicyBlock block) {
    Node& node = nodes_[at];
    parents_[position.block] = position.parent;
    block.id = SimulatedKeyId(position.block);
    block.parent = position.depth == 0 ? KeyId{} : SimulatedKeyId(position.parent);
    block.depth = position.depth;
    block.size_bytes = 1;
    const PolicyHandle handle = node.policy.Insert(block, now_us_);
    const auto number = static_cast<std::size_t>(handle);
    if (number >= node.block_of.size()) node.block_of.resize(number + 1);
    node.block_of[number] = position.block;
    node.held[position.block] = handle;
    holders_[position.block] |= 1U << at;
    ++count_.inserted_blocks;
  }

  // A spill may make its taker evict in turn; each hop needs a colder leaf, so this ends.
  void EvictToCapacity() {
    for (bool evicted = true; evicted;) {
      evicted = false;
      for (std::size_t at = 0; at < nodes_.size(); ++at) {
        while (nodes_[at].policy.block_count() > capacity_per_node_) {
          EvictOne(at);
          evicted = true;
        }
      }
    }
  }

  void EvictOne(std::size_t at) {
    Node& node = nodes_[at];
    const auto choice = node.policy.NextVictim(now_us_, [](const Victim&) { return true; });
    KVF_CHECK(choice.outcome == EvictionPolicy::Outcome::kVictim, "a full cache has a leaf");
    const Victim& victim = choice.victim;
    const std::uint32_t block = node.block_of[static_cast<std::size_t>(victim.handle)];
    const std::optional<std::size_t> taker = SpillTaker(at, victim);
    node.policy.Erase(victim.handle);
    node.held[block] = kNoPolicyHandle;
    holders_[block] &= ~(1U << at);
    if (!taker.has_value() || holders_[block] != 0) return;
    Insert(*taker, {.block = block, .parent = parents_[block], .depth = victim.depth},
           {.id = {},
            .parent = {},
            .travelled_last_touch_us = victim.last_touch_us,
            .spilled_in = true});
    ++count_.spilled_blocks;
  }

  std::optional<std::size_t> SpillTaker(std::size_t at, const Victim& victim) const {
    if (!shape_.spill || !victim.spillable()) return std::nullopt;
    std::vector<std::optional<IdleTime>> coldest(nodes_.size());
    for (std::size_t peer = 0; peer < nodes_.size(); ++peer) {
      if (peer != at) coldest[peer] = ColdestOf(peer);
    }
    const std::int64_t own_us = nodes_[at].policy.ColdestIndex().value_or(victim.last_touch_us);
    return ChooseSpillPeer(IdleTime(now_us_ - victim.last_touch_us), IdleTime(now_us_ - own_us),
                           coldest);
  }

  std::optional<IdleTime> ColdestOf(std::size_t at) const {
    const LeafLru& policy = nodes_[at].policy;
    if (policy.block_count() < capacity_per_node_) return kColdestOfAll;
    const auto index_us = policy.ColdestIndex();
    if (!index_us.has_value()) return std::nullopt;
    return IdleTime(now_us_ - *index_us);
  }

  const BlockStream& stream_;
  const FabricShape shape_;
  const std::size_t capacity_per_node_;
  std::deque<Node> nodes_;
  std::vector<std::uint32_t> parents_;  // by block
  std::vector<std::uint32_t> holders_;  // by block, a bit a node
  std::vector<Position> kept_;
  std::int64_t now_us_ = 0;
  FabricCount count_;
};

std::size_t NodeOf(Route route, std::size_t nodes, const BlockStream::Request& request,
                   std::size_t index) {
  switch (route) {
    case Route::kHash: {
      if (request.blocks.empty()) return 0;
      const std::uint32_t block = request.blocks[request.blocks.size() > 1 ? 1 : 0];
      return SimulatedKeyId(block).hash() % nodes;
    }
    case Route::kRoundRobin:
      return index % nodes;
    case Route::kOne:
      break;
  }
  return 0;
}

}  // namespace

std::string_view RouteName(Route route) {
  switch (route) {
    case Route::kHash:
      return "hash";
    case Route::kRoundRobin:
      return "round-robin";
    case Route::kOne:
      break;
  }
  return "one";
}

FabricCount SimulateFabric(const BlockStream& stream, const FabricShape& shape) {
  const auto start = std::chrono::steady_clock::now();
  Fabric fabric(stream, shape);
  for (std::size_t r = 0; r < stream.request_count(); ++r) {
    const BlockStream::Request request = stream.request(r);
    fabric.Serve(request, NodeOf(shape.route, shape.nodes, request, r));
  }
  FabricCount count = fabric.count();
  count.hits.prompt_tokens = stream.prompt_tokens();
  count.hits.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return count;
}

}  // namespace kvfabric
