#include "agent/cluster/directory.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

namespace {

constexpr std::size_t kFirstCapacity = 64;
constexpr std::size_t kEntryBytes = 32;

std::size_t MaxEntriesPerShard(std::size_t max_bytes, std::size_t shards) {
  std::size_t entries = kFirstCapacity;
  while (entries * 2 * kEntryBytes * shards <= max_bytes) entries *= 2;
  return entries;
}

}  // namespace

bool Directory::Holders::Has(NodeIndex node) const {
  return std::find(nodes.begin(), nodes.begin() + count, node) != nodes.begin() + count;
}

void Directory::Holders::Add(NodeIndex node) {
  if (count < kHoldersPerEntry && !Has(node)) nodes[count++] = node;
}

void Directory::Holders::Remove(NodeIndex node) {
  const auto end = std::remove(nodes.begin(), nodes.begin() + count, node);
  count = static_cast<std::uint8_t>(end - nodes.begin());
}

Directory::Directory(Options options)
    : max_entries_per_shard_(MaxEntriesPerShard(options.max_bytes, kShards)),
      shards_(std::make_unique<Shard[]>(kShards)),
      holders_(std::make_unique<std::atomic<std::uint32_t>[]>(kMaxHolders)) {
  for (std::size_t holder = kMaxHolders - 1; holder > kNoHolder; --holder) {
    free_holders_.push_back(static_cast<HolderId>(holder));
  }
}

Directory::~Directory() = default;

HolderId Directory::OpenHolder(NodeIndex node) {
  if (free_holders_.empty()) return kNoHolder;
  const HolderId holder = free_holders_.back();
  free_holders_.pop_back();
  holders_[holder].store(node | kLive, std::memory_order_release);
  return holder;
}

void Directory::RetireHolder(HolderId holder) {
  if (holder == kNoHolder) return;
  holders_[holder].store(0, std::memory_order_release);
  retired_holders_.push_back(holder);
}

NodeIndex Directory::NodeOf(HolderId holder) const {
  const std::uint32_t value = holders_[holder].load(std::memory_order_acquire);
  return (value & kLive) != 0 ? static_cast<NodeIndex>(value & 0xFFFFU) : kNoNode;
}

void Directory::DropDeadHolders(Entry& entry) const {
  const auto end = std::remove_if(entry.holders.begin(), entry.holders.end(), [this](HolderId h) {
    return h == kNoHolder || NodeOf(h) == kNoNode;
  });
  std::fill(end, entry.holders.end(), kNoHolder);
}

Directory::Holders Directory::HoldersOf(const Entry& entry) const {
  Holders holders;
  for (const HolderId holder : entry.holders) {
    if (holder == kNoHolder) break;
    if (const NodeIndex node = NodeOf(holder); node != kNoNode) holders.Add(node);
  }
  return holders;
}

std::size_t Directory::Probe(const Shard& shard, const KeyId& id) const {
  const std::size_t mask = shard.table.size() - 1;
  std::size_t at = id.hash() & mask;
  while (shard.table[at].used() && shard.table[at].id != id) at = (at + 1) & mask;
  return at;
}

void Directory::Erase(Shard& shard, std::size_t at) {
  const std::size_t mask = shard.table.size() - 1;
  std::size_t hole = at;
  // Later members of the cluster move up, so that no search stops early at the hole.
  for (std::size_t next = (hole + 1) & mask; shard.table[next].used(); next = (next + 1) & mask) {
    const std::size_t home = shard.table[next].id.hash() & mask;
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    shard.table[hole] = shard.table[next];
    hole = next;
  }
  shard.table[hole] = Entry{};
  --shard.used;
}

void Directory::Grow(Shard& shard, std::size_t capacity) {
  std::vector<Entry> old(capacity);
  old.swap(shard.table);
  for (const Entry& entry : old) {
    if (entry.used()) shard.table[Probe(shard, entry.id)] = entry;
  }
}

