#include "agent/cluster/node_names.h"

namespace kvfabric {

NodeIndex NodeNames::Intern(std::string_view name) {
  MutexLock lock(mu_);
  const auto [found, fresh] = numbers_.try_emplace(std::string(name), kNoNode);
  if (!fresh) return found->second;
  if (names_.size() >= kNoNode) {
    numbers_.erase(found);
    return kNoNode;
  }
  found->second = static_cast<NodeIndex>(names_.size());
  names_.emplace_back(name);
  return found->second;
}

NodeIndex NodeNames::Find(std::string_view name) const {
  MutexLock lock(mu_);
  const auto found = numbers_.find(std::string(name));
  return found == numbers_.end() ? kNoNode : found->second;
}

std::string NodeNames::Name(NodeIndex node) const {
  MutexLock lock(mu_);
  return node < names_.size() ? names_[node] : std::string();
}

std::vector<std::string> NodeNames::All() const {
  MutexLock lock(mu_);
  return names_;
}

}  // namespace kvfabric
