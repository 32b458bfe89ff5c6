#include "operator/controllers/flap_penalty.h"

#include <algorithm>
#include <tuple>

#include "operator/kube/timestamp.h"

namespace kvfabric {

using std::chrono::microseconds;
using std::chrono::milliseconds;

milliseconds FlapPenalty::HoldAfter(std::uint32_t failures) const {
  if (failures < 2) return milliseconds(0);
  milliseconds hold = options_.first_hold;
  for (std::uint32_t i = 2; i < failures && hold < options_.longest_hold; ++i) hold *= 2;
  return std::min(hold, options_.longest_hold);
}

void FlapPenalty::See(const std::string& node, bool down, Clock::TimePoint now,
                      std::int64_t now_unix_us) {
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) {
    if (down) nodes_[node].down = true;
    return;
  }
  Record& record = it->second;
  if (down) {
    record.down = true;
    return;
  }
  if (record.down) {
    record.down = false;
    ++record.failures;
    const milliseconds hold = HoldAfter(record.failures);
    record.held_until = now + hold;
    record.held_until_unix_us = now_unix_us + microseconds(hold).count();
    record.calm_since = record.held_until;
    return;
  }
  while (record.failures > 0 && now - record.calm_since >= options_.calm) {
    --record.failures;
    record.calm_since += options_.calm;
  }
  if (record.failures == 0) nodes_.erase(it);
}

bool FlapPenalty::Holds(const std::string& node, Clock::TimePoint now) const {
  const auto it = nodes_.find(node);
  return it != nodes_.end() && now < it->second.held_until;
}

void FlapPenalty::Retain(const std::function<bool(const std::string&)>& exists) {
  std::erase_if(nodes_, [&](const auto& entry) { return !exists(entry.first); });
}

std::vector<UnstableNodeStatus> FlapPenalty::List() const {
  std::vector<UnstableNodeStatus> out;
  for (const auto& [node, record] : nodes_) {
    if (record.failures < 2) continue;
    out.push_back({node, record.failures, kube::FormatTime(record.held_until_unix_us)});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::tie(b.failures, a.node) < std::tie(a.failures, b.node);
  });
  if (out.size() > kMaxUnstableNodes) out.resize(kMaxUnstableNodes);
  return out;
}

void FlapPenalty::Restore(const std::vector<UnstableNodeStatus>& stored, Clock::TimePoint now,
                          std::int64_t now_unix_us) {
  for (const UnstableNodeStatus& node : stored) {
    const auto [it, fresh] = nodes_.try_emplace(node.node);
    if (!fresh) continue;
    Record& record = it->second;
    record.failures = node.failures;
    // Wall clocks of two operators: no further ahead than a hold can be.
    const std::int64_t until = kube::ParseTime(node.held_until).value_or(now_unix_us);
    const microseconds left = std::clamp<microseconds>(microseconds(until - now_unix_us),
                                                       microseconds(0), options_.longest_hold);
    record.held_until_unix_us = now_unix_us + left.count();
    if (left.count() == 0) record.held_until_unix_us = until;
    record.held_until = now + left;
    record.calm_since = record.held_until;
  }
}

}  // namespace kvfabric
