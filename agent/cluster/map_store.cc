#include "agent/cluster/map_store.h"

#include <charconv>
#include <sstream>
#include <utility>

#include "agent/cluster/durable_file.h"
#include "common/checksum.h"
#include "placement/shard_map_codec.h"

namespace kvfabric {

namespace {

constexpr std::size_t kMaxPoolsBytes = std::size_t{4} << 20U;
constexpr std::size_t kMaxMapBytes = std::size_t{16} << 20U;
constexpr std::string_view kPoolsHeader = "kvfabric-pools 1";

std::string Position(std::uint64_t term, std::uint64_t epoch) {
  return "term " + std::to_string(term) + " epoch " + std::to_string(epoch);
}

void AppendPool(std::ostringstream& out, const PoolSpecForAgent& pool) {
  out << "pool " << pool.uid << "\nname " << pool.name << "\ngeneration " << pool.generation
      << "\ndram_capacity_bytes " << pool.dram_capacity_bytes << "\nhigh_watermark_percent "
      << pool.high_watermark_percent << "\nlow_watermark_percent " << pool.low_watermark_percent
      << "\neviction_policy " << pool.eviction_policy << "\nslots " << pool.slots << "\nreplicas "
      << pool.replicas << "\nacks_replicated " << pool.acks_replicated << "\nlocality_spread "
      << pool.locality_spread << "\nbandwidth_limit_bytes_per_s "
      << pool.bandwidth_limit_bytes_per_s << "\ndrain_timeout_s " << pool.drain_timeout.count()
      << "\nlookup_deadline_ms " << pool.lookup_deadline.count() << "\npaused " << pool.paused
      << '\n';
  for (const TenantQuota& tenant : pool.tenants) {
    out << "tenant " << tenant.dram_bytes << ' ' << tenant.tenant << '\n';
  }
}

std::string HashLine(std::string_view body) {
  std::array<std::byte, 8> hash{};
  StoreLe<std::uint64_t>(hash.data(), Hash64(AsBytes(body)));
  return "checksum " + ToHex(hash) + "\n";
}

template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && stop == text.data() + text.size();
}

bool ParseFlag(std::string_view text, bool* value) {
  *value = text == "1";
  return text == "0" || text == "1";
}

template <typename T>
bool ParseDuration(std::string_view text, T* value) {
  typename T::rep count = 0;
  if (!ParseNumber(text, &count)) return false;
  *value = T(count);
  return true;
}

bool ParseTenant(std::string_view text, std::vector<TenantQuota>* tenants) {
  const std::size_t blank = text.find(' ');
  TenantQuota quota;
  if (blank == std::string_view::npos || !ParseNumber(text.substr(0, blank), &quota.dram_bytes)) {
    return false;
  }
  quota.tenant = std::string(text.substr(blank + 1));
  tenants->push_back(std::move(quota));
  return true;
}

bool ParsePoolLine(std::string_view name, std::string_view value, PoolSpecForAgent* pool) {
  if (name == "name") return pool->name = std::string(value), true;
  if (name == "generation") return ParseNumber(value, &pool->generation);
  if (name == "dram_capacity_bytes") return ParseNumber(value, &pool->dram_capacity_bytes);
  if (name == "high_watermark_percent") return ParseNumber(value, &pool->high_watermark_percent);
  if (name == "low_watermark_percent") return ParseNumber(value, &pool->low_watermark_percent);
  if (name == "eviction_policy") return pool->eviction_policy = std::string(value), true;
  if (name == "slots") return ParseNumber(value, &pool->slots);
  if (name == "replicas") return ParseNumber(value, &pool->replicas);
  if (name == "acks_replicated") return ParseFlag(value, &pool->acks_replicated);
  if (name == "locality_spread") return ParseFlag(value, &pool->locality_spread);
  if (name == "bandwidth_limit_bytes_per_s") {
    return ParseNumber(value, &pool->bandwidth_limit_bytes_per_s);
  }
  if (name == "drain_timeout_s") return ParseDuration(value, &pool->drain_timeout);
  if (name == "lookup_deadline_ms") return ParseDuration(value, &pool->lookup_deadline);
  if (name == "paused") return ParseFlag(value, &pool->paused);
  if (name == "tenant") return ParseTenant(value, &pool->tenants);
  return false;
}

Status PoolsFault(const std::filesystem::path& path, std::string_view cause) {
  return DataLoss(path.string() + ": read: " + std::string(cause) +
                  "; ignored, pools come from the operator");
}

}  // namespace

