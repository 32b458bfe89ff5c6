#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "operator/kube/yaml.h"
#include "operator/specs/cluster_objects.h"
#include "operator/specs/crd_schema.h"
#include "operator/specs/pool_spec.h"
#include "operator/specs/printer_table.h"
#include "operator/specs/quantity.h"
#include "operator/specs/shard_map_object.h"
#include "placement/sticky_quota.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

using kube::Kind;
using kube::Object;
using std::chrono::milliseconds;

Object PoolObject(const std::string& yaml) {
  const auto documents = kube::YamlToJson(yaml);
  EXPECT_TRUE(documents.ok()) << documents.status().ToString();
  auto object = kube::ParseObject(Kind::kPool, documents->front());
  EXPECT_TRUE(object.ok()) << object.status().ToString();
  return std::move(object).value();
}

constexpr const char* kHead =
    "apiVersion: kvfabric.io/v1alpha1\nkind: KVCachePool\n"
    "metadata: {namespace: default, name: p, uid: u1, resourceVersion: \"7\", generation: 3}\n";

TEST(Quantity, ReadsUnits) {
  EXPECT_EQ(ParseQuantity("64Mi"), 64ULL << 20U);
  EXPECT_EQ(ParseQuantity("1Gi"), 1ULL << 30U);
  EXPECT_EQ(ParseQuantity("500M"), 500'000'000ULL);
  EXPECT_EQ(ParseQuantity("1024"), 1024ULL);
  EXPECT_EQ(ParseQuantity("1.5Gi"), 3ULL << 29U);
  EXPECT_EQ(ParseQuantity("0.001"), 1ULL) << "rounds up, as the API server does";
  EXPECT_EQ(ParseQuantity("1k"), 1000ULL);
  EXPECT_EQ(ParseQuantity("7Ei"), 7ULL << 60U);
  for (const char* bad : {"", "Gi", "1gi", "1 Gi", "-1", "+1", "1.", ".5", "1e3", "8Ei", "1Gii",
                          "99999999999999999999", "0x10", "1m"}) {
    EXPECT_EQ(ParseQuantity(bad), std::nullopt) << bad;
  }
}

TEST(Quantity, WritesWhatItReads) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t bytes = (random() >> (random() % 64)) >> 1U;
    EXPECT_EQ(ParseQuantity(FormatQuantity(bytes)), bytes) << FormatQuantity(bytes);
  }
  EXPECT_EQ(FormatQuantity(64ULL << 30U), "64Gi");
  EXPECT_EQ(FormatQuantity(0), "0");
}

