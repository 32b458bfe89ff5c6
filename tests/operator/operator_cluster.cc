#include "tests/operator/operator_cluster.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/check.h"
#include "operator/kube/object_store.h"

namespace kvfabric {

using kube::Kind;

void OperatorCluster::StartOperator() {
  kube::EmbeddedKubeApi::Options options;
  options.directory = dir_.path() / "api";
  options.clock = &clock;
  options.admission = &admission_;
  options.sync = false;
  options.fault = [this](const char* step) { return fault ? fault(step) : Status::Ok(); };
  auto opened = kube::EmbeddedKubeApi::Open(std::move(options));
  KVF_CHECK(opened.ok(), "cannot open the embedded api");
  api_ = std::move(opened).value();
  faults.dead = false;
  script_ = std::make_unique<FaultScript>(*api_, faults, seed_);
  kube::Elector::Options election;
  election.lease = {kAgentNamespace, "kvfabric-operator"};
  election.identity = "operator-" + std::to_string(++starts_);
  election.previous_holder_is_gone = true;
  elector_ = std::make_unique<kube::Elector>(*script_, clock, election);
  ControlLoop::Options loop;
  loop.registry.operator_id = election.identity;
  loop.registry.heartbeat = kBeat;
  metrics_ = std::make_unique<MetricsRegistry>();
  loop_ =
      std::make_unique<ControlLoop>(ControlLoop::Environment{script_.get(), &dialer, elector_.get(),
                                                             &clock, metrics_.get(), certificates},
                                    loop);
}

void OperatorCluster::KillOperator() {
  loop_.reset();
  elector_.reset();
  script_.reset();
  api_.reset();
}

void OperatorCluster::LoseStore() {
  KillOperator();
  std::filesystem::remove_all(dir_.path() / "api");
  StartOperator();
  for (const auto& [node, port] : ports_) AddNodeAndPod(node, "");
}

void OperatorCluster::SaveStore() const {
  std::filesystem::remove_all(dir_.path() / "backup");
  std::filesystem::copy(dir_.path() / "api", dir_.path() / "backup",
                        std::filesystem::copy_options::recursive);
}

void OperatorCluster::RestoreStore() const {
  std::filesystem::remove_all(dir_.path() / "api");
  std::filesystem::copy(dir_.path() / "backup", dir_.path() / "api",
                        std::filesystem::copy_options::recursive);
}

void OperatorCluster::Run(std::chrono::milliseconds span) {
  constexpr std::chrono::milliseconds kStep{100};
  constexpr std::chrono::milliseconds kElection{1000};
  for (std::chrono::milliseconds done{0}; done < span; done += kStep) {
    clock.Advance(kStep);
    elapsed_ += kStep;
    if (loop_ != nullptr && elapsed_ % kElection == kStep) elector_->Step();
    if (elapsed_ % kBeat == std::chrono::milliseconds(0)) dialer.Beat();
    if (loop_ != nullptr) loop_->Step();
  }
}

std::string OperatorCluster::AddressOf(const std::string& node) const {
  return "127.0.0.1:" + std::to_string(ports_.at(node));
}

void OperatorCluster::AddAgent(const std::string& node, const std::string& zone) {
  ports_[node] = next_port_++;
  FakeAgent agent;
  agent.node_name = node;
  agent.agent_uid = "uid-" + node;
  dialer.agents[AddressOf(node)] = agent;
  AddNodeAndPod(node, zone);
}

void OperatorCluster::AddNodeAndPod(const std::string& node, const std::string& zone) {
  const std::string label =
      zone.empty() ? "" : R"(,"labels":{"topology.kubernetes.io/zone":")" + zone + R"("})";
  Must(api_->Create(Kind::kNode, R"({"apiVersion":"v1","kind":"Node","metadata":{"name":")" + node +
                                     "\"" + label + R"(},"spec":{}})"));
  AddPod("agent-" + node, node, ports_.at(node));
}

void OperatorCluster::AddPod(const std::string& pod, const std::string& node, std::uint16_t port) {
  std::string json =
      R"({"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"kvfabric-system","name":")" +
      pod +
      R"(","labels":{"app.kubernetes.io/name":"kvfabric","app.kubernetes.io/component":"agent"}},)"
      R"("spec":{"nodeName":")" +
      node + R"(","containers":[{"name":"agent","ports":[{"name":"grpc","containerPort":)" +
      std::to_string(port) + R"(},{"name":"bulk","containerPort":)" + std::to_string(port + 10000) +
      R"(}]}]}})";
  Must(api_->Create(Kind::kPod, json));
  json.pop_back();
  Must(api_->UpdateStatus(Kind::kPod,
                          json + R"(,"status":{"phase":"Running","podIP":"127.0.0.1"}})"));
}

void OperatorCluster::DeletePod(const std::string& pod) {
  KVF_CHECK(api_->Delete(Kind::kPod, {kAgentNamespace, pod}, {}).ok(), "cannot delete the pod");
}

void OperatorCluster::EditNode(const std::string& node, const std::string& metadata,
                               const std::string& spec) {
  Must(api_->Update(Kind::kNode, R"({"apiVersion":"v1","kind":"Node","metadata":{"name":")" + node +
                                     "\"" + metadata + R"(},"spec":)" + spec + "}"));
}

void OperatorCluster::DeleteNode(const std::string& node) {
  KVF_CHECK(api_->Delete(Kind::kNode, {"", node}, {}).ok(), "cannot delete the node");
}

void OperatorCluster::ApplyPool(const std::string& spec, const std::string& name) {
  const std::string head =
      R"({"apiVersion":"kvfabric.io/v1alpha1","kind":"KVCachePool","metadata":)"
      R"({"namespace":"default","name":")" +
      name + "\"";
  const auto stored = api_->Get(Kind::kPool, {"default", name});
  if (!stored.ok()) {
    Must(api_->Create(Kind::kPool, head + R"(},"spec":)" + spec + "}"));
    return;
  }
  const std::string version = std::to_string((*stored)->meta.resource_version);
  Must(api_->Update(Kind::kPool,
                    head + R"(,"resourceVersion":")" + version + R"("},"spec":)" + spec + "}"));
}

