#pragma once

// NodeNames: node name <-> small number, so that directories and queues keep two bytes a node
// instead of a string. Owned by FabricNode; any thread. A name keeps its number for the life of
// the agent; when all numbers are used up (65,534 names in one run) new nodes get kNoNode and are
// neither asked nor listed as holders.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"

namespace kvfabric {

using NodeIndex = std::uint16_t;
inline constexpr NodeIndex kNoNode = 0xFFFF;

class NodeNames {
 public:
  NodeNames() = default;
  NodeNames(const NodeNames&) = delete;  // numbers of a copy would drift apart
  NodeNames& operator=(const NodeNames&) = delete;

  NodeIndex Intern(std::string_view name) EXCLUDES(mu_);
  // kNoNode when the name was never interned.
  NodeIndex Find(std::string_view name) const EXCLUDES(mu_);
  std::string Name(NodeIndex node) const EXCLUDES(mu_);
  // Names of all nodes by number, for translating many at once.
  std::vector<std::string> All() const EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::unordered_map<std::string, NodeIndex> numbers_ GUARDED_BY(mu_);
  std::vector<std::string> names_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
