// What the operator writes beside a pool: the connection ConfigMap and Events.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "operator/controllers/pool_events.h"
#include "operator/kube/api_error.h"
#include "operator/kube/event_recorder.h"
#include "tests/operator/operator_cluster.h"

namespace kvfabric {
namespace {

using kube::Kind;
using std::chrono::seconds;
using Json = nlohmann::json;

const kube::ObjectName kConnection{"default", "main-kvfabric"};

std::string DataOf(OperatorCluster& cluster, const std::string& key) {
  const auto stored = cluster.api().Get(Kind::kConfigMap, kConnection);
  if (!stored.ok()) return "absent";
  return Json::parse((*stored)->json).at("data").value(key, "absent");
}

TEST(Connection, NamesEndpointsThePoolAndWhatItFixes) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::Spec(
                      R"("security":{"transport":"Disabled"},"domain":{"models":["a","b"],)"
                      R"("blockTokens":16,"hashAlgorithm":"sha256_cbor","hashSeed":"7"})"));
  EXPECT_EQ(DataOf(cluster, "pool"), "default/main");
  EXPECT_EQ(DataOf(cluster, "poolUID"), cluster.pool().meta.uid);
  EXPECT_EQ(DataOf(cluster, "endpoints"),
            "unix:/run/kvfabric/agent.sock,"
            "tcp:kvfabric-agent-local.kvfabric-system.svc:7071,"
            "tcp:kvfabric-agent.kvfabric-system.svc:7071");
  EXPECT_EQ(DataOf(cluster, "models"), "a,b");
  EXPECT_EQ(DataOf(cluster, "blockTokens"), "16");
  EXPECT_EQ(DataOf(cluster, "hashAlgorithm"), "sha256_cbor");
  EXPECT_NE(DataOf(cluster, "env").find("PYTHONHASHSEED=7\n"), std::string::npos);
  const auto stored = cluster.api().Get(Kind::kConfigMap, kConnection);
  ASSERT_EQ((*stored)->meta.owners.size(), 1U);
  EXPECT_EQ((*stored)->meta.owners[0].uid, cluster.pool().meta.uid);
}

TEST(Connection, OffersNoClearTcpWhereThePoolWantsTls) {
  OperatorCluster cluster;
  cluster.Form(1, OperatorCluster::Spec());
  EXPECT_EQ(DataOf(cluster, "endpoints"), "unix:/run/kvfabric/agent.sock");
  EXPECT_EQ(DataOf(cluster, "models"), "absent");
  const ShardMap map = *cluster.map();
  const auto local = ConnectionConfig::DataFor(cluster.pool(), &map, true);
  EXPECT_EQ(local.at("endpoints"), "tcp:127.0.0.1:30001") << "local mode: the agents themselves";
}

TEST(Connection, IsWrittenWhenItChangesAndMadeAgainWhenDeleted) {
  OperatorCluster cluster;
  cluster.Form(2, OperatorCluster::QuickSpec());
  const std::uint64_t writes = cluster.api().writes(Kind::kConfigMap);
  EXPECT_EQ(writes, 1U);
  cluster.Run(seconds(300));
  EXPECT_EQ(cluster.api().writes(Kind::kConfigMap), writes);
  ASSERT_TRUE(cluster.api().Delete(Kind::kConfigMap, kConnection, {}).ok());
  cluster.Run(seconds(31));
  EXPECT_EQ(DataOf(cluster, "pool"), "default/main");
  cluster.ApplyPool(OperatorCluster::Spec(R"("domain":{"hashSeed":"9"})"));
  cluster.Run(seconds(1));
  EXPECT_EQ(DataOf(cluster, "hashSeed"), "9") << "at once";
  // Somebody's hand in it.
  ASSERT_TRUE(cluster.api()
                  .Update(Kind::kConfigMap,
                          [&] {
                            Json json = Json::parse(
                                (*cluster.api().Get(Kind::kConfigMap, kConnection))->json);
                            json["data"]["pool"] = "other";
                            return json.dump();
                          }())
                  .ok());
  cluster.Run(seconds(31));
  EXPECT_EQ(DataOf(cluster, "pool"), "default/main");
}

