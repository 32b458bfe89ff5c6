#pragma once

// EvictionOrder: which committed block of a pool leaves next. One policy a tenant, so that a
// tenant at its quota evicts its own; over all of them the coldest goes. Knows besides which lanes
// a namespace uses, because the lanes of a block are evicted together.
//
// Owned by BlockStore; `mu` is taken first, shard locks under it. Held for short, bounded work:
// one victim, one insert, or the touch of at most 64 blocks.

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agent/block/block_table.h"
#include "agent/engine/byte_account.h"
#include "agent/policy/eviction_policy.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric {

class EvictionOrder {
 public:
  // More lanes of one namespace than this are not followed: the rest is evicted one by one.
  static constexpr std::size_t kMaxLanes = 256;

  static Result<std::unique_ptr<EvictionOrder>> Create(std::string policy_name,
                                                       std::size_t expected_blocks);
  EvictionOrder(const EvictionOrder&) = delete;  // entries name handles in it
  EvictionOrder& operator=(const EvictionOrder&) = delete;

  // Before any shard's lock.
  Mutex mu;

  // Made at first use; lives as long as this.
  TenantAccount* TenantFor(const std::string& name) EXCLUDES(mu, tenants_mu_);
  // Tenants that are not listed have none.
  void SetQuotas(std::map<std::string, std::uint64_t> quotas) EXCLUDES(mu, tenants_mu_);

  // `travelled`: keeps entry->last_touch_us instead of counting as touched now.
  void Insert(BlockEntry* entry, bool travelled, std::int64_t now_us) REQUIRES(mu);
  // Takes the entry out of all but the policy: inside NextVictim the policy may not be called.
  // The handle goes to Erase afterwards.
  PolicyHandle Detach(BlockEntry* entry) REQUIRES(mu);
  void Erase(TenantAccount* tenant, PolicyHandle handle) REQUIRES(mu);

  struct Choice {
    EvictionPolicy::Outcome outcome = EvictionPolicy::Outcome::kNone;
    TenantAccount* tenant = nullptr;
    Victim victim;
  };
  // Of one tenant, or of whoever has the coldest leaf when `only` is nullptr.
  Choice NextVictim(TenantAccount* only, std::int64_t now_us,
                    const EvictionPolicy::CanEvict& can_evict) REQUIRES(mu);
  std::optional<std::int64_t> ColdestUs(bool spillable) const REQUIRES(mu);

  // KeyIds of the same key in the other lanes of its namespace that have blocks here.
  std::vector<KeyId> OtherLanes(const BlockHeader& header) const REQUIRES(mu);

  std::size_t memory_bytes() const REQUIRES(mu);

 private:
  struct LaneUse {
    Lane lane;
    std::size_t blocks = 0;
  };

  EvictionOrder(std::string policy_name, std::size_t expected_blocks);

  const std::string policy_name_;
  const std::size_t expected_blocks_;

  // A leaf below mu: looking a tenant up must not wait for an eviction.
  mutable Mutex tenants_mu_;
  std::map<std::string, std::unique_ptr<TenantAccount>> tenants_ GUARDED_BY(tenants_mu_);
  std::map<std::string, std::uint64_t> quotas_ GUARDED_BY(tenants_mu_);

  std::vector<TenantAccount*> accounts_ GUARDED_BY(mu);
  std::unordered_map<NamespaceDigest, std::vector<LaneUse>, NamespaceDigestHash> lanes_
      GUARDED_BY(mu);
};

}  // namespace kvfabric
