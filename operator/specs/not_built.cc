// What a pool may ask for and this version does not do: refused as a whole, or run as something
// simpler and said so. Shrinks with every part that is built.

#include "operator/specs/pool_spec.h"

namespace kvfabric {
namespace {

void Refuse(std::vector<kube::Cause>* out, std::string field, const std::string& value,
            const std::string& instead) {
  out->push_back({std::move(field), "\"" + value + "\": not built yet in this version; write " +
                                        instead + " instead"});
}

}  // namespace

std::vector<kube::Cause> NotBuilt(const PoolSpec& spec) {
  std::vector<kube::Cause> out;
  for (std::size_t i = 0; i < spec.tiers.size(); ++i) {
    const TierSpec& tier = spec.tiers[i];
    const std::string path = "spec.tiers[" + std::to_string(i) + "]";
    if (tier.type != TierType::kDram) {
      Refuse(&out, path + ".type", std::string(TierTypeName(tier.type)), "DRAM");
    }
    if (tier.eviction_policy != "ReuseAware" && tier.eviction_policy != "LRU") {
      Refuse(&out, path + ".evictionPolicy", tier.eviction_policy, "LRU");
    }
    if (tier.drain) Refuse(&out, path + ".drain", "true", "false");
  }
  const auto need = [&](const char* field, const std::string& value, const char* built) {
    if (value != built) Refuse(&out, field, value, built);
  };
  need("spec.codec", spec.codec, "Identity");
  if (spec.rebalance.data_movement == "Eager") {
    Refuse(&out, "spec.rebalance.dataMovement", "Eager", "Lazy");
  }
  if (spec.tenancy.mode == "Salt" || spec.tenancy.mode == "Both") {
    Refuse(&out, "spec.tenancy.mode", spec.tenancy.mode, "Namespace");
  }
  need("spec.security.encryptionAtRest", spec.security.encryption_at_rest, "None");
  if (spec.events.enabled) Refuse(&out, "spec.events.enabled", "true", "false");
  return out;
}

std::vector<std::string> Simplifications(const PoolSpec& spec) {
  std::vector<std::string> out;
  for (const TierSpec& tier : spec.tiers) {
    if (tier.eviction_policy == "ReuseAware") {
      out.push_back("tier " + tier.name + ": ReuseAware runs as leaf-first LRU");
    }
  }
  // Taken and kept, not in force yet. A default that does nothing is not worth a word.
  const auto idle = [&](bool written, const char* text) {
    if (written) out.emplace_back(text);
  };
  const PoolSpec plain{};
  idle(spec.access.lookup_deadline != plain.access.lookup_deadline,
       "access.lookupDeadline is not in force: each look-up has the deadline its client gives");
  idle(spec.access.load_deadline.has_value(),
       "access.loadDeadline is not in force: each read has the deadline its client gives");
  idle(spec.rebalance.max_concurrent_migrations != plain.rebalance.max_concurrent_migrations,
       "rebalance.maxConcurrentMigrations is not in force: bandwidthLimit bounds what moves");
  idle(!(spec.domain == plain.domain),
       "domain is not in force: any engine with a tenant's token may join, and fingerprints keep "
       "models apart");
  return out;
}

}  // namespace kvfabric
