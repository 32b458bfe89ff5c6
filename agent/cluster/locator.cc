#include "agent/cluster/locator.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace kvfabric {

// One Locate or Answer under way. Lives until its last message was answered.
class Locator::Call : public std::enable_shared_from_this<Call> {
 public:
  Call(Locator& locator, std::vector<DirectoryEntry> keys, Deadline deadline, Done done)
      : locator_(locator),
        keys_(std::move(keys)),
        deadline_(deadline),
        done_(std::move(done)),
        pass_(locator.environment_.gate->Enter()),
        found_(keys_.size()),
        columns_(keys_.size(), 0),
        refreshed_(keys_.size(), false) {}

  void Locate(std::size_t heads);
  void Answer(bool forwarded);

 private:
  using Indices = std::vector<std::uint32_t>;
  using Groups = std::map<NodeIndex, Indices>;

  void Ask(const Indices& indices);
  void LookHere(const PoolRouting& routing, std::uint32_t index, Groups& hops);
  void Send(NodeIndex owner, Indices indices, bool hop);
  void OnReply(NodeIndex owner, Indices indices, bool hop, Result<LocateReply> reply);
  bool ForgetColumns(const Indices& indices);
  void Store(const Indices& indices, const LocateReply& reply);
  // Parts: one for the starter and one per message under way; the last one out calls done.
  void AddPart();
  void EndPart();

  Locator& locator_;
  const std::vector<DirectoryEntry> keys_;
  const Deadline deadline_;
  const Done done_;
  const Gate::Pass pass_;
  std::size_t heads_ = 0;

  Mutex mu_;
  std::size_t parts_ GUARDED_BY(mu_) = 0;
  Found found_ GUARDED_BY(mu_);
  std::vector<std::uint8_t> columns_ GUARDED_BY(mu_);  // the owner to ask next, per key
  std::vector<bool> refreshed_ GUARDED_BY(mu_);        // asked anew with a newer map, per key
};

void Locator::Call::AddPart() {
  MutexLock lock(mu_);
  ++parts_;
}

void Locator::Call::EndPart() {
  Found found;
  {
    MutexLock lock(mu_);
    if (--parts_ > 0) return;
    found = std::move(found_);
  }
  for (std::size_t index = 0; index < heads_; ++index) {
    if (found[index].count > 0) locator_.Remember(keys_[index].id, found[index]);
  }
  done_(std::move(found));
}

void Locator::Call::Locate(std::size_t heads) {
  heads_ = std::min(heads, keys_.size());
  AddPart();
  Indices indices;
  indices.reserve(keys_.size());
  for (std::size_t index = 0; index < keys_.size(); ++index) {
    Directory::Holders holders;
    if (index < heads_ && locator_.FindCached(keys_[index].id, &holders)) {
      MutexLock lock(mu_);
      found_[index] = holders;
    } else {
      indices.push_back(static_cast<std::uint32_t>(index));
    }
  }
  Ask(indices);
  EndPart();
}

void Locator::Call::Answer(bool forwarded) {
  AddPart();
  const SharedRouting routing = locator_.environment_.routing->Get();
  Groups hops;
  for (std::uint32_t index = 0; index < keys_.size(); ++index) LookHere(*routing, index, hops);
  if (!forwarded) {
    for (auto& [owner, indices] : hops) Send(owner, std::move(indices), true);
  }
  EndPart();
}

void Locator::Call::LookHere(const PoolRouting& routing, std::uint32_t index, Groups& hops) {
  const DirectoryEntry& key = keys_[index];
  const Directory::Holders holders = locator_.environment_.directory->Find(key.id);
  if (holders.count > 0) {
    MutexLock lock(mu_);
    found_[index] = holders;
    return;
  }
  if (const NodeIndex hop = locator_.HopFor(routing, key.slot); hop != kNoNode) {
    hops[hop].push_back(index);
  }
}

void Locator::Call::Ask(const Indices& indices) {
  const SharedRouting routing = locator_.environment_.routing->Get();
  if (routing == nullptr) return;
  Groups groups;
  Groups hops;
  std::map<NodeIndex, bool> up;
  const auto is_up = [this, &up](NodeIndex node) {
    const auto [known, fresh] = up.try_emplace(node, false);
    if (fresh) known->second = locator_.environment_.peers->Up(node);
    return known->second;
  };
  for (const std::uint32_t index : indices) {
    const SlotIndex slot = keys_[index].slot;
    if (slot >= routing->map().slot_count) continue;
    const auto owners = routing->map().Owners(slot);
    std::size_t column = 0;
    {
      MutexLock lock(mu_);
      column = columns_[index];
    }
    for (; column < owners.size() && owners[column] != kNoOwner; ++column) {
      if (owners[column] == routing->self_member()) {
        LookHere(*routing, index, hops);
        break;
      }
      const NodeIndex node = routing->NodeOf(owners[column]);
      if (node == kNoNode || !is_up(node)) continue;
      groups[node].push_back(index);
      break;
    }
    MutexLock lock(mu_);
    columns_[index] = static_cast<std::uint8_t>(column + 1);
  }
  for (auto& [owner, group] : groups) Send(owner, std::move(group), false);
  for (auto& [owner, group] : hops) Send(owner, std::move(group), true);
}