TEST(Connection, GoesWithThePoolAndTouchesNobodyElsesObject) {
  OperatorCluster cluster;
  ASSERT_TRUE(cluster.api()
                  .Create(Kind::kConfigMap,
                          R"({"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":)"
                          R"("default","name":"main-kvfabric"},"data":{"pool":"mine"}})")
                  .ok());
  cluster.Form(1, OperatorCluster::QuickSpec());
  cluster.Run(seconds(60));
  EXPECT_EQ(DataOf(cluster, "pool"), "mine");
  EXPECT_EQ(cluster.condition("Ready"), "True Serving") << "the pool runs all the same";
  ASSERT_TRUE(cluster.api().Delete(Kind::kConfigMap, kConnection, {}).ok());
  cluster.Run(seconds(31));
  EXPECT_EQ(DataOf(cluster, "pool"), "default/main");
  ASSERT_TRUE(cluster.api().Delete(Kind::kPool, {"default", "main"}, {}).ok());
  cluster.Run(seconds(60));
  EXPECT_EQ(DataOf(cluster, "pool"), "absent");
}

std::vector<Json> EventsIn(OperatorCluster& cluster) {
  std::vector<Json> out;
  const auto list = cluster.api().List(Kind::kEvent, "default");
  for (const kube::ObjectPtr& object : list->items) {
    out.push_back(Json::parse(object->json));
  }
  return out;
}

const Json* FindEvent(const std::vector<Json>& events, const std::string& reason) {
  for (const Json& event : events) {
    if (event.at("reason") == reason) return &event;
  }
  return nullptr;
}

TEST(Events, TellTurnsOfAPoolOnce) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  cluster.agent("n1").up = false;
  cluster.Run(seconds(60));
  const std::vector<Json> events = EventsIn(cluster);
  const Json* lost = FindEvent(events, "NodeLost");
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->at("type"), "Warning");
  EXPECT_EQ(lost->at("regarding").at("kind"), "KVCachePool");
  EXPECT_EQ(lost->at("regarding").at("name"), "main");
  EXPECT_EQ(lost->at("regarding").at("uid"), cluster.pool().meta.uid);
  EXPECT_EQ(lost->at("reportingController"), "kvfabric.io/operator");
  EXPECT_EQ(lost->at("reportingInstance"), "operator-1");
  EXPECT_NE(lost->at("note").get<std::string>().find("node n1 is lost"), std::string::npos);
  EXPECT_FALSE(lost->contains("series"));
  EXPECT_NE(FindEvent(events, "NodesMissing"), nullptr);
  EXPECT_NE(FindEvent(events, "Serving"), nullptr);
  const std::uint64_t writes = cluster.api().writes(Kind::kEvent);
  cluster.Run(seconds(600));
  EXPECT_EQ(cluster.api().writes(Kind::kEvent), writes);
  cluster.KillOperator();
  cluster.StartOperator();
  cluster.Run(seconds(60));
  EXPECT_EQ(cluster.api().writes(Kind::kEvent), 0U) << "a new leader has no news of its own";
}

// An hour of trouble that comes and goes: a handful of Events, whose count rises.
TEST(Events, RepetitionsRaiseACount) {
  OperatorCluster cluster;
  cluster.Form(3, OperatorCluster::QuickSpec());
  cluster.Run(seconds(25));
  for (int i = 0; i < 60; ++i) {
    cluster.agent("n1").silent = true;
    cluster.Run(seconds(15));
    cluster.agent("n1").silent = false;
    cluster.Run(seconds(45));
    if (i == 30) {
      cluster.KillOperator();
      cluster.StartOperator();
      cluster.Run(seconds(30));
    }
  }
  const std::vector<Json> events = EventsIn(cluster);
  EXPECT_LE(events.size(), 10U);
  const Json* missing = FindEvent(events, "NodesMissing");
  ASSERT_NE(missing, nullptr);
  EXPECT_GE(missing->at("series").at("count").get<int>(), 55);
  EXPECT_NE(missing->at("series").at("lastObservedTime"), missing->at("eventTime"));
}

