#include "operator/kube/conditions.h"

#include <algorithm>
#include <utility>

#include "operator/kube/timestamp.h"

namespace kvfabric::kube {

ConditionChange SetCondition(std::vector<Condition>& conditions, Condition wanted,
                             std::int64_t now_unix_us) {
  const auto it = std::find_if(conditions.begin(), conditions.end(),
                               [&](const Condition& c) { return c.type == wanted.type; });
  if (it == conditions.end()) {
    wanted.last_transition_time = FormatTime(now_unix_us);
    conditions.push_back(std::move(wanted));
    return ConditionChange::kFlip;
  }
  const bool flip = it->status != wanted.status;
  wanted.last_transition_time = flip ? FormatTime(now_unix_us) : it->last_transition_time;
  if (*it == wanted) return ConditionChange::kNone;
  *it = std::move(wanted);
  return flip ? ConditionChange::kFlip : ConditionChange::kText;
}

const Condition* FindCondition(const std::vector<Condition>& conditions, std::string_view type) {
  const auto it = std::find_if(conditions.begin(), conditions.end(),
                               [&](const Condition& c) { return c.type == type; });
  return it == conditions.end() ? nullptr : &*it;
}

std::string_view ConditionStatusName(ConditionStatus status) {
  switch (status) {
    case ConditionStatus::kTrue:
      return "True";
    case ConditionStatus::kFalse:
      return "False";
    case ConditionStatus::kUnknown:
      break;
  }
  return "Unknown";
}

ConditionStatus ParseConditionStatus(std::string_view text) {
  if (text == "True") return ConditionStatus::kTrue;
  return text == "False" ? ConditionStatus::kFalse : ConditionStatus::kUnknown;
}

}  // namespace kvfabric::kube
