#include "agent/engine/eviction_order.h"

#include <algorithm>

#include "common/check.h"
#include "common/identity.h"

namespace kvfabric {

Result<std::unique_ptr<EvictionOrder>> EvictionOrder::Create(std::string policy_name,
                                                             std::size_t expected_blocks) {
  // Later ones are made without a way to answer an error.
  auto trial = MakeEvictionPolicy(policy_name);
  if (!trial.ok()) return trial.status();
  return std::unique_ptr<EvictionOrder>(new EvictionOrder(std::move(policy_name), expected_blocks));
}

EvictionOrder::EvictionOrder(std::string policy_name, std::size_t expected_blocks)
    : policy_name_(std::move(policy_name)), expected_blocks_(expected_blocks) {}

TenantAccount* EvictionOrder::TenantFor(const std::string& name) {
  {
    MutexLock lock(tenants_mu_);
    const auto found = tenants_.find(name);
    if (found != tenants_.end()) return found->second.get();
  }
  auto policy = MakeEvictionPolicy(policy_name_, {.expected_blocks = expected_blocks_});
  KVF_CHECK(policy.ok(), "a policy that could be made once cannot be made again");
  MutexLock order(mu);
  MutexLock lock(tenants_mu_);
  std::unique_ptr<TenantAccount>& account = tenants_[name];
  if (account == nullptr) {
    const auto quota = quotas_.find(name);
    account = std::make_unique<TenantAccount>(name, quota == quotas_.end() ? 0 : quota->second);
    account->policy = std::move(policy).value();
    accounts_.push_back(account.get());
  }
  return account.get();
}

void EvictionOrder::SetQuotas(std::map<std::string, std::uint64_t> quotas) {
  MutexLock lock(tenants_mu_);
  quotas_ = std::move(quotas);
  for (auto& [name, account] : tenants_) {
    const auto quota = quotas_.find(name);
    account->quota_bytes.store(quota == quotas_.end() ? 0 : quota->second,
                               std::memory_order_relaxed);
  }
}

void EvictionOrder::Insert(BlockEntry* entry, bool travelled, std::int64_t now_us) {
  const BlockHeader& header = entry->header;
  PolicyBlock block{.id = header.id,
                    .parent = header.parent,
                    .depth = header.depth,
                    .size_bytes = header.length_bytes,
                    .travelled_last_touch_us = std::nullopt,
                    .has_other_holder = entry->has_other_holder,
                    .spilled_in = header.spilled_in};
  if (travelled) block.travelled_last_touch_us = entry->last_touch_us;
  entry->order = static_cast<std::uint32_t>(entry->tenant->policy->Insert(block, now_us));
  std::vector<LaneUse>& lanes = lanes_[header.ns->digest];
  const auto use = std::ranges::find(lanes, header.lane, &LaneUse::lane);
  if (use != lanes.end()) {
    ++use->blocks;
  } else if (lanes.size() < kMaxLanes) {
    lanes.push_back({.lane = header.lane, .blocks = 1});
  }
}

PolicyHandle EvictionOrder::Detach(BlockEntry* entry) {
  const PolicyHandle handle{entry->order};
  entry->order = BlockEntry::kNoOrder;
  const auto lanes = lanes_.find(entry->header.ns->digest);
  if (lanes == lanes_.end()) return handle;
  const auto use = std::ranges::find(lanes->second, entry->header.lane, &LaneUse::lane);
  if (use == lanes->second.end() || --use->blocks > 0) return handle;
  lanes->second.erase(use);
  if (lanes->second.empty()) lanes_.erase(lanes);
  return handle;
}

void EvictionOrder::Erase(TenantAccount* tenant, PolicyHandle handle) {
  tenant->policy->Erase(handle);
}

EvictionOrder::Choice EvictionOrder::NextVictim(TenantAccount* only, std::int64_t now_us,
                                                const EvictionPolicy::CanEvict& can_evict) {
  std::vector<std::pair<std::int64_t, TenantAccount*>> by_coldness;
  if (only != nullptr) {
    by_coldness.push_back({0, only});
  } else {
    for (TenantAccount* account : accounts_) {
      if (account->policy->block_count() == 0) continue;
      // Without an index: all leaves were refused lately; asked last.
      by_coldness.push_back({account->policy->ColdestIndex().value_or(INT64_MAX), account});
    }
    std::ranges::sort(by_coldness, {}, &std::pair<std::int64_t, TenantAccount*>::first);
  }
  Choice best;
  for (const auto& [index, account] : by_coldness) {
    const EvictionPolicy::Choice choice = account->policy->NextVictim(now_us, can_evict);
    if (choice.outcome == EvictionPolicy::Outcome::kVictim) {
      return {.outcome = choice.outcome, .tenant = account, .victim = choice.victim};
    }
    if (choice.outcome == EvictionPolicy::Outcome::kRefused) best.outcome = choice.outcome;
  }
  return best;
}

std::optional<std::int64_t> EvictionOrder::ColdestUs(bool spillable) const {
  std::optional<std::int64_t> coldest;
  for (const TenantAccount* account : accounts_) {
    const auto index =
        spillable ? account->policy->ColdestSpillableIndex() : account->policy->ColdestIndex();
    if (index.has_value() && (!coldest.has_value() || *index < *coldest)) coldest = index;
  }
  return coldest;
}

std::vector<KeyId> EvictionOrder::OtherLanes(const BlockHeader& header) const {
  std::vector<KeyId> ids;
  const auto lanes = lanes_.find(header.ns->digest);
  if (lanes == lanes_.end()) return ids;
  for (const LaneUse& use : lanes->second) {
    if (use.lane != header.lane) ids.push_back(MakeKeyId(header.ns->digest, use.lane, header.key));
  }
  return ids;
}

std::size_t EvictionOrder::memory_bytes() const {
  std::size_t bytes = 0;
  for (const TenantAccount* account : accounts_) bytes += account->policy->memory_bytes();
  return bytes;
}

}  // namespace kvfabric
