#include "operator/controllers/loss_brake.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace kvfabric {
namespace {

// Members of a zone or of the pool.
struct Group {
  std::vector<Clock::TimePoint> silences;  // sorted
  std::vector<Clock::TimePoint> lost;      // those of `silences` of members given up before; sorted
  std::size_t holders = 0;                 // not given up

  static std::size_t Near(const std::vector<Clock::TimePoint>& times, Clock::TimePoint since,
                          std::chrono::milliseconds window) {
    const auto first = std::lower_bound(times.begin(), times.end(), since - window);
    const auto last = std::upper_bound(first, times.end(), since + window);
    return static_cast<std::size_t>(last - first);
  }
};

void Add(const LossCandidate& member, Group* group) {
  if (!member.lost) ++group->holders;
  if (!member.silent) return;
  group->silences.push_back(member.since);
  if (member.lost) group->lost.push_back(member.since);
}

void Sort(Group* group) {
  std::sort(group->silences.begin(), group->silences.end());
  std::sort(group->lost.begin(), group->lost.end());
}

// How many fell silent near `since`, and of how many.
std::pair<std::size_t, std::size_t> Fallen(const Group& group, Clock::TimePoint since,
                                           std::chrono::milliseconds window) {
  return {Group::Near(group.silences, since, window),
          group.holders + Group::Near(group.lost, since, window)};
}

}  // namespace

std::set<std::string> FindMassFailure(const std::vector<LossCandidate>& members,
                                      const LossBrakeRules& rules) {
  Group pool;
  std::map<std::string, Group> zones;
  for (const LossCandidate& member : members) {
    Add(member, &pool);
    Add(member, &zones[member.zone]);
  }
  std::set<std::string> out;
  if (pool.silences.size() < 2) return out;
  Sort(&pool);
  for (auto& [name, zone] : zones) Sort(&zone);
  for (const LossCandidate& member : members) {
    if (!member.silent || member.lost) continue;
    const auto [of_pool, pool_size] = Fallen(pool, member.since, rules.window);
    const auto [of_zone, zone_size] = Fallen(zones[member.zone], member.since, rules.window);
    const bool pool_fell =
        of_pool >= rules.pool_nodes && of_pool * 100 > pool_size * rules.pool_percent;
    const bool zone_fell =
        of_zone >= rules.zone_nodes && of_zone * 100 >= zone_size * rules.zone_percent;
    if (pool_fell || zone_fell) out.insert(member.node);
  }
  return out;
}

bool LossIsConfirmed(std::string_view annotation, std::string_view node) {
  while (!annotation.empty()) {
    const std::size_t comma = annotation.find(',');
    std::string_view name = annotation.substr(0, comma);
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    if (name == "*" || name == node) return true;
    if (comma == std::string_view::npos) return false;
    annotation.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace kvfabric