TEST(Quantity, ReadsDurations) {
  EXPECT_EQ(ParseDuration("5m"), std::chrono::minutes(5));
  EXPECT_EQ(ParseDuration("50ms"), milliseconds(50));
  EXPECT_EQ(ParseDuration("1h30m"), std::chrono::minutes(90));
  EXPECT_EQ(ParseDuration("1.5s"), milliseconds(1500));
  for (const char* bad : {"", "5", "m", "5 m", "-5m", "5d", "1.0000000001s", "99999999999h"}) {
    EXPECT_EQ(ParseDuration(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(FormatDuration(std::chrono::minutes(90)), "1h30m");
}

TEST(DecodePool, GivesEveryField) {
  std::ifstream in("api/crd/cases/good/everything.yaml");
  std::stringstream text;
  text << in.rdbuf();
  const auto pool = DecodePool(PoolObject(text.str()));
  ASSERT_TRUE(pool.ok());
  ASSERT_TRUE(pool->faults.empty());
  const PoolSpec& spec = pool->spec;
  ASSERT_EQ(spec.tiers.size(), 4U);
  EXPECT_EQ(spec.tiers[2].capacity_bytes, 1'500'000'000'000ULL);
  EXPECT_TRUE(spec.tiers[2].drain);
  EXPECT_EQ(spec.Tier(TierType::kDram)->high_watermark_percent, 95U);
  EXPECT_EQ(spec.domain.block_tokens, 16U);
  EXPECT_EQ(spec.sharding.slots, 65536U);
  EXPECT_TRUE(spec.sharding.acks_replicated);
  EXPECT_TRUE(spec.sharding.locality_spread);
  EXPECT_FALSE(spec.sharding.weighted_by_capacity);
  EXPECT_EQ(spec.rebalance.node_loss_grace, std::chrono::seconds(90));
  EXPECT_EQ(spec.rebalance.join_warmup, milliseconds(0));
  EXPECT_EQ(spec.rebalance.bandwidth_limit_bytes_per_s, 500'000'000ULL);
  EXPECT_FALSE(spec.rebalance.drain_on_cordon);
  ASSERT_EQ(spec.tenancy.tenants.size(), 2U);
  EXPECT_EQ(spec.tenancy.tenants[0].quota_bytes.at("dram"), 8ULL << 30U);
  EXPECT_EQ(spec.tenancy.tenants[1].token_key, "resp");
  EXPECT_EQ(spec.access.load_deadline, milliseconds(1500));
  EXPECT_EQ(spec.access.namespace_selector->match_expressions.size(), 2U);
  EXPECT_EQ(spec.events.schema, "Array");
  EXPECT_TRUE(spec.paused);
  EXPECT_EQ(spec.placement.tolerations[0].op, "Exists");
}

TEST(DecodePool, KeepsFaultsInsteadOfFailing) {
  const auto pool = DecodePool(PoolObject(std::string(kHead) + "spec: {tiers: [], codec: zip}\n"));
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ(pool->faults.size(), 2U);
}

TEST(DecodePool, StatusGoesBothWays) {
  Pool pool = *DecodePool(PoolObject(
      std::string(kHead) + "spec: {tiers: [{name: d, type: DRAM, capacityPerNode: 1Gi}]}\n"));
  PoolStatus& status = pool.status;
  status.observed_generation = 3;
  status.conditions = {
      {"Ready", kube::ConditionStatus::kTrue, "Serving", "3 of 3", "2026-11-30T00:00:00Z", 3}};
  status.epoch = 42;
  status.shard_map_name = "p";
  status.members = {3, 2, 1, 0, 0};
  status.slots = {16384, 16384, 12, 5};
  status.tiers = {{"d", 100, 50, "50%", 7}};
  status.hit_ratio = "28%";
  status.rebalance = {"Moving", "node n4 joins", "2026-11-30T00:00:00Z", 819, 100, 1 << 20,
                      {},       "0a1b2c-3d4e5f"};
  status.rebalance.proposal = {
      "3f9a1c-77b02e", "node n4 joins", 4096, 1 << 30, 5, "2026-11-30T00:00:00Z", true};
  status.unstable_nodes = {{"n3", 4, "2026-11-30T00:02:00Z"}};
  status.last_node_loss = {"n2", "2026-11-30T00:00:00Z", 5461, "2026-11-30T00:00:09Z"};
  const auto written = WithStatus(pool.meta, status);
  ASSERT_TRUE(written.ok());
  // The API puts the stored spec under a status; here by hand.
  std::string json = *written;
  json.replace(json.find(R"("spec":{})"), 9,
               R"("spec":{"tiers":[{"name":"d","type":"DRAM","capacityPerNode":"1Gi"}]})");
  const auto back = DecodePool(*kube::ParseObject(Kind::kPool, json));
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(back->faults.empty()) << back->faults.front().field << back->faults.front().message;
  EXPECT_EQ(back->status, status);
}

TEST(NotBuilt, NamesWhatToWriteInstead) {
  std::ifstream in("api/crd/cases/good/everything.yaml");
  std::stringstream text;
  text << in.rdbuf();
  const Pool pool = *DecodePool(PoolObject(text.str()));
  std::string all;
  for (const kube::Cause& cause : NotBuilt(pool.spec)) {
    all += cause.field + " ";
    EXPECT_NE(cause.message.find("not built yet"), std::string::npos);
    EXPECT_NE(cause.message.find("write "), std::string::npos);
  }
  for (const char* field : {"spec.tiers[0].type", "spec.tiers[2].type", "spec.tiers[3].type",
                            "spec.codec", "spec.rebalance.dataMovement", "spec.tenancy.mode"}) {
    EXPECT_NE(all.find(field), std::string::npos) << field;
  }
  const Pool plain = *DecodePool(PoolObject(
      std::string(kHead) + "spec: {tiers: [{name: d, type: DRAM, capacityPerNode: 1Gi}]}\n"));
  EXPECT_TRUE(NotBuilt(plain.spec).empty());
  EXPECT_EQ(Simplifications(plain.spec).size(), 1U) << "ReuseAware";
}

TEST(Simplifications, NamesWhatIsTakenAndNotInForce) {
  const Pool pool = *DecodePool(PoolObject(
      std::string(kHead) +
      "spec:\n  tiers: [{name: d, type: DRAM, capacityPerNode: 1Gi, evictionPolicy: LRU}]\n"
      "  security: {transport: Disabled}\n"
      "  access: {lookupDeadline: 20ms, loadDeadline: 2s}\n"
      "  rebalance: {maxConcurrentMigrations: 2}\n"
      "  domain: {models: [llama]}\n"));
  ASSERT_TRUE(pool.faults.empty()) << pool.faults.front().field << pool.faults.front().message;
  const std::vector<std::string> said = Simplifications(pool.spec);
  ASSERT_EQ(said.size(), 4U);
  EXPECT_EQ(said[0].find("access.lookupDeadline"), 0U);
  EXPECT_EQ(said[1].find("access.loadDeadline"), 0U);
  EXPECT_EQ(said[2].find("rebalance.maxConcurrentMigrations"), 0U);
  EXPECT_EQ(said[3].find("domain"), 0U);
}

ShardMap PlanMap(std::size_t members, std::uint32_t slots) {
  PlanInput input;
  input.pool_uid = "u1";
  input.slot_count = slots;
  input.replicas = 2;
  for (std::size_t i = 0; i < members; ++i) {
    PlanMember member;
    member.member.node_name = "node-" + std::to_string(i);
    member.member.agent_uid = "agent-" + std::to_string(i);
    member.member.address = "10.0.0.1";
    member.member.grpc_port = 7070;
    member.member.bulk_port = 7071;
    member.member.zone = "z" + std::to_string(i % 3);
    member.member.weight = 1ULL << 36U;
    input.members.push_back(member);
  }
  ShardMap map = StickyQuota().Plan(input)->map;
  map.term = 3;
  map.epoch = 9;
  return map;
}

TEST(ShardMapObject, GoesBothWaysUpToAThousandMembers) {
  const Pool pool = *DecodePool(PoolObject(
      std::string(kHead) + "spec: {tiers: [{name: d, type: DRAM, capacityPerNode: 1Gi}]}\n"));
  for (const std::size_t members : {1U, 3U, 63U, 1000U}) {
    const ShardMap map = PlanMap(members, 65536);
    const auto json = EncodeShardMap(pool.meta, map, 0);
    ASSERT_TRUE(json.ok());
    const auto object = kube::ParseObject(Kind::kShardMap, *json);
    ASSERT_TRUE(object.ok());
    EXPECT_EQ(object->meta.owners.at(0).uid, "u1");
    const auto back = DecodeShardMap(*object);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(back->map, map);
  }
}

TEST(ShardMapObject, RulesGuardTermAndEpoch) {
  const Pool pool = *DecodePool(PoolObject(
      std::string(kHead) + "spec: {tiers: [{name: d, type: DRAM, capacityPerNode: 1Gi}]}\n"));
  const ShardMap map = PlanMap(3, 16384);
  const std::string stored = *EncodeShardMap(pool.meta, map, 1);
  const auto faults_of = [&](const ShardMap& next) {
    std::vector<kube::Cause> faults;
    EXPECT_TRUE(CrdSchema::Of(Kind::kShardMap)
                    .Check(*EncodeShardMap(pool.meta, next, 1), &stored, &faults)
                    .ok());
    std::string out;
    for (const kube::Cause& cause : faults) out += cause.field + ";";
    return out;
  };
  EXPECT_EQ(faults_of(map), "");
  ShardMap next = map;
  next.epoch = 8;
  EXPECT_EQ(faults_of(next), "spec.epoch;") << "same table, lower epoch";
  next = map;
  next.term = 2;
  EXPECT_EQ(faults_of(next), "spec.term;");
  next = map;
  next.members[0].state = MemberState::kLost;
  EXPECT_EQ(faults_of(next), "spec.epoch;") << "a change needs a new epoch";
  next.epoch = 10;
  EXPECT_EQ(faults_of(next), "");
  next.pool_uid = "u2";
  EXPECT_EQ(faults_of(next), "spec.poolUID;");
}

TEST(ShardMapObject, RefusesATableThatIsNotItsOwn) {
  const Pool pool = *DecodePool(PoolObject(
      std::string(kHead) + "spec: {tiers: [{name: d, type: DRAM, capacityPerNode: 1Gi}]}\n"));
  std::string json = *EncodeShardMap(pool.meta, PlanMap(3, 16384), 0);
  const std::size_t at = json.find(R"("table":")") + 9;
  json[at + 1] = json[at + 1] == 'A' ? 'C' : 'A';
  const auto map = DecodeShardMap(*kube::ParseObject(Kind::kShardMap, json));
  EXPECT_FALSE(map.ok());
}

TEST(PrinterTable, ShowsTheColumnsOfTheCrd) {
  constexpr std::int64_t kNow = 1'795'000'300'000'000;
  const auto object = std::make_shared<const Object>(PoolObject(
      "apiVersion: kvfabric.io/v1alpha1\nkind: KVCachePool\n"
      "metadata: {namespace: default, name: p, creationTimestamp: \"2026-11-18T11:06:40Z\"}\n"
      "spec: {}\n"
      "status: {conditions: [{type: Progressing, status: \"False\"}, {type: Ready, status: "
      "\"True\", message: all serve}], members: {ready: 3}, tiers: [{name: d, used: 12%}]}\n"));
  const std::string table = PrinterTable(Kind::kPool, {5, {object}}, kNow);
  EXPECT_NE(table.find(R"("cells":["p","True",3,null,"12%",null,null,"5m","all serve"])"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find(R"("name":"Ready")"), std::string::npos);
  const auto node = std::make_shared<const Object>(*kube::ParseObject(
      Kind::kNode, R"({"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}})"));
  EXPECT_NE(PrinterTable(Kind::kNode, {5, {node}}, kNow).find(R"("cells":["n","<unknown>"])"),
            std::string::npos);
  EXPECT_EQ(FormatAge(119), "119s");
  EXPECT_EQ(FormatAge(3 * 86'400), "3d");
}

TEST(ClusterObjects, ReadsNodes) {
  const auto node = DecodeNode(*kube::ParseObject(
      Kind::kNode, R"({"apiVersion":"v1","kind":"Node","metadata":{"name":"n","labels":{"z":"1"},)"
                   R"("annotations":{"kvfabric.io/drain":"true"}},"spec":{"unschedulable":true,)"
                   R"("taints":[{"key":"gpu","effect":"NoSchedule"}]}})"));
  ASSERT_TRUE(node.ok());
  EXPECT_TRUE(node->drain_asked);
  EXPECT_TRUE(node->unschedulable);
  EXPECT_EQ(node->taints.size(), 1U);
  EXPECT_FALSE(NodeFits(*node, {}));
  PlacementSpec placement;
  placement.tolerations = {{"gpu", "Exists", "", ""}};
  EXPECT_TRUE(NodeFits(*node, placement));
  placement.node_selector = {{"z", "2"}};
  EXPECT_FALSE(NodeFits(*node, placement));
}

TEST(ClusterObjects, ReadsAgentPodsByLabelAndPortName) {
  const auto decode = [](const std::string& component, const std::string& ports) {
    return DecodeAgentPod(*kube::ParseObject(
        Kind::kPod,
        R"({"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"kvfabric-system","name":"p",)"
        R"("labels":{"app.kubernetes.io/name":"kvfabric","app.kubernetes.io/component":")" +
            component + R"("}},"spec":{"nodeName":"n","containers":[{"name":"x"},{"ports":)" +
            ports + R"(}]},"status":{"phase":"Running","podIP":"10.1.2.3"}})"));
  };
  EXPECT_FALSE(decode("operator", "[]").ok());
  const auto pod = decode("agent", R"([{"name":"grpc","containerPort":7070},)"
                                   R"({"name":"bulk","containerPort":7071},)"
                                   R"({"name":"http","containerPort":99999}])");
  ASSERT_TRUE(pod.ok());
  EXPECT_TRUE(pod->running);
  EXPECT_EQ(pod->node_name, "n");
  EXPECT_EQ(pod->ip, "10.1.2.3");
  EXPECT_EQ(pod->grpc_port, 7070);
  EXPECT_EQ(pod->bulk_port, 7071);
}

}  // namespace
}  // namespace kvfabric
