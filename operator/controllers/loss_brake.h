#pragma once

// LossBrake: when many nodes of a pool fall silent together it is rather the network, a power feed
// or the operator's own connection than all of the nodes: then nobody is given up and nothing
// moves until they return or a person says that they are gone. One node is never "many". Pure.

#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"

namespace kvfabric {

struct LossBrakeRules {
  // At least so many of a zone, and so much of it, or so many of the pool and more than so much.
  std::uint32_t zone_nodes = 3;
  std::uint32_t zone_percent = 55;
  std::uint32_t pool_nodes = 2;
  std::uint32_t pool_percent = 20;
  std::chrono::milliseconds window{60'000};  // silences that began this close belong together
};

// A member that owned slots when it was last heard; those that drain have nothing to lose.
struct LossCandidate {
  std::string node;
  std::string zone;
  bool silent = false;
  Clock::TimePoint since{};  // of the silence
  bool lost = false;         // given up before: counts only with silences that began beside its own
};

// Silent nodes that fell with too many others. `lost` ones are not named.
std::set<std::string> FindMassFailure(const std::vector<LossCandidate>& members,
                                      const LossBrakeRules& rules);

// Whether the annotation's text ("*", or node names with commas between) says that `node` is gone.
bool LossIsConfirmed(std::string_view annotation, std::string_view node);

}  // namespace kvfabric
