// The rules of server-side apply.

#include <nlohmann/json.hpp>

#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "tests/operator/kube_conformance.h"

namespace kvfabric::kube {
namespace {

Json Root(const ObjectPtr& object) { return *ParseJson(object->json); }

ApplyOptions By(const std::string& manager, bool force = false, bool status = false) {
  return {manager, force, status};
}

// Names of the managers that own something of the object, in the order they are kept in.
std::string Managers(const ObjectPtr& object) {
  std::string out;
  const Json root = Root(object);
  const Json* list = Find(root["metadata"], "managedFields");
  if (list == nullptr) return out;
  for (const Json& entry : *list) {
    out +=
        (out.empty() ? "" : " ") + StringAt(entry, "manager") + "/" + StringAt(entry, "operation");
  }
  return out;
}

}  // namespace

TEST_P(KubeConformance, ApplyCreatesAndTwiceIsOnce) {
  const std::string config = Pool("p", R"(,"labels":{"l":"v"})", R"(,"paused":true)");
  const auto made = api().Apply(Kind::kPool, config, By("one"));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ((*made)->meta.generation, 1);
  EXPECT_EQ((*made)->meta.labels.at("l"), "v");
  EXPECT_EQ(Root(*made)["spec"]["sharding"]["slots"], 16384) << "defaults are filled in";
  EXPECT_EQ(Managers(*made), "one/Apply");
  const auto again = api().Apply(Kind::kPool, config, By("one"));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ((*again)->meta.resource_version, (*made)->meta.resource_version);
}

TEST_P(KubeConformance, ApplyKeepsManagersInTheFormOfTheApi) {
  const auto made = api().Apply(
      Kind::kPool, Pool("p", R"(,"labels":{"l":"v"})", R"(,"domain":{"models":["m"]})"), By("one"));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const Json entries = Root(*made)["metadata"]["managedFields"];
  ASSERT_EQ(entries.size(), 1U) << entries.dump();
  const Json& entry = entries[0];
  EXPECT_EQ(StringAt(entry, "manager"), "one");
  EXPECT_EQ(StringAt(entry, "operation"), "Apply");
  EXPECT_EQ(StringAt(entry, "apiVersion"), "kvfabric.io/v1alpha1");
  EXPECT_EQ(StringAt(entry, "fieldsType"), "FieldsV1");
  EXPECT_FALSE(StringAt(entry, "time").empty());
  const Json none = Json::object();
  const Json expected = {
      {"f:metadata", {{"f:labels", {{"f:l", none}}}}},
      {"f:spec",
       {{"f:domain", {{"f:models", {{R"(v:"m")", none}}}}},
        {"f:tiers",
         {{R"(k:{"name":"dram"})",
           {{".", none}, {"f:name", none}, {"f:type", none}, {"f:capacityPerNode", none}}}}}}}};
  EXPECT_EQ(entry["fieldsV1"], expected) << entry["fieldsV1"].dump(1);
}

TEST_P(KubeConformance, ApplyOfAnothersFieldConflicts) {
  ASSERT_TRUE(api().Apply(Kind::kPool, Pool("p", "", R"(,"paused":true)"), By("one")).ok());
  const auto refused = api().Apply(Kind::kPool, Pool("p", "", R"(,"paused":false)"), By("two"));
  ASSERT_TRUE(IsConflict(refused.status())) << refused.status().ToString();
  EXPECT_TRUE(IsFieldConflict(refused.status()));
  EXPECT_NE(refused.status().message().find("\"one\""), std::string::npos)
      << refused.status().message();
  EXPECT_NE(refused.status().message().find(".spec.paused"), std::string::npos)
      << refused.status().message();
  const auto shared = api().Apply(Kind::kPool, Pool("p", "", R"(,"paused":true)"), By("two"));
  ASSERT_TRUE(shared.ok()) << "the same value is shared: " << shared.status().ToString();
  const auto forced =
      api().Apply(Kind::kPool, Pool("p", "", R"(,"paused":false)"), By("two", true));
  ASSERT_TRUE(forced.ok()) << forced.status().ToString();
  EXPECT_EQ(Root(*forced)["spec"]["paused"], false);
  EXPECT_TRUE(IsFieldConflict(
      api().Apply(Kind::kPool, Pool("p", "", R"(,"paused":true)"), By("one")).status()))
      << "it is the other's now";
}

TEST_P(KubeConformance, ApplyRemovesWhatOnlyItsManagerHad) {
  const auto config = [&](const std::string& data) { return ConfigMap("a", data); };
  ASSERT_TRUE(
      api().Apply(Kind::kConfigMap, config(R"({"x":"1","y":"1","z":"1"})"), By("one")).ok());
  ASSERT_TRUE(api().Apply(Kind::kConfigMap, config(R"({"y":"1","o":"2"})"), By("two")).ok());
  const auto left = api().Apply(Kind::kConfigMap, config(R"({"z":"1"})"), By("one"));
  ASSERT_TRUE(left.ok()) << left.status().ToString();
  EXPECT_EQ(Root(*left)["data"], Json({{"y", "1"}, {"z", "1"}, {"o", "2"}}));
}

TEST_P(KubeConformance, ApplyMergesListsByTheirKeys) {
  const auto tiers = [&](const std::string& list) {
    std::string pool = Pool("p");
    const std::string_view bare = R"([{"name":"dram","type":"DRAM","capacityPerNode":"64Mi"}])";
    return pool.replace(pool.find(bare), bare.size(), list);
  };
  const std::string dram = R"({"name":"dram","type":"DRAM","capacityPerNode":"64Mi"})";
  const std::string disk = R"({"name":"disk","type":"NVMe","capacityPerNode":"1Gi"})";
  ASSERT_TRUE(api().Apply(Kind::kPool, tiers("[" + dram + "]"), By("one")).ok());
  const auto both = api().Apply(Kind::kPool, tiers("[" + disk + "]"), By("two"));
  ASSERT_TRUE(both.ok()) << both.status().ToString();
  ASSERT_EQ(Root(*both)["spec"]["tiers"].size(), 2U);
  const std::string refitted =
      R"({"name":"dram","type":"DRAM","capacityPerNode":"32Mi","lowWatermarkPercent":50})";
  const auto changed = api().Apply(Kind::kPool, tiers("[" + refitted + "]"), By("one"));
  ASSERT_TRUE(changed.ok()) << changed.status().ToString();
  EXPECT_EQ(Root(*changed)["spec"]["tiers"][0]["capacityPerNode"], "32Mi");
  const auto again = api().Apply(Kind::kPool, tiers("[" + dram + "]"), By("one"));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(Root(*again)["spec"]["tiers"][0]["lowWatermarkPercent"], 80) << "the default again";
  const std::string emptied =
      R"({"name":"disk","type":"NVMe","capacityPerNode":"1Gi","drain":true})";
  ASSERT_TRUE(api().Apply(Kind::kPool, tiers("[" + emptied + "]"), By("two")).ok());
  const auto without = api().Apply(Kind::kPool, tiers("[]"), By("two"));
  ASSERT_TRUE(without.ok()) << without.status().ToString();
  const Json left = Root(*without)["spec"]["tiers"];
  ASSERT_EQ(left.size(), 1U) << left.dump();
  EXPECT_EQ(StringAt(left[0], "name"), "dram");
}

TEST_P(KubeConformance, UpdatesByOthersTakeFields) {
  ASSERT_TRUE(
      api().Apply(Kind::kConfigMap, ConfigMap("a", R"({"x":"1","y":"1"})"), By("one")).ok());
  ASSERT_TRUE(api()
                  .Patch(Kind::kConfigMap, Name("a"), PatchType::kMerge,
                         R"({"data":{"x":"2","n":"1"}})", false)
                  .ok());
  const auto refused =
      api().Apply(Kind::kConfigMap, ConfigMap("a", R"({"x":"1","y":"1"})"), By("one"));
  EXPECT_TRUE(IsFieldConflict(refused.status())) << refused.status().ToString();
  const auto given_up = api().Apply(Kind::kConfigMap, ConfigMap("a", R"({"y":"1"})"), By("one"));
  ASSERT_TRUE(given_up.ok()) << given_up.status().ToString();
  EXPECT_EQ(Root(*given_up)["data"], Json({{"x", "2"}, {"y", "1"}, {"n", "1"}}))
      << "what another changed stays";
}

TEST_P(KubeConformance, WhatWasThereBeforeTheFirstApplyIsSomeonesElse) {
  ASSERT_TRUE(api().Create(Kind::kConfigMap, ConfigMap("a", R"({"x":"1","y":"1"})")).ok());
  EXPECT_TRUE(IsFieldConflict(
      api().Apply(Kind::kConfigMap, ConfigMap("a", R"({"x":"2"})"), By("one")).status()));
  ASSERT_TRUE(api().Apply(Kind::kConfigMap, ConfigMap("a", R"({"x":"2"})"), By("one", true)).ok());
  const auto left = api().Apply(Kind::kConfigMap, ConfigMap("a", R"({"z":"1"})"), By("one"));
  ASSERT_TRUE(left.ok()) << left.status().ToString();
  EXPECT_EQ(Root(*left)["data"], Json({{"y", "1"}, {"z", "1"}}));
}

TEST_P(KubeConformance, StatusHasAManagerOfItsOwn) {
  ASSERT_TRUE(api().Apply(Kind::kPool, Pool("p"), By("one")).ok());
  const auto condition = [](const std::string& type, const std::string& status) {
    return R"({"type":")" + type + R"(","status":")" + status +
           R"(","reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"})";
  };
  const auto status = [&](const std::string& conditions) {
    return R"({"apiVersion":"kvfabric.io/v1alpha1","kind":"KVCachePool","metadata":{"namespace":")" +
           target().ns() + R"(","name":"p"},"status":{"epoch":1,"conditions":[)" + conditions +
           "]}}";
  };
  const std::string ready = condition("Ready", "True");
  const std::string degraded = condition("Degraded", "False");
  auto applied = api().Apply(Kind::kPool, status(ready + "," + degraded), By("one", true, true));
  ASSERT_TRUE(applied.ok()) << applied.status().ToString();
  EXPECT_EQ((*applied)->meta.generation, 1);
  EXPECT_EQ(Root(*applied)["status"]["conditions"].size(), 2U);
  const Json spec = Root(*applied)["spec"];
  ASSERT_EQ(Root(*applied)["metadata"]["managedFields"].size(), 2U);
  EXPECT_EQ(StringAt(Root(*applied)["metadata"]["managedFields"][1], "subresource"), "status");
  const auto repeated =
      api().Apply(Kind::kPool, status(ready + "," + degraded), By("one", true, true));
  EXPECT_EQ((*repeated)->meta.resource_version, (*applied)->meta.resource_version);
  applied = api().Apply(Kind::kPool, status(ready), By("one", true, true));
  ASSERT_TRUE(applied.ok()) << applied.status().ToString();
  ASSERT_EQ(Root(*applied)["status"]["conditions"].size(), 1U);
  EXPECT_EQ(Root(*applied)["spec"], spec) << "the spec is another call's";
  const auto intent = api().Apply(Kind::kPool, Pool("p", "", R"(,"paused":true)"), By("one"));
  ASSERT_TRUE(intent.ok()) << intent.status().ToString();
  EXPECT_EQ(Root(*intent)["status"]["epoch"], 1);
  EXPECT_TRUE(IsNotFound(
      api()
          .Apply(Kind::kPool,
                 R"({"apiVersion":"kvfabric.io/v1alpha1","kind":"KVCachePool","metadata":)"
                 R"({"namespace":")" +
                     target().ns() + R"(","name":"none"},"status":{}})",
                 By("one", true, true))
          .status()));
}