void Directory::MakeRoom(Shard& shard) {
  if (shard.table.empty()) {
    Grow(shard, kFirstCapacity);
    return;
  }
  if ((shard.used + 1) * 4 <= shard.table.size() * 3) return;
  if (shard.table.size() < max_entries_per_shard_) {
    Grow(shard, shard.table.size() * 2);
    return;
  }
  const std::size_t mask = shard.table.size() - 1;
  while (!shard.table[shard.hand].used()) shard.hand = (shard.hand + 1) & mask;
  Erase(shard, shard.hand);
  shard.hand = (shard.hand + 1) & mask;
  ++shard.shed;
}

bool Directory::Add(const KeyId& id, std::uint32_t slot, HolderId holder) {
  const NodeIndex node = NodeOf(holder);
  if (node == kNoNode) return false;
  Shard& shard = ShardOf(id);
  MutexLock lock(shard.mu);
  std::size_t at = 0;
  if (!shard.table.empty()) at = Probe(shard, id);
  if (shard.table.empty() || !shard.table[at].used()) {
    MakeRoom(shard);
    at = Probe(shard, id);
    shard.table[at] = Entry{id, slot, {holder}};
    ++shard.used;
    return false;
  }
  Entry& entry = shard.table[at];
  entry.slot = slot;
  DropDeadHolders(entry);
  bool other = false;
  bool placed = false;
  for (HolderId& known : entry.holders) {
    if (known == kNoHolder) {
      if (!placed) known = holder;
      placed = true;
      break;
    }
    if (NodeOf(known) == node) {
      known = holder;
      placed = true;
    } else {
      other = true;
    }
  }
  if (!placed) ++shard.holder_overflows;
  return other;
}

void Directory::Remove(const KeyId& id, NodeIndex node) {
  Shard& shard = ShardOf(id);
  MutexLock lock(shard.mu);
  if (shard.table.empty()) return;
  const std::size_t at = Probe(shard, id);
  Entry& entry = shard.table[at];
  if (!entry.used()) return;
  for (HolderId& known : entry.holders) {
    if (known != kNoHolder && NodeOf(known) == node) known = kNoHolder;
  }
  DropDeadHolders(entry);
  if (!entry.used()) Erase(shard, at);
}

Directory::Holders Directory::Find(const KeyId& id) const {
  const Shard& shard = ShardOf(id);
  MutexLock lock(shard.mu);
  if (shard.table.empty()) return {};
  return HoldersOf(shard.table[Probe(shard, id)]);
}

void Directory::Sweep(const std::vector<bool>& owned) {
  if (owned.empty() && retired_holders_.empty()) return;
  const std::vector<HolderId> dead = std::exchange(retired_holders_, {});
  for (std::size_t index = 0; index < kShards; ++index) {
    Shard& shard = shards_[index];
    MutexLock lock(shard.mu);
    for (std::size_t at = 0; at < shard.table.size();) {
      Entry& entry = shard.table[at];
      if (!entry.used()) {
        ++at;
        continue;
      }
      const bool foreign = !owned.empty() && (entry.slot >= owned.size() || !owned[entry.slot]);
      if (!foreign) DropDeadHolders(entry);
      if (foreign || !entry.used()) {
        Erase(shard, at);  // the hole may be filled from behind: look at this place again
      } else {
        ++at;
      }
    }
  }
  free_holders_.insert(free_holders_.end(), dead.begin(), dead.end());
}

std::vector<Directory::Listing> Directory::EntriesOf(NodeIndex node,
                                                     std::size_t max_entries) const {
  std::vector<Listing> found;
  for (std::size_t index = 0; index < kShards && found.size() < max_entries; ++index) {
    const Shard& shard = shards_[index];
    MutexLock lock(shard.mu);
    for (const Entry& entry : shard.table) {
      if (!entry.used()) continue;
      const Holders holders = HoldersOf(entry);
      if (!holders.Has(node)) continue;
      found.push_back({entry.id, entry.slot, holders});
      if (found.size() == max_entries) break;
    }
  }
  return found;
}

Directory::Counts Directory::counts() const {
  Counts counts;
  for (std::size_t index = 0; index < kShards; ++index) {
    const Shard& shard = shards_[index];
    MutexLock lock(shard.mu);
    counts.entries += shard.used;
    counts.bytes += shard.table.size() * sizeof(Entry);
    counts.shed += shard.shed;
    counts.holder_overflows += shard.holder_overflows;
  }
  return counts;
}

}  // namespace kvfabric
