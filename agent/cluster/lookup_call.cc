#include "agent/cluster/lookup_call.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

namespace kvfabric {

namespace {

constexpr int kLeaseRounds = 2;
constexpr std::uint32_t kHeadDepths = 4;  // runs at depths 0, 1, 2 end before depth 4

}  // namespace

LookupCall::LookupCall(Private, PoolRef pool, SessionId session, LookupArgs args, Deadline deadline,
                       Completion<LookupAnswer> done)
    : pool_(std::move(pool)),
      session_(session),
      args_(std::move(args)),
      deadline_(deadline),
      done_(std::move(done)),
      pass_(pool_->gate().Enter()) {}

void LookupCall::Start(PoolRef pool, SessionId session, LookupArgs args, Deadline deadline,
                       Completion<LookupAnswer> done) {
  std::make_shared<LookupCall>(Private{}, std::move(pool), session, std::move(args), deadline,
                               std::move(done))
      ->Run();
}

void LookupCall::Run() {
  Result<RequestKeys> keys =
      RequestKeys::Resolve(*args_.ns, args_.lanes, args_.range, pool_->spec()->slots, false);
  if (!keys.ok()) {
    done_(keys.status());
    return;
  }
  keys_ = std::move(keys).value();
  PinLocal();
  bool all_here = false;
  {
    MutexLock lock(mu_);
    all_here = wanted_.empty();
  }
  routing_ = pool_->routing();
  if (all_here || routing_ == nullptr || deadline_.Passed(*pool_->context().clock)) {
    Finish();
    return;
  }
  Locate();
}

void LookupCall::PinLocal() {
  const std::size_t cells = keys_.key_count() * keys_.lane_count();
  MutexLock lock(mu_);
  pins_.resize(cells);
  promised_.assign(cells, false);
  for (Cell cell = 0; cell < cells; ++cell) {
    const std::string& key = args_.range.keys[KeyOf(cell)];
    std::optional<PinnedBlock> pin =
        pool_->engine().Pin(IdOf(cell), key, args_.lanes[LaneOf(cell)]);
    if (pin) {
      pins_[cell] = std::move(*pin);
    } else {
      wanted_.push_back(cell);
    }
  }
}

void LookupCall::Locate() {
  std::vector<DirectoryEntry> entries;
  std::size_t heads = 0;
  {
    MutexLock lock(mu_);
    choice_ = std::make_unique<HolderChoice>(*pool_->context().peers, *routing_);
    entries.reserve(wanted_.size());
    for (const Cell cell : wanted_) {
      entries.push_back({IdOf(cell), keys_.slot(KeyOf(cell))});
      if (chain() && args_.range.first + KeyOf(cell) < kHeadDepths) heads = entries.size();
    }
  }
  // Half the time for finding holders, so that the leases have the other half.
  const Clock::TimePoint now = pool_->context().clock->Now();
  const Deadline deadline = Deadline::At(now + (deadline_.at() - now) / 2);
  pool_->locator().Locate(
      std::move(entries), heads, deadline,
      [self = shared_from_this()](Locator::Found found) { self->OnLocated(std::move(found)); });
}

void LookupCall::OnLocated(Locator::Found found) {
  {
    MutexLock lock(mu_);
    candidates_ = std::move(found);
    late_ = deadline_.Passed(*pool_->context().clock);
  }
  if (!LeaseRound()) Finish();
}

// Keys before the first that nobody can promise; all of them for independent keys.
std::size_t LookupCall::KeysWithin() {
  if (!chain()) return keys_.key_count();
  for (std::size_t at = 0; at < wanted_.size(); ++at) {
    if (!promised_[wanted_[at]] && !choice_->Any(candidates_[at])) return KeyOf(wanted_[at]);
  }
  return keys_.key_count();
}

bool LookupCall::LeaseRound() {
  std::map<NodeIndex, Group> groups;
  {
    MutexLock lock(mu_);
    if (rounds_++ >= kLeaseRounds || deadline_.Passed(*pool_->context().clock)) return false;
    const std::size_t keys = KeysWithin();
    for (std::size_t at = 0; at < wanted_.size(); ++at) {
      const Cell cell = wanted_[at];
      if (promised_[cell] || KeyOf(cell) >= keys) continue;
      const NodeIndex holder = choice_->Choose(candidates_[at]);
      if (holder == kNoNode) continue;
      groups[holder].holder = holder;
      groups[holder].cells.push_back(cell);
      candidates_[at].Remove(holder);  // if it refuses, another is asked
    }
    if (groups.empty()) return false;
    parts_ = groups.size();
    if (remote_ == nullptr)
      remote_ = std::make_shared<RemoteLease>(*pool_->context().peers, pool_->uid());
  }
  for (auto& [holder, group] : groups) SendLease(std::move(group));
  return true;
}

void LookupCall::SendLease(Group group) {
  LeaseRequest request;
  request.pool_uid = pool_->uid();
  request.ids.reserve(group.cells.size());
  for (const Cell cell : group.cells) request.ids.push_back(IdOf(cell));
  const LinkRef link = pool_->context().peers->Link(group.holder);
  if (link == nullptr) {
    EndPart();
    return;
  }
  auto shared = std::make_shared<Group>(std::move(group));
  link->Lease(std::move(request), deadline_,
              [self = shared_from_this(), shared](Result<LeaseReply> reply) {
                self->OnLeased(*shared, std::move(reply));
              });
}

void LookupCall::OnLeased(const Group& group, Result<LeaseReply> reply) {
  const bool usable = reply.ok() && reply->granted.size() == group.cells.size();
  if (usable) {
    RemoteLease::Part part{group.holder, reply->lease_id, {}};
    MutexLock lock(mu_);
    for (std::size_t at = 0; at < group.cells.size(); ++at) {
      const Cell cell = group.cells[at];
      if (!reply->granted[at] || reply->lease_id == 0) {
        pool_->locator().Doubt(IdOf(cell));
        continue;
      }
      promised_[cell] = true;
      part.grants.push_back({IdOf(cell), at < reply->lengths.size() ? reply->lengths[at] : 0});
    }
    if (!part.grants.empty()) {
      const bool first = remote_lease_.count() == 0;
      remote_lease_ = first ? reply->lease : std::min(remote_lease_, reply->lease);
      remote_->Add(std::move(part));
    }
  } else if (reply.status().code() == StatusCode::kDeadlineExceeded) {
    MutexLock lock(mu_);
    late_ = true;
  }
  EndPart();
}

void LookupCall::EndPart() {
  {
    MutexLock lock(mu_);
    if (--parts_ > 0) return;
  }
  if (!LeaseRound()) Finish();
}

void LookupCall::Finish() {
  Result<LookupAnswer> answer = LookupAnswer{};
  std::shared_ptr<RemoteLease> unused;  // let go without the lock: it sends messages
  {
    MutexLock lock(mu_);
    answer = MakeAnswer();
    unused = std::move(remote_);
    pins_.clear();
  }
  unused.reset();
  CountMetrics(*answer);
  done_(std::move(answer));
}

std::vector<bool> LookupCall::FoundKeys() {
  const std::size_t lanes = keys_.lane_count();
  std::vector<bool> found(keys_.key_count(), false);
  if (pins_.empty()) return found;
  for (std::size_t key = 0; key < found.size(); ++key) {
    bool all = true;
    for (std::size_t cell = key * lanes; cell < (key + 1) * lanes && all; ++cell) {
      all = static_cast<bool>(pins_[cell]) || promised_[cell];
    }
    if (!all && chain()) break;
    found[key] = all;
  }
  return found;
}

void LookupCall::Grant(std::vector<bool>& found, LookupAnswer& answer) {
  const std::size_t lanes = keys_.lane_count();
  std::vector<PinnedBlock> blocks;
  std::vector<std::size_t> keys;  // of each block
  for (std::size_t cell = 0; cell < pins_.size(); ++cell) {
    if (!found[cell / lanes] || !pins_[cell]) continue;
    blocks.push_back(std::move(pins_[cell]));
    keys.push_back(cell / lanes);
  }
  LeaseTable& leases = *pool_->context().leases;
  if (!blocks.empty()) {
    const LeaseTable::Prefix prefix = leases.GrantPrefix(session_, std::move(blocks));
    answer.lease_id = prefix.lease;
    for (std::size_t at = prefix.granted; at < keys.size(); ++at) {
      answer.miss_reason = MissReason::kLeaseBudget;
      found[keys[at]] = false;
      if (chain())
        std::fill(found.begin() + static_cast<std::ptrdiff_t>(keys[at]), found.end(), false);
    }
  }
  if (answer.lease_id == 0 && std::find(found.begin(), found.end(), true) != found.end()) {
    answer.lease_id = leases.Grant(session_, {}).value_or(0);  // all of it is at peers
  }
  if (answer.lease_id == 0) std::fill(found.begin(), found.end(), false);
}

void LookupCall::AttachRemote(const std::vector<bool>& found, const LookupAnswer& answer) {
  if (remote_ == nullptr) return;
  std::unordered_set<KeyId, KeyIdHash> kept;
  for (const Cell cell : wanted_) {
    if (promised_[cell] && found[KeyOf(cell)]) kept.insert(IdOf(cell));
  }
  if (!remote_->Prune([&kept](const KeyId& id) { return kept.contains(id); })) return;
  const NodeContext& context = pool_->context();
  if (context.leases->Attach(session_, answer.lease_id, remote_)) {
    context.remote_leases->Enter(answer.lease_id, remote_);
  }
}

LookupAnswer LookupCall::MakeAnswer() {
  LookupAnswer answer;
  std::vector<bool> found = FoundKeys();
  std::vector<bool> here(found.size(), true);
  for (const Cell cell : wanted_) here[KeyOf(cell)] = false;
  Grant(found, answer);
  AttachRemote(found, answer);
  for (std::size_t key = 0; key < found.size(); ++key) {
    if (!found[key]) continue;
    ++answer.hits;
    ++(here[key] ? answer.local : answer.peer);
  }
  if (answer.lease_id != 0) {
    answer.lease = pool_->context().leases->ttl();
    if (remote_lease_.count() > 0) answer.lease = std::min(answer.lease, remote_lease_);
  }
  if (answer.hits < found.size() && answer.miss_reason == MissReason::kNone) {
    answer.miss_reason = late_                 ? MissReason::kDeadline
                         : routing_ == nullptr ? MissReason::kNoMap
                                               : MissReason::kNotFound;
  }
  if (!chain()) answer.found = std::move(found);
  return answer;
}

void LookupCall::CountMetrics(const LookupAnswer& answer) const {
  PoolMetrics& metrics = pool_->metrics();
  metrics.lookup_blocks.Add(static_cast<double>(keys_.key_count()));
  if (answer.local > 0) metrics.hits_local.Add(answer.local);
  if (answer.peer > 0) metrics.hits_peer.Add(answer.peer);
  const std::size_t missed = keys_.key_count() - answer.hits;
  if (missed > 0) {
    metrics.misses[static_cast<std::size_t>(answer.miss_reason)]->Add(static_cast<double>(missed));
  }
}

}  // namespace kvfabric