Status CheckMapFence(const ShardMap* current, const ShardMap& next) {
  if (current == nullptr) return Status::Ok();
  if (current->pool_uid != next.pool_uid) {
    return InvalidArgument("shard map: apply: is of pool " + next.pool_uid + ", not of " +
                           current->pool_uid);
  }
  const bool lower = next.term < current->term || next.epoch < current->epoch;
  const bool same = next.term == current->term && next.epoch == current->epoch;
  if (lower || (same && !(next == *current))) {
    return FailedPrecondition("shard map of pool " + next.pool_uid +
                              ": apply: " + Position(next.term, next.epoch) +
                              (same ? " differs from" : " is older than") + " the applied " +
                              Position(current->term, current->epoch));
  }
  return Status::Ok();
}

Status ValidatePoolUid(const std::string& uid) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (uid.empty() || uid.size() > 128 || uid[0] == '.' ||
      uid.find_first_not_of(kAllowed) != std::string::npos) {
    return InvalidArgument("pool uid '" + uid +
                           "': must be 1..128 of [A-Za-z0-9._-], not starting "
                           "with a dot");
  }
  return Status::Ok();
}

MapStore::MapStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

std::filesystem::path MapStore::PathOfMap(const std::string& pool_uid) const {
  return directory_ / ("map." + pool_uid);
}

Result<StoredPools> MapStore::LoadPools() const {
  const std::filesystem::path path = directory_ / "pools";
  KVF_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadWholeFile(path, kMaxPoolsBytes));
  StoredPools stored;
  if (!text) return stored;
  const std::size_t at = text->rfind("checksum ");
  if (at == std::string::npos || HashLine(text->substr(0, at)) != text->substr(at)) {
    return PoolsFault(path, "checksum does not match");
  }
  std::istringstream lines(text->substr(0, at));
  std::string line;
  if (!std::getline(lines, line) || line != kPoolsHeader)
    return PoolsFault(path, "version unknown");
  while (std::getline(lines, line)) {
    const std::size_t blank = line.find(' ');
    if (blank == std::string::npos) return PoolsFault(path, "line without a value");
    const std::string_view name = std::string_view(line).substr(0, blank);
    const std::string_view value = std::string_view(line).substr(blank + 1);
    if (name == "term") {
      if (!ParseNumber(value, &stored.term)) return PoolsFault(path, "term is no number");
    } else if (name == "pool") {
      stored.pools.emplace_back().uid = std::string(value);
      KVF_RETURN_IF_ERROR(ValidatePoolUid(stored.pools.back().uid));
    } else if (stored.pools.empty() || !ParsePoolLine(name, value, &stored.pools.back())) {
      return PoolsFault(path, "line not understood: " + line);
    }
  }
  return stored;
}

Status MapStore::SavePools(const StoredPools& stored) {
  std::ostringstream out;
  out << kPoolsHeader << "\nterm " << stored.term << '\n';
  for (const PoolSpecForAgent& pool : stored.pools) AppendPool(out, pool);
  const std::string body = out.str();
  return WriteFileDurably(directory_ / "pools", AsBytes(body + HashLine(body)));
}

Result<std::optional<ShardMap>> MapStore::LoadMap(const std::string& pool_uid) const {
  const std::filesystem::path path = PathOfMap(pool_uid);
  KVF_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadWholeFile(path, kMaxMapBytes));
  if (!text) return std::optional<ShardMap>();
  Result<ShardMap> map = ParseShardMap(AsBytes(*text));
  if (!map.ok()) return map.status().WithContext(path.string() + ": read");
  if (map->pool_uid != pool_uid) return DataLoss(path.string() + ": read: is of another pool");
  return std::optional<ShardMap>(std::move(map).value());
}

Status MapStore::SaveMap(const ShardMap& map) {
  KVF_RETURN_IF_ERROR(ValidatePoolUid(map.pool_uid));
  KVF_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, SerializeShardMap(map));
  return WriteFileDurably(PathOfMap(map.pool_uid), bytes);
}

Status MapStore::RemoveMap(const std::string& pool_uid) {
  return RemoveFileDurably(PathOfMap(pool_uid));
}

}  // namespace kvfabric