void Locator::Call::Send(NodeIndex owner, Indices indices, bool hop) {
  const Environment& environment = locator_.environment_;
  const LinkRef link = environment.peers->Link(owner);
  const SharedRouting routing = environment.routing->Get();
  const Clock::TimePoint now = environment.clock->Now();
  if (link == nullptr || routing == nullptr || now >= deadline_.at()) return;
  LocateRequest request;
  request.pool_uid = locator_.pool_uid_;
  request.map_epoch = routing->epoch();
  request.forwarded = hop;
  request.keys.reserve(indices.size());
  for (const std::uint32_t index : indices) request.keys.push_back(keys_[index]);
  (hop ? environment.handovers : environment.asked)
      ->Add(hop ? static_cast<double>(indices.size()) : 1.0);
  // Half of what is left, so that another owner can still be asked.
  const Deadline deadline = hop ? deadline_ : Deadline::At(now + (deadline_.at() - now) / 2);
  AddPart();
  auto shared = std::make_shared<Indices>(std::move(indices));
  link->Locate(std::move(request), deadline,
               [self = shared_from_this(), owner, shared, hop](Result<LocateReply> reply) {
                 self->OnReply(owner, std::move(*shared), hop, std::move(reply));
               });
}

void Locator::Call::OnReply(NodeIndex owner, Indices indices, bool hop, Result<LocateReply> reply) {
  if (reply.ok() && reply->holders.size() == indices.size()) {
    Store(indices, *reply);
  } else if (!hop && !deadline_.Passed(*locator_.environment_.clock)) {
    const bool stale = reply.status().code() == StatusCode::kAborted;
    if (stale && ForgetColumns(indices)) {
      auto shared = std::make_shared<Indices>(std::move(indices));
      locator_.environment_.refresh_map(owner, deadline_, [self = shared_from_this(), shared] {
        self->Ask(*shared);
        self->EndPart();
      });
      return;
    }
    Ask(indices);
  }
  EndPart();
}

// The keys' owners are others in a newer map; true once per key.
bool Locator::Call::ForgetColumns(const Indices& indices) {
  MutexLock lock(mu_);
  if (refreshed_[indices.front()]) return false;
  for (const std::uint32_t index : indices) {
    refreshed_[index] = true;
    columns_[index] = 0;
  }
  return true;
}

void Locator::Call::Store(const Indices& indices, const LocateReply& reply) {
  std::unordered_map<std::string, NodeIndex> numbers;
  const auto number = [this, &numbers](const std::string& name) {
    const auto [known, fresh] = numbers.try_emplace(name, kNoNode);
    if (fresh) known->second = locator_.environment_.names->Find(name);
    return known->second;
  };
  MutexLock lock(mu_);
  for (std::size_t at = 0; at < indices.size(); ++at) {
    Directory::Holders& holders = found_[indices[at]];
    for (const std::string& name : reply.holders[at]) {
      if (const NodeIndex node = number(name); node != kNoNode) holders.Add(node);
    }
  }
}

Locator::Locator(std::string pool_uid, Environment environment)
    : pool_uid_(std::move(pool_uid)),
      environment_(std::move(environment)),
      started_at_(environment_.clock->Now()) {}

void Locator::Locate(std::vector<DirectoryEntry> keys, std::size_t heads, Deadline deadline,
                     Done done) {
  std::make_shared<Call>(*this, std::move(keys), deadline, std::move(done))->Locate(heads);
}

void Locator::Answer(LocateRequest request, Deadline deadline, Completion<LocateReply> done) {
  const SharedRouting routing = environment_.routing->Get();
  if (routing == nullptr) {
    done(Unavailable("locate: pool " + pool_uid_ + " has no map here yet"));
    return;
  }
  if (request.map_epoch < routing->epoch()) {
    done(Aborted("locate: stale epoch " + std::to_string(request.map_epoch) + ", this node has " +
                 std::to_string(routing->epoch())));
    return;
  }
  const bool forwarded = request.forwarded;
  auto finish = [this, done = std::move(done)](Found found) {
    const std::vector<std::string> names = environment_.names->All();
    LocateReply reply;
    reply.holders.resize(found.size());
    for (std::size_t at = 0; at < found.size(); ++at) {
      for (const NodeIndex node : found[at].span()) reply.holders[at].push_back(names[node]);
    }
    done(std::move(reply));
  };
  std::make_shared<Call>(*this, std::move(request.keys), deadline, std::move(finish))
      ->Answer(forwarded);
}

NodeIndex Locator::HopFor(const PoolRouting& routing, SlotIndex slot) const {
  if (slot >= routing.map().slot_count) return kNoNode;
  const Clock::TimePoint now = environment_.clock->Now();
  const auto first_up = [this, &routing](std::span<const NodeIndex> nodes) {
    for (const NodeIndex node : nodes) {
      if (node != routing.self() && environment_.peers->Up(node)) return node;
    }
    return kNoNode;
  };
  if (const auto previous = routing.PreviousOwners(slot, now); !previous.empty()) {
    return first_up(previous);
  }
  if (now - started_at_ >= PoolRouting::kHandover) return kNoNode;
  return first_up(routing.OwnersOf(slot));
}

bool Locator::FindCached(const KeyId& id, Directory::Holders* holders) {
  MutexLock lock(cache_mu_);
  const auto found = cache_.find(id);
  if (found == cache_.end()) return false;
  if (environment_.clock->Now() >= found->second.until) {
    cache_.erase(found);
    return false;
  }
  *holders = found->second.holders;
  return true;
}

void Locator::Remember(const KeyId& id, const Directory::Holders& holders) {
  MutexLock lock(cache_mu_);
  if (cache_.size() >= kMaxCached) cache_.clear();
  // Not prolonged by being used: each answer is at most a second old.
  cache_.try_emplace(id, Cached{holders, environment_.clock->Now() + kCachedFor});
}

void Locator::Doubt(const KeyId& id) {
  MutexLock lock(cache_mu_);
  cache_.erase(id);
}

}  // namespace kvfabric