TEST(EventRecorder, CutsNotesAndWritesARepetitionAtMostEveryRefresh) {
  OperatorCluster cluster;
  cluster.ApplyPool(OperatorCluster::Spec());
  kube::EventRecorder recorder(cluster.api(), cluster.clock, {.instance = "i"});
  const kube::EventSubject subject{Kind::kPool, {"default", "main"}, cluster.pool().meta.uid};
  std::string note(1023, 'x');
  note += "\xC3\xA4 and more";  // a character of two bytes across the limit
  for (int i = 0; i < 100; ++i) recorder.Record(subject, {true, "Trouble", "Look", note});
  EXPECT_EQ(recorder.written(), 1U);
  ASSERT_EQ(EventsIn(cluster).size(), 1U);
  EXPECT_EQ(EventsIn(cluster)[0].at("note"), std::string(1023, 'x'));
  cluster.clock.Advance(seconds(31));
  recorder.Record(subject, {true, "Trouble", "Look", "again"});
  EXPECT_EQ(recorder.written(), 2U);
  EXPECT_EQ(EventsIn(cluster)[0].at("series").at("count"), 101);
  // The API has dropped it meanwhile.
  ASSERT_TRUE(
      cluster.api()
          .Delete(Kind::kEvent, {"default", EventsIn(cluster)[0].at("metadata").at("name")}, {})
          .ok());
  cluster.clock.Advance(seconds(31));
  recorder.Record(subject, {true, "Trouble", "Look", "again"});
  EXPECT_EQ(EventsIn(cluster)[0].at("note"), "again");
  EXPECT_EQ(recorder.failed(), 0U);
}

TEST(EventRecorder, FailsQuietly) {
  OperatorCluster cluster;
  kube::EventRecorder recorder(cluster.api(), cluster.clock, {.instance = "i"});
  cluster.fault = [](const char*) { return Unavailable("disk gone"); };
  recorder.Record({Kind::kPool, {"default", "main"}, "u"}, {true, "Trouble", "Look", "x"});
  EXPECT_EQ(recorder.failed(), 1U);
}

TEST(PoolEvents, NothingForAStatusThatStays) {
  PoolStatus status;
  status.conditions = {{"Ready", kube::ConditionStatus::kFalse, "NoShardMap", "", "", 1},
                       {"Degraded", kube::ConditionStatus::kTrue, "MassFailure", "x", "", 1}};
  EXPECT_TRUE(EventsOf(status, status).empty());
  EXPECT_TRUE(EventsOf(PoolStatus{}, status).empty()) << "how every pool begins";
  PoolStatus other = status;
  other.conditions[1].reason = "NodesMissing";
  other.conditions[1].message = "n1";
  EXPECT_EQ(EventsOf(status, other),
            (std::vector<kube::EventText>{{true, "NodesMissing", "Degraded", "n1"}}))
      << "another trouble is news";
}

TEST(Capacity, PoolsOnDifferentNodesDoNotCompete) {
  OperatorCluster cluster;
  cluster.AddAgent("n0");
  cluster.AddAgent("n1");
  cluster.EditNode("n0", R"(,"labels":{"group":"a"})", "{}");
  cluster.EditNode("n1", R"(,"labels":{"group":"b"})", "{}");
  const auto on = [](const char* group) {
    return OperatorCluster::Spec(
        std::string(R"("placement":{"nodeSelector":{"group":")") + group + R"("}})", "6Gi");
  };
  cluster.ApplyPool(on("a"), "first");
  cluster.Run(seconds(2));
  cluster.ApplyPool(on("b"), "second");
  cluster.Run(seconds(2));
  cluster.ApplyPool(on("a"), "third");
  cluster.Run(seconds(15));
  EXPECT_EQ(cluster.condition("ConfigValid", "first"), "True ValidButSimpler");
  EXPECT_EQ(cluster.condition("ConfigValid", "second"), "True ValidButSimpler");
  EXPECT_EQ(cluster.condition("ConfigValid", "third"), "False Oversubscribed");
  EXPECT_NE(cluster.message("ConfigValid", "third").find("node n0 has left (2Gi"),
            std::string::npos)
      << cluster.message("ConfigValid", "third");
  // Room again: it comes up.
  ASSERT_TRUE(cluster.api().Delete(Kind::kPool, {"default", "first"}, {}).ok());
  cluster.Run(seconds(15));
  EXPECT_EQ(cluster.condition("Ready", "third"), "True Serving");
}

}  // namespace
}  // namespace kvfabric