TEST_P(KubeConformance, ApplyRefusesWhatItCannotMean) {
  const auto refused = [&](const std::string& json) {
    return IsInvalid(api().Apply(Kind::kConfigMap, json, By("one")).status());
  };
  EXPECT_TRUE(refused(ConfigMap("a", "{}", R"(,"managedFields":[{"manager":"x"}])")));
  EXPECT_TRUE(refused(R"({"kind":"ConfigMap","metadata":{"namespace":"default","name":"a"}})"));
  EXPECT_TRUE(refused(R"({"apiVersion":"v1","metadata":{"namespace":"default","name":"a"}})"));
  EXPECT_TRUE(refused(R"({"apiVersion":"v1","kind":"ConfigMap","metadata":{}})"));
  EXPECT_TRUE(IsInvalid(api().Apply(Kind::kConfigMap, ConfigMap("a", "{}"), By("")).status()));
}

TEST_P(KubeConformance, ApplyIsGuardedByWhatItNames) {
  const ObjectPtr other = *api().Create(Kind::kConfigMap, ConfigMap("other", "{}"));
  const ObjectPtr made = *api().Apply(Kind::kConfigMap, ConfigMap("a", "{}"), By("one"));
  const auto apply = [&](const std::string& metadata) {
    return api()
        .Apply(Kind::kConfigMap, ConfigMap("a", R"({"k":"1"})", metadata), By("one"))
        .status();
  };
  EXPECT_TRUE(IsConflict(apply(Guard(other))));
  const Status renamed = apply(R"(,"uid":"another")");
  EXPECT_TRUE(IsConflict(renamed) || IsInvalid(renamed)) << renamed.ToString();
  EXPECT_TRUE(apply(Guard(made)).ok());
}

}  // namespace kvfabric::kube
