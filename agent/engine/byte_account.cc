#include "agent/engine/byte_account.h"

#include <algorithm>

namespace kvfabric {

namespace {

std::uint64_t Percent(std::uint64_t bytes, std::uint32_t percent) {
  return bytes / 100 * percent + bytes % 100 * percent / 100;  // no overflow near 2^64
}

// Adds unless the sum would exceed the limit.
bool AddWithin(std::atomic<std::uint64_t>& sum, std::uint64_t bytes, std::uint64_t limit) {
  std::uint64_t now = sum.load(std::memory_order_relaxed);
  do {
    if (bytes > limit || now > limit - bytes) return false;
  } while (!sum.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
  return true;
}

}  // namespace

void ByteAccount::SetLimits(std::uint64_t capacity_bytes, std::uint32_t high_percent,
                            std::uint32_t low_percent) {
  capacity_.store(capacity_bytes, std::memory_order_relaxed);
  high_.store(Percent(capacity_bytes, high_percent), std::memory_order_relaxed);
  low_.store(Percent(capacity_bytes, low_percent), std::memory_order_relaxed);
}

ByteAccount::Shortage ByteAccount::Take(TenantAccount& tenant, std::uint64_t bytes,
                                        bool transient) {
  const std::uint64_t quota = tenant.quota_bytes.load(std::memory_order_relaxed);
  if (!AddWithin(tenant.used_bytes, bytes, quota == 0 ? UINT64_MAX : quota)) {
    return Shortage::kQuota;
  }
  if (!AddWithin(used_, bytes, capacity())) {
    tenant.used_bytes.fetch_sub(bytes, std::memory_order_relaxed);
    return Shortage::kCapacity;
  }
  if (transient && !AddWithin(transient_, bytes, Percent(capacity(), kTransientPercent))) {
    GiveBack(tenant, bytes, false);
    return Shortage::kTransient;
  }
  return Shortage::kNone;
}

void ByteAccount::GiveBack(TenantAccount& tenant, std::uint64_t bytes, bool transient) {
  if (transient) EndTransient(bytes);
  used_.fetch_sub(bytes, std::memory_order_relaxed);
  tenant.used_bytes.fetch_sub(bytes, std::memory_order_relaxed);
}

void ByteAccount::EndTransient(std::uint64_t bytes) {
  transient_.fetch_sub(bytes, std::memory_order_relaxed);
}

bool ByteAccount::TakeSpill(std::uint64_t bytes) {
  return AddWithin(pending_spill_, bytes, Percent(capacity(), kSpillPercent));
}

bool ByteAccount::SpillFull(std::uint64_t bytes) const {
  return pending_spill() + bytes > Percent(capacity(), kSpillPercent);
}

std::uint64_t ByteAccount::pinned() const {
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(pinned_.load(std::memory_order_relaxed), 0));
}

std::uint64_t ByteAccount::resident() const {
  const std::uint64_t elsewhere = transient() + pending_spill();
  const std::uint64_t all = used();
  return all - std::min(all, elsewhere);
}

}  // namespace kvfabric
