#include "agent/cluster/delete_call.h"

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
  std::uint32_t deleted = 0;
  std::vector<DirectoryEntry> entries;
  for (std::size_t key = 0; key < keys->key_count(); ++key) {
    if (call->pool_->engine().Delete(keys->id(0, key))) ++deleted;
    entries.push_back({keys->id(0, key), keys->slot(key)});
  }
  {
    MutexLock lock(call->mu_);
    call->deleted_ = deleted;
  }
  if (call->pool_->routing() == nullptr) {
    call->EndPart(0);
    return;
  }
  const Clock::TimePoint now = call->pool_->context().clock->Now();
  const Deadline half = Deadline::At(now + (deadline.at() - now) / 2);
  call->pool_->locator().Locate(entries, 0, half, [call, entries](const Locator::Found& found) {
    call->OnLocated(entries, found);
  });
}

void DeleteCall::OnLocated(const std::vector<DirectoryEntry>& keys, const Locator::Found& found) {
  std::map<NodeIndex, std::vector<KeyId>> at_holders;
  for (std::size_t at = 0; at < keys.size(); ++at) {
    pool_->locator().Doubt(keys[at].id);
    for (const NodeIndex holder : found[at].span()) {
      if (holder != pool_->context().self.node) at_holders[holder].push_back(keys[at].id);
    }
  }
  for (auto& [holder, ids] : at_holders) {
    const LinkRef link = pool_->context().peers->Link(holder);
    if (link == nullptr) continue;
    {
      MutexLock lock(mu_);
      ++parts_;
    }
    link->Delete({pool_->uid(), std::move(ids)}, deadline_,
                 [self = shared_from_this()](Result<std::uint32_t> deleted) {
                   self->EndPart(deleted.ok() ? *deleted : 0);
                 });
  }
  EndPart(0);
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
