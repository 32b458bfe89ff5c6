#pragma once

// KVCachePool in C++: what api/crd/kvcachepools.yaml says, with units in names and defaults filled
// in. Values.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "operator/kube/api_error.h"
#include "operator/kube/conditions.h"
#include "operator/kube/object.h"

namespace kvfabric {

enum class TierType : std::uint8_t { kGpu, kDram, kNvme, kObject };
std::string_view TierTypeName(TierType type);

struct TierSpec {
  std::string name;
  TierType type = TierType::kDram;
  std::uint64_t capacity_bytes = 0;  // per node
  std::uint32_t high_watermark_percent = 90;
  std::uint32_t low_watermark_percent = 80;
  std::string eviction_policy = "ReuseAware";
  bool drain = false;
};

struct LabelSelectorRequirement {
  std::string key;
  std::string op;  // In, NotIn, Exists, DoesNotExist
  std::vector<std::string> values;
};
struct LabelSelector {
  std::map<std::string, std::string> match_labels;
  std::vector<LabelSelectorRequirement> match_expressions;
};

struct Toleration {
  std::string key;
  std::string op = "Equal";
  std::string value;
  std::string effect;  // "" = all
};

struct DomainSpec {
  std::vector<std::string> models;            // empty = any
  std::optional<std::uint32_t> block_tokens;  // unset = any
  std::string hash_algorithm;                 // "" = any
  std::string hash_seed;
  bool operator==(const DomainSpec&) const = default;
};
struct PlacementSpec {
  std::map<std::string, std::string> node_selector;
  std::vector<Toleration> tolerations;
  std::uint32_t min_nodes = 1;
};
struct ShardingSpec {
  std::uint32_t slots = 16'384;
  std::uint32_t replicas = 1;
  bool acks_replicated = false;
  std::string failure_domain_key = "topology.kubernetes.io/zone";
  std::string algorithm = "StickyQuota";
  bool weighted_by_capacity = true;
  bool locality_spread = false;
};
struct RebalanceSpec {
  std::string mode = "Automatic";
  std::chrono::milliseconds node_loss_grace{300'000};
  std::chrono::milliseconds join_warmup{60'000};
  std::uint32_t join_ramp_percent = 10;
  std::uint32_t max_concurrent_migrations = 4;
  std::uint64_t bandwidth_limit_bytes_per_s = std::uint64_t{1} << 30U;
  std::string data_movement = "Lazy";
  bool drain_on_cordon = true;
  std::chrono::milliseconds drain_timeout{600'000};
};
struct TenantSpec {
  std::string name;
  std::vector<std::string> namespaces;
  std::map<std::string, std::uint64_t> quota_bytes;  // by tier name, per node
  std::string token_secret;
  std::string token_key = "token";
};
struct TenancySpec {
  std::string mode = "Namespace";
  bool require_salt = false;
  std::vector<TenantSpec> tenants;
};
struct SecuritySpec {
  std::string transport = "MTLS";
  std::string encryption_at_rest = "None";
  std::string encryption_key_secret;
};
struct AccessSpec {
  std::optional<LabelSelector> pod_selector;
  std::optional<LabelSelector> namespace_selector;
  std::string injection = "Webhook";
  std::string wiring = "Auto";
  std::string connector = "VLLM";
  bool fail_open = true;
  std::chrono::milliseconds lookup_deadline{50};
  std::optional<std::chrono::milliseconds> load_deadline;
};
struct EventsSpec {
  bool enabled = false;
  std::string schema = "Map";
  std::string identity = "EnginePod";
  std::string nvme_medium = "STORAGE";
};

struct PoolSpec {
  DomainSpec domain;
  std::vector<TierSpec> tiers;
  std::string codec = "Identity";
  bool allow_lossy = false;
  PlacementSpec placement;
  ShardingSpec sharding;
  RebalanceSpec rebalance;
  TenancySpec tenancy;
  SecuritySpec security;
  AccessSpec access;
  EventsSpec events;
  bool paused = false;

  const TierSpec* Tier(TierType type) const;
};

// What .status says. Times are RFC 3339 texts, "" = not set.
struct TierStatus {
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::string used;  // "12%"
  std::uint64_t blocks = 0;
  bool operator==(const TierStatus&) const = default;
};
struct MemberCounts {
  std::uint32_t desired = 0;
  std::uint32_t ready = 0;
  std::uint32_t recovering = 0;
  std::uint32_t draining = 0;
  std::uint32_t lost = 0;
  bool operator==(const MemberCounts&) const = default;
};
struct SlotCounts {
  std::uint32_t total = 0;
  std::uint32_t assigned = 0;
  std::uint32_t migrating = 0;
  std::uint32_t under_replicated = 0;
  bool operator==(const SlotCounts&) const = default;
};
// Moves that wait for a person, or that go on since one said yes.
struct ProposalStatus {
  std::string id;
  std::string reason;
  std::uint64_t slots = 0;  // copies of slots that change hands
  std::uint64_t bytes = 0;
  std::uint64_t eta_seconds = 0;
  std::string created_at;
  bool approved = false;
  bool operator==(const ProposalStatus&) const = default;
};
struct RebalanceStatus {
  std::string state;  // Idle, Moving, Waiting, Paused
  std::string reason;
  std::string started_at;
  std::uint64_t slots_moved = 0;
  std::uint64_t slots_remaining = 0;
  std::uint64_t bytes_moved = 0;
  ProposalStatus proposal;    // id "" = none
  std::string last_approved;  // id of the one that was carried out last
  bool operator==(const RebalanceStatus&) const = default;
};
struct NodeLossStatus {
  std::string node;  // "" = none yet
  std::string at;
  std::uint32_t slots_lost = 0;
  std::string recovered_at;
  bool operator==(const NodeLossStatus&) const = default;
};
// A node that failed several times of late.
struct UnstableNodeStatus {
  std::string node;
  std::uint32_t failures = 0;
  std::string held_until;  // before this it gets no slots once it was lost
  bool operator==(const UnstableNodeStatus&) const = default;
};
inline constexpr std::size_t kMaxUnstableNodes = 16;
struct PoolStatus {
  std::int64_t observed_generation = 0;
  std::vector<kube::Condition> conditions;
  std::uint64_t epoch = 0;
  std::string shard_map_name;
  MemberCounts members;
  SlotCounts slots;
  std::vector<TierStatus> tiers;
  std::string hit_ratio;
  RebalanceStatus rebalance;
  NodeLossStatus last_node_loss;
  std::vector<UnstableNodeStatus> unstable_nodes;
  bool operator==(const PoolStatus&) const = default;
};

// What people write on a pool: the id of a proposal, and nodes that are gone for good.
inline constexpr const char* kApproveAnnotation = "kvfabric.io/approve";
inline constexpr const char* kConfirmLossAnnotation = "kvfabric.io/confirm-loss";

struct Pool {
  kube::ObjectMeta meta;
  PoolSpec spec;      // meaningful when faults is empty
  PoolStatus status;  // as stored
  std::vector<kube::Cause> faults;
};

// Never fails for what people can write: faults go into the pool, all of them. Fails when the
// object is no KVCachePool at all.
Result<Pool> DecodePool(const kube::Object& object);

// The object with this status, to be written with UpdateStatus.
Result<std::string> WithStatus(const kube::ObjectMeta& meta, const PoolStatus& status);

// What the schema allows and this version does not do yet, with what to write instead.
std::vector<kube::Cause> NotBuilt(const PoolSpec& spec);
// What runs as something simpler than it says; for people, not a fault.
std::vector<std::string> Simplifications(const PoolSpec& spec);

}  // namespace kvfabric
