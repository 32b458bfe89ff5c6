#include "agent/cluster/get_call.h"

#include <algorithm>
#include <map>
#include <utility>

#include "agent/cluster/lookup_call.h"

namespace kvfabric {

GetCall::GetCall(Private, PoolRef pool, SessionId session, GetArgs args, Deadline deadline,
                 Completion<GetAnswer> done)
    : pool_(std::move(pool)),
      session_(session),
      args_(std::move(args)),
      deadline_(deadline),
      done_(std::move(done)),
      pass_(pool_->gate().Enter()) {}

void GetCall::Start(PoolRef pool, SessionId session, GetArgs args, Deadline deadline,
                    Completion<GetAnswer> done) {
  auto call = std::make_shared<GetCall>(Private{}, std::move(pool), session, std::move(args),
                                        deadline, std::move(done));
  Result<RequestKeys> keys =
      RequestKeys::Resolve(*call->args_.ns, {&call->args_.lane, 1}, call->args_.range,
                           call->pool_->spec()->slots, false);
  if (!keys.ok()) {
    call->done_(keys.status());
    return;
  }
  call->keys_ = std::move(keys).value();
  call->wanted_ = call->keys_.key_count();
  // A lease that ended meanwhile is as none: the blocks may well be there still.
  if (call->pool_->context().leases->Has(session, call->args_.lease_id)) {
    call->lease_id_ = call->args_.lease_id;
    call->Collect();
  } else {
    call->TakeOwnLease();
  }
}

void GetCall::TakeOwnLease() {
  LookupArgs lookup{args_.ns, {args_.lane}, args_.range};
  LookupCall::Start(pool_, session_, std::move(lookup), deadline_,
                    [self = shared_from_this()](Result<LookupAnswer> answer) {
                      if (!answer.ok()) {
                        self->done_(answer.status());
                        return;
                      }
                      self->lease_id_ = answer->lease_id;
                      if (self->chain()) self->wanted_ = answer->hits;
                      self->Collect();
                    });
}

void GetCall::Collect() {
  std::vector<Batch> batches;
  {
    MutexLock lock(mu_);
    answer_.lease_id = lease_id_;
    answer_.blocks.resize(keys_.key_count());
    answer_.from_peer.assign(keys_.key_count(), false);
    if (lease_id_ != 0) batches = PlanFetches();
    parts_ = batches.size() + 1;
  }
  for (Batch& batch : batches) Fetch(std::move(batch));
  EndPart();
}

std::vector<GetCall::Batch> GetCall::PlanFetches() {
  LeaseTable& leases = *pool_->context().leases;
  const std::shared_ptr<RemoteLease> remote = pool_->context().remote_leases->Find(lease_id_);
  std::vector<Batch> batches;
  std::map<std::pair<NodeIndex, std::uint64_t>, std::size_t> open;  // lease -> batch with room
  for (std::size_t key = 0; key < wanted_; ++key) {
    const KeyId& id = keys_.id(0, key);
    std::optional<PinnedBlock> block = leases.Find(session_, lease_id_, id);
    if (!block) {
      block = pool_->engine().Pin(id, args_.range.keys[key], args_.lane);
      if (block && !leases.Add(session_, lease_id_, *block)) block.reset();
    } else if (block->header().key != args_.range.keys[key] || block->header().lane != args_.lane) {
      block.reset();
    }
    if (block) {
      answer_.blocks[key] = std::move(*block);
      continue;
    }
    const auto place = remote != nullptr ? remote->Find(id) : std::nullopt;
    if (!place) {
      if (chain()) break;
      continue;
    }
    if (!fetching_.emplace(id, key).second) continue;  // named twice in one request
    const auto [known, fresh] = open.try_emplace({place->holder, place->lease_id}, batches.size());
    if (!fresh && (batches[known->second].bytes >= kBatchBytes ||
                   batches[known->second].keys.size() >= kBatchBlocks)) {
      known->second = batches.size();
    }
    if (known->second == batches.size()) {
      batches.emplace_back();
      batches.back().holder = place->holder;
      batches.back().lease_id = place->lease_id;
    }
    Batch& batch = batches[known->second];
    batch.keys.push_back(key);
    batch.bytes += place->length_bytes;
  }
  return batches;
}

void GetCall::Fetch(Batch batch) {
  const LinkRef link = pool_->context().peers->Link(batch.holder);
  if (link == nullptr) {
    OnFetched(batch, Unavailable("get: the holder is down"));
    return;
  }
  std::vector<FetchItem> items;
  items.reserve(batch.keys.size());
  for (const std::size_t key : batch.keys) items.push_back({keys_.id(0, key)});
  const std::uint64_t lease_id = batch.lease_id;
  auto shared = std::make_shared<Batch>(std::move(batch));
  auto self = shared_from_this();
  link->Fetch(
      pool_->uid(), lease_id, std::move(items),
      [self](const BlockHeader& header) { return self->PlaceFor(header); }, deadline_,
      [self, shared](Result<FetchResult> result) { self->OnFetched(*shared, std::move(result)); });
}

// The holder's header is believed in nothing that we know better.
Reservation GetCall::PlaceFor(const BlockHeader& header) {
  const auto found = fetching_.find(header.id);
  if (found == fetching_.end() || header.key != args_.range.keys[found->second] ||
      header.lane != args_.lane || header.ns == nullptr || header.ns->digest != args_.ns->digest) {
    return Reservation();
  }
  BlockHeader placed = header;
  placed.ns = args_.ns;
  placed.slot = keys_.slot(found->second);
  placed.has_other_holder = true;
  placed.last_touch_us = 0;  // it is being read now
  Result<Reservation> reservation =
      pool_->engine().Reserve(std::move(placed), BlockOrigin::kTransient);
  return reservation.ok() ? std::move(reservation).value() : Reservation();
}

void GetCall::OnFetched(const Batch& batch, Result<FetchResult> result) {
  {
    MutexLock lock(mu_);
    for (std::size_t at = 0; at < batch.keys.size(); ++at) {
      const std::size_t key = batch.keys[at];
      std::optional<PinnedBlock> block;
      if (result.ok() && at < result->blocks.size()) block = std::move(result->blocks[at]);
      // Another request may have brought it in the meantime.
      if (!block) {
        block = pool_->engine().Pin(keys_.id(0, key), args_.range.keys[key], args_.lane);
      }
      if (block) {
        TakeFetched(key, std::move(*block));
      } else {
        pool_->metrics().get_blocks_lost.Add();
      }
    }
  }
  EndPart();
}

void GetCall::TakeFetched(std::size_t key, PinnedBlock block) {
  const KeyId& id = keys_.id(0, key);
  if (block.header().id != id) return;
  if (!pool_->context().leases->Add(session_, lease_id_, block)) return;
  if (pool_->read_ring().NoteRead(id)) static_cast<void>(pool_->engine().Keep(id));
  pool_->metrics().get_bytes_peer.Add(static_cast<double>(block.header().length_bytes));
  answer_.blocks[key] = std::move(block);
  answer_.from_peer[key] = true;
}

void GetCall::EndPart() {
  {
    MutexLock lock(mu_);
    if (--parts_ > 0) return;
  }
  Finish();
}

void GetCall::Finish() {
  GetAnswer answer;
  {
    MutexLock lock(mu_);
    answer = std::move(answer_);
  }
  if (chain()) {
    const auto gap =
        std::ranges::find_if(answer.blocks, [](const PinnedBlock& block) { return !block; });
    std::fill(gap, answer.blocks.end(), PinnedBlock());
  }
  TouchLocal(answer);
  done_(std::move(answer));
}

void GetCall::TouchLocal(const GetAnswer& answer) {
  std::vector<KeyId> touched;
  std::size_t from_peers = 0;
  for (std::size_t key = 0; key < answer.blocks.size(); ++key) {
    if (!answer.blocks[key]) continue;
    if (answer.from_peer[key]) {
      ++from_peers;
      continue;
    }
    touched.push_back(keys_.id(0, key));
    // A transient copy that another reader holds: this is its second read.
    if (answer.blocks[key].header().has_other_holder && pool_->read_ring().Seen(touched.back())) {
      static_cast<void>(pool_->engine().Keep(touched.back()));
    }
  }
  if (!touched.empty()) pool_->engine().Touch(touched);
  pool_->metrics().get_blocks_local.Add(static_cast<double>(touched.size()));
  pool_->metrics().get_blocks_peer.Add(static_cast<double>(from_peers));
}

}  // namespace kvfabric