void OperatorCluster::AnnotatePool(const std::string& key, const std::string& value,
                                   const std::string& name) {
  const auto stored = api_->Get(Kind::kPool, {"default", name});
  Must(stored);
  nlohmann::json json = nlohmann::json::parse((*stored)->json);
  json["metadata"]["annotations"][key] = value;
  if (value.empty()) json["metadata"]["annotations"].erase(key);
  Must(api_->Update(Kind::kPool, json.dump()));
}

void OperatorCluster::MoveAgent(const std::string& node, std::uint16_t port) {
  FakeAgent agent = dialer.agents.at(AddressOf(node));
  dialer.agents.erase(AddressOf(node));
  agent.up = true;
  ++agent.boot_epoch;
  agent.maps.clear();
  ports_[node] = port;
  dialer.agents[AddressOf(node)] = agent;
  AddPod("agent-" + node, node, port);
}

void OperatorCluster::AddAgentTolerant(const std::string& node) {
  tolerant_ = true;
  if (ports_.count(node) == 0) {
    AddAgent(node);
  } else {
    AddNodeAndPod(node, "");
  }
  tolerant_ = false;
}

void OperatorCluster::ApplyPoolTolerant(const std::string& spec) {
  tolerant_ = true;
  ApplyPool(spec);
  tolerant_ = false;
}

void OperatorCluster::Form(std::size_t agents, const std::string& spec) {
  for (std::size_t i = 0; i < agents; ++i) {
    AddAgent("n" + std::to_string(i), "z" + std::to_string(i % 3));
  }
  ApplyPool(spec);
  Run(std::chrono::seconds(15));
}

std::string OperatorCluster::Spec(const std::string& extra, const std::string& capacity) {
  return R"({"tiers":[{"name":"dram","type":"DRAM","capacityPerNode":")" + capacity + R"("}])" +
         (extra.empty() ? "" : "," + extra) + "}";
}

std::string OperatorCluster::QuickSpec(const std::string& replicas, const std::string& more) {
  return Spec(R"("sharding":{"replicas":)" + replicas +
              R"(},"rebalance":{"nodeLossGracePeriod":"20s","joinWarmup":"10s",)"
              R"("joinRampPercent":25)" +
              more + "}");
}

Pool OperatorCluster::pool(const std::string& name) {
  const auto object = api_->Get(Kind::kPool, {"default", name});
  KVF_CHECK(object.ok(), "no such pool");
  return *DecodePool(**object);
}

std::optional<ShardMap> OperatorCluster::map(const std::string& name) {
  const auto object = api_->Get(Kind::kShardMap, {"default", name});
  if (!object.ok()) return std::nullopt;
  const auto decoded = DecodeShardMap(**object);
  KVF_CHECK(decoded.ok(), "the stored map cannot be read");
  return decoded->map;
}

std::optional<ShardMap> OperatorCluster::map_of_disk() {
  auto store = kube::ObjectStore::Open({dir_.path() / "api", nullptr, false});
  KVF_CHECK(store.ok(), "cannot open the store");
  for (const kube::Object& object : (*store)->TakeLoaded()) {
    if (object.kind == Kind::kShardMap) return DecodeShardMap(object)->map;
  }
  return std::nullopt;
}

std::string OperatorCluster::condition(const std::string& type, const std::string& name) {
  const Pool now = pool(name);
  const auto* found = kube::FindCondition(now.status.conditions, type);
  if (found == nullptr) return "absent";
  return std::string(kube::ConditionStatusName(found->status)) + " " + found->reason;
}

std::string OperatorCluster::message(const std::string& type, const std::string& name) {
  const Pool now = pool(name);
  const auto* found = kube::FindCondition(now.status.conditions, type);
  return found == nullptr ? "absent" : found->message;
}

std::uint64_t OperatorCluster::writes() const {
  std::uint64_t sum = 0;
  for (const kube::KindTraits& traits : kube::AllKinds()) {
    if (traits.kind != Kind::kLease) sum += api_->writes(traits.kind);
  }
  return sum;
}

void OperatorCluster::Must(const Result<kube::ObjectPtr>& result) const {
  KVF_CHECK(result.ok() || tolerant_, result.status().message().c_str());
}

std::size_t SlotsOf(const ShardMap& map, const std::string& node) {
  std::size_t count = 0;
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    for (const MemberIndex owner : map.ByteOwners(slot)) {
      count += owner != kNoOwner && map.members[owner].node_name == node ? 1U : 0U;
    }
  }
  return count;
}

std::size_t Moved(const ShardMap& before, const ShardMap& after) {
  std::size_t moved = 0;
  for (SlotIndex slot = 0; slot < before.slot_count; ++slot) {
    std::set<std::string> had;
    for (const MemberIndex owner : before.ByteOwners(slot)) {
      if (owner != kNoOwner) had.insert(before.members[owner].node_name);
    }
    for (const MemberIndex owner : after.ByteOwners(slot)) {
      moved += owner != kNoOwner && had.count(after.members[owner].node_name) == 0 ? 1U : 0U;
    }
  }
  return moved;
}

}  // namespace kvfabric
