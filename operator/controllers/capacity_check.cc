#include "operator/controllers/capacity_check.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "operator/specs/quantity.h"

namespace kvfabric {
namespace {

constexpr std::chrono::seconds kGoodFor{1};

}  // namespace

std::map<std::string, std::string> FindOversubscribed(
    std::vector<std::shared_ptr<const Pool>> pools, const std::vector<NodeRoom>& rooms) {
  std::sort(pools.begin(), pools.end(), [](const auto& a, const auto& b) {
    return std::tie(a->meta.creation_timestamp, a->meta.uid) <
           std::tie(b->meta.creation_timestamp, b->meta.uid);
  });
  std::map<std::string, std::string> out;
  std::vector<std::uint64_t> left;
  left.reserve(rooms.size());
  for (const NodeRoom& room : rooms) left.push_back(room.arena_bytes);
  for (const auto& pool : pools) {
    const TierSpec* dram = pool->spec.Tier(TierType::kDram);
    if (!pool->faults.empty() || dram == nullptr || !NotBuilt(pool->spec).empty()) continue;
    std::vector<std::size_t> used;
    std::optional<std::size_t> tightest;
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      if (!NodeFits(*rooms[i].node, pool->spec.placement)) continue;
      used.push_back(i);
      if (!tightest.has_value() || left[i] < left[*tightest]) tightest = i;
    }
    if (tightest.has_value() && dram->capacity_bytes > left[*tightest]) {
      out[pool->meta.uid] = "capacityPerNode " + FormatQuantity(dram->capacity_bytes) +
                            " is more than node " + rooms[*tightest].node->name + " has left (" +
                            FormatQuantity(left[*tightest]) +
                            " beside older pools): lower it, or give the agents larger arenas";
      continue;
    }
    for (const std::size_t i : used) left[i] -= dram->capacity_bytes;
  }
  return out;
}

std::string CapacityCheck::Judge(const Pool& pool, const PoolSnapshot& pools,
                                 const NodeFactsSnapshot& nodes, const AgentRegistry& registry,
                                 Clock::TimePoint now) {
  std::vector<NodeRoom> rooms;
  for (const auto& [name, agent] : registry.agents()) {
    if (!agent.connected || !agent.report.has_value()) continue;
    const auto node = nodes->find({"", name});
    if (node != nodes->end()) rooms.push_back({node->second.get(), agent.report->arena_bytes});
  }
  if (pools != pools_ || nodes != nodes_ || rooms.size() != agents_ || now - checked_ >= kGoodFor) {
    std::vector<std::shared_ptr<const Pool>> all;
    for (const auto& [name, other] : *pools) all.push_back(other);
    oversubscribed_ = FindOversubscribed(std::move(all), rooms);
    pools_ = pools;
    nodes_ = nodes;
    agents_ = rooms.size();
    checked_ = now;
  }
  const auto it = oversubscribed_.find(pool.meta.uid);
  return it == oversubscribed_.end() ? "" : it->second;
}

}  // namespace kvfabric
