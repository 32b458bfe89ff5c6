#include "operator/specs/cel_rules.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "operator/specs/quantity.h"

namespace kvfabric {
namespace {

using kube::Find;
using kube::Json;
using kube::StringAt;

constexpr std::uint64_t kPebibyte = 1ULL << 50U;

std::int64_t IntegerAt(const Json& object, std::string_view key) {
  const Json* value = Find(object, key);
  return value != nullptr && value->is_number_integer() ? value->get<std::int64_t>() : 0;
}
bool BooleanAt(const Json& object, std::string_view key) {
  const Json* value = Find(object, key);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}
const Json& ObjectAt(const Json& object, std::string_view key) {
  static const Json kEmpty = Json::object();
  const Json* value = Find(object, key);
  return value != nullptr ? *value : kEmpty;
}

// quantity(string(self)): an integer is taken as its digits. A negative one is no quantity of
// ours, which is less than any; what overflows is more than any.
std::optional<std::uint64_t> QuantityOf(const Json& value) {
  return ParseQuantity(value.is_string() ? value.get<std::string>() : value.dump());
}
bool IsNegative(const Json& value) {
  return value.is_number_integer() && !value.is_number_unsigned() && value.get<std::int64_t>() < 0;
}
bool AboveZero(const Json& self, const Json* /*old*/) {
  return !IsNegative(self) && QuantityOf(self).value_or(1) > 0;
}
bool BelowPebibyte(const Json& self, const Json* /*old*/) {
  return IsNegative(self) || QuantityOf(self).value_or(kPebibyte) < kPebibyte;
}

template <std::int64_t LowMs, std::int64_t HighMs>
bool DurationWithin(const Json& self, const Json* /*old*/) {
  const auto duration = ParseDuration(self.get_ref<const std::string&>());
  return duration.has_value() && *duration >= std::chrono::milliseconds(LowMs) &&
         *duration <= std::chrono::milliseconds(HighMs);
}

bool Unchanged(const Json& self, const Json* old) { return old == nullptr || self == *old; }

bool LossyIsAllowed(const Json& spec, const Json* /*old*/) {
  const std::string codec = StringAt(spec, "codec");
  return BooleanAt(spec, "allowLossy") || codec == "Identity" || codec == "Lossless";
}

bool ClearWiringIsAllowed(const Json& spec, const Json* /*old*/) {
  return StringAt(ObjectAt(spec, "access"), "wiring") != "TCP" ||
         StringAt(ObjectAt(spec, "security"), "transport") == "Disabled";
}

bool QuotasNameTiers(const Json& spec, const Json* /*old*/) {
  std::set<std::string> tiers;
  for (const Json& tier : ObjectAt(spec, "tiers")) tiers.insert(StringAt(tier, "name"));
  for (const Json& tenant : ObjectAt(ObjectAt(spec, "tenancy"), "tenants")) {
    for (const auto& [tier, amount] : ObjectAt(tenant, "quota").items()) {
      if (tiers.count(tier) == 0) return false;
    }
  }
  return true;
}

bool HoldsBytes(const Json& tiers, const Json* /*old*/) {
  return std::any_of(tiers.begin(), tiers.end(), [](const Json& tier) {
    return StringAt(tier, "type") == "DRAM" || StringAt(tier, "type") == "NVMe";
  });
}

bool TypesAreDistinct(const Json& tiers, const Json* /*old*/) {
  std::set<std::string> seen;
  return std::all_of(tiers.begin(), tiers.end(),
                     [&](const Json& tier) { return seen.insert(StringAt(tier, "type")).second; });
}

bool TypesAreSorted(const Json& tiers, const Json* /*old*/) {
  constexpr std::array<std::string_view, 4> kOrder = {"GPU", "DRAM", "NVMe", "Object"};
  const auto rank = [&](const Json& tier) {
    return std::find(kOrder.begin(), kOrder.end(), StringAt(tier, "type")) - kOrder.begin();
  };
  return std::is_sorted(tiers.begin(), tiers.end(),
                        [&](const Json& a, const Json& b) { return rank(a) < rank(b); });
}

bool RemovedTiersAreDrained(const Json& tiers, const Json* old) {
  if (old == nullptr) return true;
  return std::all_of(old->begin(), old->end(), [&](const Json& before) {
    return BooleanAt(before, "drain") ||
           std::any_of(tiers.begin(), tiers.end(), [&](const Json& now) {
             return StringAt(now, "name") == StringAt(before, "name") &&
                    StringAt(now, "type") == StringAt(before, "type");
           });
  });
}

bool ObjectBelongsToObjectTier(const Json& tier, const Json* /*old*/) {
  return (StringAt(tier, "type") == "Object") == (Find(tier, "object") != nullptr);
}

bool LowIsBelowHigh(const Json& tier, const Json* /*old*/) {
  return IntegerAt(tier, "lowWatermarkPercent") < IntegerAt(tier, "highWatermarkPercent");
}

bool AcksHaveReplicas(const Json& sharding, const Json* /*old*/) {
  return StringAt(sharding, "acks") != "Replicated" || IntegerAt(sharding, "replicas") > 1;
}

bool SaltIsPossible(const Json& tenancy, const Json* /*old*/) {
  const std::string mode = StringAt(tenancy, "mode");
  return !BooleanAt(tenancy, "requireSalt") || mode == "Salt" || mode == "Both";
}

bool NamespacesHaveOneTenant(const Json& tenants, const Json* /*old*/) {
  std::set<std::string> seen;
  for (const Json& tenant : tenants) {
    for (const Json& ns : ObjectAt(tenant, "namespaces")) {
      if (!seen.insert(ns.get<std::string>()).second) return false;
    }
  }
  return true;
}

bool NoTenantIsAdmin(const Json& tenants, const Json* /*old*/) {
  return std::none_of(tenants.begin(), tenants.end(),
                      [](const Json& tenant) { return StringAt(tenant, "name") == "admin"; });
}

bool EncryptionHasAKey(const Json& security, const Json* /*old*/) {
  return StringAt(security, "encryptionAtRest") == "None" ||
         Find(security, "encryptionKeySecretRef") != nullptr;
}

bool EpochGrows(const Json& spec, const Json* old) {
  return old == nullptr || IntegerAt(spec, "epoch") >= IntegerAt(*old, "epoch");
}
bool TermGrows(const Json& spec, const Json* old) {
  return old == nullptr || IntegerAt(spec, "term") >= IntegerAt(*old, "term");
}
bool ChangeHasANewEpoch(const Json& spec, const Json* old) {
  return old == nullptr || IntegerAt(spec, "epoch") > IntegerAt(*old, "epoch") ||
         (ObjectAt(spec, "table") == ObjectAt(*old, "table") &&
          ObjectAt(spec, "members") == ObjectAt(*old, "members"));
}
bool TableIsWhole(const Json& spec, const Json* /*old*/) {
  const std::int64_t bytes = IntegerAt(spec, "slotCount") * IntegerAt(spec, "owners") * 2;
  const std::size_t size = StringAt(spec, "table").size();
  return static_cast<std::int64_t>(size) == (bytes + 2) / 3 * 4;
}

struct Row {
  std::string_view text;
  CelRule check;
};
constexpr std::int64_t kSecondMs = 1'000;
constexpr std::int64_t kMinuteMs = 60 * kSecondMs;
constexpr std::int64_t kDayMs = 24 * 60 * kMinuteMs;
constexpr std::array<Row, 24> kRules = {{
    {"self == oldSelf", Unchanged},
    {"quantity(string(self)).isGreaterThan(quantity('0'))", AboveZero},
    {"quantity(string(self)).isLessThan(quantity('1Pi'))", BelowPebibyte},
    {"duration(self) >= duration('1s') && duration(self) <= duration('24h')",
     DurationWithin<kSecondMs, kDayMs>},
    {"duration(self) <= duration('24h')", DurationWithin<0, kDayMs>},
    {"duration(self) >= duration('1ms') && duration(self) <= duration('60s')",
     DurationWithin<1, kMinuteMs>},
    {"self.allowLossy || self.codec in ['Identity', 'Lossless']", LossyIsAllowed},
    {"self.access.wiring != 'TCP' || self.security.transport == 'Disabled'", ClearWiringIsAllowed},
    {"self.tenancy.tenants.all(t, !has(t.quota) || t.quota.all(k, self.tiers.exists(x, x.name == "
     "k)))",
     QuotasNameTiers},
    {"self.exists(t, t.type == 'DRAM' || t.type == 'NVMe')", HoldsBytes},
    {"self.all(t, self.exists_one(o, o.type == t.type))", TypesAreDistinct},
    {"self.map(t, t.type == 'GPU' ? 0 : t.type == 'DRAM' ? 1 : t.type == 'NVMe' ? 2 : "
     "3).isSorted()",
     TypesAreSorted},
    {"oldSelf.all(o, o.drain || self.exists(n, n.name == o.name && n.type == o.type))",
     RemovedTiersAreDrained},
    {"(self.type == 'Object') == has(self.object)", ObjectBelongsToObjectTier},
    {"self.lowWatermarkPercent < self.highWatermarkPercent", LowIsBelowHigh},
    {"self.acks != 'Replicated' || self.replicas > 1", AcksHaveReplicas},
    {"!self.requireSalt || self.mode in ['Salt', 'Both']", SaltIsPossible},
    {"self.all(a, a.namespaces.all(n, self.exists_one(b, n in b.namespaces)))",
     NamespacesHaveOneTenant},
    {"!self.exists(t, t.name == 'admin')", NoTenantIsAdmin},
    {"self.encryptionAtRest == 'None' || has(self.encryptionKeySecretRef)", EncryptionHasAKey},
    {"self.epoch >= oldSelf.epoch", EpochGrows},
    {"self.term >= oldSelf.term", TermGrows},
    {"self.epoch > oldSelf.epoch || (self.table == oldSelf.table && self.members == "
     "oldSelf.members)",
     ChangeHasANewEpoch},
    {"size(self.table) == (self.slotCount * self.owners * 2 + 2) / 3 * 4", TableIsWhole},
}};

}  // namespace

CelRule FindCelRule(std::string_view rule_text) {
  for (const Row& row : kRules) {
    if (row.text == rule_text) return row.check;
  }
  return nullptr;
}

}  // namespace kvfabric
