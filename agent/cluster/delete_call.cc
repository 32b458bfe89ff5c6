#include "agent/cluster/delete_call.h"

#include <algorithm>
#include <map>
#include <utility>

namespace kvfabric {

DeleteCall::DeleteCall(Private, PoolRef pool, Deadline deadline, Completion<std::uint32_t> done)
    : pool_(std::move(pool)),
      deadline_(deadline),
      done_(std::move(done)),
      pass_(pool_->gate().Enter()) {}

void DeleteCall::Start(PoolRef pool, GetArgs args, Deadline deadline,
                       Completion<std::uint32_t> done) {
  const Result<RequestKeys> keys =
      RequestKeys::Resolve(*args.ns, {&args.lane, 1}, args.range, pool->spec()->slots, false);
  if (!keys.ok()) {
    done(keys.status());
    return;
  }
  auto call = std::make_shared<DeleteCall>(Private{}, std::move(pool), deadline, std::move(done));
  for (std::size_t key = 0; key < keys->key_count(); ++key) {
    const KeyId& id = keys->id(0, key);
    call->was_here_.push_back(call->pool_->engine().Delete(id));
    call->keys_.push_back({id, keys->slot(key)});
  }
  {
    MutexLock lock(call->mu_);
    call->deleted_ = static_cast<std::uint32_t>(std::ranges::count(call->was_here_, true));
  }
  if (call->pool_->routing() == nullptr) {
    call->EndPart(0);
    return;
  }
  const Clock::TimePoint now = call->pool_->context().clock->Now();
  const Deadline half = Deadline::At(now + (deadline.at() - now) / 2);
  call->pool_->locator().Locate(call->keys_, 0, half,
                                [call](const Locator::Found& found) { call->OnLocated(found); });
}

// A holder answers how many of the keys it had: each key is counted here or at one holder only.
void DeleteCall::OnLocated(const Locator::Found& found) {
  std::map<NodeIndex, std::vector<KeyId>> counted;
  std::map<NodeIndex, std::vector<KeyId>> others;
  for (std::size_t at = 0; at < keys_.size(); ++at) {
    const KeyId& id = keys_[at].id;
    pool_->locator().Doubt(id);
    bool known = was_here_[at];
    for (const NodeIndex holder : found[at].span()) {
      if (holder == pool_->context().self.node || !pool_->context().peers->Up(holder)) continue;
      (known ? others : counted)[holder].push_back(id);
      known = true;
    }
  }
  for (auto& [holder, ids] : counted) DeleteAt(holder, std::move(ids), true);
  for (auto& [holder, ids] : others) DeleteAt(holder, std::move(ids), false);
  EndPart(0);
}

void DeleteCall::DeleteAt(NodeIndex holder, std::vector<KeyId> ids, bool counted) {
  const LinkRef link = pool_->context().peers->Link(holder);
  if (link == nullptr) return;
  {
    MutexLock lock(mu_);
    ++parts_;
  }
  link->Delete({pool_->uid(), std::move(ids)}, deadline_,
               [self = shared_from_this(), counted](Result<std::uint32_t> deleted) {
                 self->EndPart(counted && deleted.ok() ? *deleted : 0);
               });
}

void DeleteCall::EndPart(std::uint32_t deleted) {
  std::uint32_t total = 0;
  {
    MutexLock lock(mu_);
    deleted_ += deleted;
    if (--parts_ > 0) return;
    total = deleted_;
  }
  done_(total);
}

}  // namespace kvfabric
