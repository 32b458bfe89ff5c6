#pragma once

// Conditions of a status, as Kubernetes' metav1.Condition: a state, not a transition. A list by
// type; lastTransitionTime moves only when the status flips, so that writing what is already
// there changes nothing.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvfabric::kube {

enum class ConditionStatus : std::uint8_t { kUnknown, kTrue, kFalse };

struct Condition {
  std::string type;
  ConditionStatus status = ConditionStatus::kUnknown;
  std::string reason;  // one CamelCase word
  std::string message;
  std::string last_transition_time;  // RFC 3339
  std::int64_t observed_generation = 0;

  bool operator==(const Condition&) const = default;
};

enum class ConditionChange : std::uint8_t { kNone, kText, kFlip };

// Sets `wanted` (its time is ignored). kFlip: the status is another, or the condition is new.
ConditionChange SetCondition(std::vector<Condition>& conditions, Condition wanted,
                             std::int64_t now_unix_us);
const Condition* FindCondition(const std::vector<Condition>& conditions, std::string_view type);
std::string_view ConditionStatusName(ConditionStatus status);
ConditionStatus ParseConditionStatus(std::string_view text);

}  // namespace kvfabric::kube
