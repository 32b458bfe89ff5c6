#pragma once

// FakeAgents: agents as the operator sees them through AgentLink, and a Cluster that runs a whole
// ControlLoop over the embedded API on a fake clock. One thread.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/metrics.h"
#include "operator/controllers/control_loop.h"
#include "operator/kube/elector.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/specs/crd_schema.h"
#include "placement/shard_map_codec.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"

namespace kvfabric {

// One agent process. Obeys as a real one does: fences by term and by (term, epoch) of a pool.
struct FakeAgent {
  std::string node_name;
  std::string agent_uid;
  std::uint16_t port = 0;
  std::uint64_t boot_epoch = 1;
  bool up = true;       // takes and keeps streams
  bool silent = false;  // SIGSTOP: streams stay, nothing is said
  bool recovering = false;
  bool ready = true;
  std::uint64_t arena_bytes = 8ULL << 30U;
  std::uint64_t under_replicated = 0;
  bool drain_done = false;
  bool refuses_maps = false;

  std::uint64_t highest_term = 0;
  std::map<std::string, AgentPoolConfig> pools;
  std::map<std::string, ShardMap> maps;
  std::set<std::string> dropped_pools;  // every uid that was taken away
  bool draining = false;
  std::size_t pool_messages = 0;
  std::size_t map_messages = 0;
};

class FakeDialer final : public AgentDialer {
 public:
  // Agents by "host:port".
  std::map<std::string, FakeAgent> agents;
  std::size_t dials = 0;

  std::unique_ptr<AgentLink> Dial(const AgentTarget& target, const Session& session,
                                  std::shared_ptr<AgentLinkListener> listener) override {
    ++dials;
    auto link = std::make_unique<Link>(*this, target.ToString(), session, std::move(listener));
    links_.insert(link.get());
    return link;
  }
  std::size_t open_links() const { return links_.size(); }

  // Every stream says what its agent has to say; streams of dead agents end.
  void Beat() {
    const std::set<Link*> links = links_;
    for (Link* link : links) link->Beat();
  }

 private:
  class Link final : public AgentLink {
   public:
    Link(FakeDialer& dialer, std::string address, Session session,
         std::shared_ptr<AgentLinkListener> listener)
        : dialer_(dialer),
          address_(std::move(address)),
          session_(std::move(session)),
          listener_(std::move(listener)) {}
    ~Link() override { dialer_.links_.erase(this); }

    void Beat() {
      FakeAgent* agent = Agent();
      if (closed_ || (agent != nullptr && agent->up && agent->silent)) return;
      if (agent == nullptr || !agent->up) return Close(Unavailable("connection refused"));
      if (introduced_boot_.has_value() && *introduced_boot_ != agent->boot_epoch) {
        return Close(Unavailable("connection reset"));
      }
      if (session_.term < agent->highest_term) {
        listener_->OnRefused("term " + std::to_string(agent->highest_term) + " was seen");
        return Close(FailedPrecondition("old term"));
      }
      agent->highest_term = session_.term;
      if (!introduced_boot_.has_value()) {
        introduced_boot_ = agent->boot_epoch;
        listener_->OnIntroduction(
            {agent->node_name, agent->agent_uid, agent->boot_epoch, "test", ""});
      }
      listener_->OnReport(Report(*agent));
    }

    void SendPools(std::vector<AgentPoolConfig> pools) override {
      FakeAgent* agent = Reachable();
      if (agent == nullptr) return;
      ++agent->pool_messages;
      std::map<std::string, AgentPoolConfig> next;
      for (AgentPoolConfig& pool : pools) next[pool.uid] = std::move(pool);
      for (const auto& [uid, pool] : agent->pools) {
        if (next.count(uid) == 0) {
          agent->dropped_pools.insert(uid);
          agent->maps.erase(uid);
        }
      }
      agent->pools = std::move(next);
    }
    void SendMap(const std::string& pool_uid, std::shared_ptr<const std::string> bytes) override {
      FakeAgent* agent = Reachable();
      if (agent == nullptr) return;
      ++agent->map_messages;
      const auto map = ParseShardMap(AsBytes(*bytes));
      KVF_CHECK(map.ok(), "operator sent a map that cannot be read");
      if (agent->refuses_maps || agent->pools.count(pool_uid) == 0) {
        return listener_->OnRefused("map refused");
      }
      const auto known = agent->maps.find(pool_uid);
      if (known != agent->maps.end() &&
          (map->term < known->second.term || map->epoch < known->second.epoch)) {
        return listener_->OnRefused("map is older than the applied one");
      }
      agent->maps[pool_uid] = *map;
    }
    void SendDrain(bool draining, std::chrono::seconds /*deadline*/) override {
      if (FakeAgent* agent = Reachable()) agent->draining = draining;
    }

   private:
    FakeAgent* Agent() const {
      const auto it = dialer_.agents.find(address_);
      return it == dialer_.agents.end() ? nullptr : &it->second;
    }
    FakeAgent* Reachable() const {
      FakeAgent* agent = Agent();
      return agent != nullptr && agent->up && !agent->silent && !closed_ ? agent : nullptr;
    }
    void Close(const Status& why) {
      closed_ = true;
      listener_->OnClosed(why);
    }
    static AgentReport Report(const FakeAgent& agent) {
      AgentReport report;
      report.boot_epoch = agent.boot_epoch;
      report.recovering = agent.recovering;
      report.ready = agent.ready;
      report.arena_bytes = agent.arena_bytes;
      report.drain.active = agent.draining;
      report.drain.done = agent.draining && agent.drain_done;
      for (const auto& [uid, pool] : agent.pools) {
        AgentPoolReport out;
        out.uid = uid;
        out.applied_generation = pool.generation;
        out.capacity_bytes = pool.dram_capacity_bytes;
        out.under_replicated = agent.under_replicated;
        if (const auto map = agent.maps.find(uid); map != agent.maps.end()) {
          out.applied_term = map->second.term;
          out.applied_epoch = map->second.epoch;
        }
        report.pools.push_back(out);
      }
      return report;
    }

    FakeDialer& dialer_;
    const std::string address_;
    const Session session_;
    const std::shared_ptr<AgentLinkListener> listener_;
    std::optional<std::uint64_t> introduced_boot_;
    bool closed_ = false;
  };
  std::set<Link*> links_;
};

// An operator over a directory, which may be restarted. Agents and Nodes are made by name.
class Cluster {
 public:
  static constexpr std::chrono::milliseconds kBeat{500};

  Cluster() { StartOperator(); }

  FakeClock clock;
  FakeDialer dialer;

  void StartOperator() {
    kube::EmbeddedKubeApi::Options options;
    options.directory = dir_.path() / "api";
    options.clock = &clock;
    options.admission = &admission_;
    options.sync = false;
    options.fault = [this](const char* step) { return fault ? fault(step) : Status::Ok(); };
    auto opened = kube::EmbeddedKubeApi::Open(std::move(options));
    KVF_CHECK(opened.ok(), "cannot open the embedded api");
    api_ = std::move(opened).value();
    kube::Elector::Options election;
    election.lease = {kAgentNamespace, "kvfabric-operator"};
    election.identity = "operator-" + std::to_string(++starts_);
    election.previous_holder_is_gone = true;
    elector_ = std::make_unique<kube::Elector>(*api_, clock, election);
    ControlLoop::Options loop;
    loop.registry.operator_id = election.identity;
    loop.registry.heartbeat = kBeat;
    metrics_ = std::make_unique<MetricsRegistry>();
    loop_ = std::make_unique<ControlLoop>(
        ControlLoop::Environment{api_.get(), &dialer, elector_.get(), &clock, metrics_.get()},
        loop);
  }
  // kill -9: nothing is released.
  void KillOperator() {
    loop_.reset();
    elector_.reset();
    api_.reset();
  }
  bool operator_runs() const { return loop_ != nullptr; }

  // Lets time pass in small steps, everybody doing their work.
  void Run(std::chrono::milliseconds span) {
    constexpr std::chrono::milliseconds kStep{100};
    for (std::chrono::milliseconds done{0}; done < span; done += kStep) {
      clock.Advance(kStep);
      elapsed_ += kStep;
      if (loop_ != nullptr && elapsed_ % std::chrono::milliseconds(1000) == kStep) elector_->Step();
      if (elapsed_ % kBeat == std::chrono::milliseconds(0)) dialer.Beat();
      if (loop_ != nullptr) loop_->Step();
    }
  }

  std::string AddressOf(const std::string& node) const {
    return "127.0.0.1:" + std::to_string(ports_.at(node));
  }
  FakeAgent& agent(const std::string& node) { return dialer.agents.at(AddressOf(node)); }

  void AddAgent(const std::string& node, const std::string& zone = "") {
    const std::uint16_t port = next_port_++;
    ports_[node] = port;
    FakeAgent agent;
    agent.node_name = node;
    agent.agent_uid = "uid-" + node;
    agent.port = port;
    dialer.agents[AddressOf(node)] = agent;
    AddNodeAndPod(node, zone);
  }
  void AddNodeAndPod(const std::string& node, const std::string& zone) {
    const std::string label =
        zone.empty() ? "" : R"(,"labels":{"topology.kubernetes.io/zone":")" + zone + R"("})";
    Must(
        api_->Create(kube::Kind::kNode, R"({"apiVersion":"v1","kind":"Node","metadata":{"name":")" +
                                            node + "\"" + label + R"(},"spec":{}})"));
    AddPod("agent-" + node, node, ports_.at(node));
  }
  void AddPod(const std::string& pod, const std::string& node, std::uint16_t port) {
    const std::string json =
        R"({"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"kvfabric-system","name":")" +
        pod +
        R"(","labels":{"app.kubernetes.io/name":"kvfabric","app.kubernetes.io/component":"agent"}},)"
        R"("spec":{"nodeName":")" +
        node + R"(","containers":[{"name":"agent","ports":[{"name":"grpc","containerPort":)" +
        std::to_string(port) + R"(},{"name":"bulk","containerPort":)" +
        std::to_string(port + 10000) + R"(}]}]}})";
    Must(api_->Create(kube::Kind::kPod, json));
    std::string with_status = json;
    with_status.pop_back();
    Must(api_->UpdateStatus(kube::Kind::kPod,
                            with_status + R"(,"status":{"phase":"Running","podIP":"127.0.0.1"}})"));
  }
  // Replaces a Node's metadata extras and spec.
  void EditNode(const std::string& node, const std::string& metadata, const std::string& spec) {
    Must(
        api_->Update(kube::Kind::kNode, R"({"apiVersion":"v1","kind":"Node","metadata":{"name":")" +
                                            node + "\"" + metadata + R"(},"spec":)" + spec + "}"));
  }
  void ApplyPool(const std::string& spec, const std::string& name = "main") {
    const std::string head =
        R"({"apiVersion":"kvfabric.io/v1alpha1","kind":"KVCachePool","metadata":)"
        R"({"namespace":"default","name":")" +
        name + "\"";
    const auto stored = api_->Get(kube::Kind::kPool, {"default", name});
    if (!stored.ok()) {
      Must(api_->Create(kube::Kind::kPool, head + R"(},"spec":)" + spec + "}"));
    } else {
      Must(api_->Update(kube::Kind::kPool, head + R"(,"resourceVersion":")" +
                                               std::to_string((*stored)->meta.resource_version) +
                                               R"("},"spec":)" + spec + "}"));
    }
  }
  static std::string Spec(const std::string& extra = "", const std::string& capacity = "1Gi") {
    return R"({"tiers":[{"name":"dram","type":"DRAM","capacityPerNode":")" + capacity + R"("}])" +
           (extra.empty() ? "" : "," + extra) + "}";
  }
  // n0, n1, ... and a pool, settled.
  void Form(std::size_t agents, const std::string& spec) {
    for (std::size_t i = 0; i < agents; ++i) {
      AddAgent("n" + std::to_string(i), "z" + std::to_string(i % 3));
    }
    ApplyPool(spec);
    Run(std::chrono::seconds(15));
  }

  // As AddAgent and ApplyPool, for what may be there already or fail to be written.
  void AddAgentTolerant(const std::string& node) {
    tolerant_ = true;
    if (ports_.count(node) == 0) {
      AddAgent(node);
    } else {
      AddNodeAndPod(node, "");
    }
    tolerant_ = false;
  }
  void ApplyPoolTolerant(const std::string& spec) {
    tolerant_ = true;
    ApplyPool(spec);
    tolerant_ = false;
  }

  Pool pool(const std::string& name = "main") {
    const auto object = api_->Get(kube::Kind::kPool, {"default", name});
    KVF_CHECK(object.ok(), "no such pool");
    return *DecodePool(**object);
  }
  std::optional<ShardMap> map(const std::string& name = "main") {
    const auto object = api_->Get(kube::Kind::kShardMap, {"default", name});
    if (!object.ok()) return std::nullopt;
    const auto decoded = DecodeShardMap(**object);
    KVF_CHECK(decoded.ok(), "stored map cannot be read");
    return decoded->map;
  }
  // With the operator down.
  std::optional<ShardMap> map_of_disk() {
    auto store = kube::ObjectStore::Open({dir_.path() / "api", nullptr, false});
    KVF_CHECK(store.ok(), "cannot open the store");
    for (const kube::Object& object : (*store)->TakeLoaded()) {
      if (object.kind == kube::Kind::kShardMap) return DecodeShardMap(object)->map;
    }
    return std::nullopt;
  }
  std::string condition(const std::string& type, const std::string& name = "main") {
    const Pool now = pool(name);
    const auto* found = kube::FindCondition(now.status.conditions, type);
    return found == nullptr
               ? "absent"
               : std::string(kube::ConditionStatusName(found->status)) + " " + found->reason;
  }
  std::string message(const std::string& type, const std::string& name = "main") {
    const Pool now = pool(name);
    const auto* found = kube::FindCondition(now.status.conditions, type);
    return found == nullptr ? "absent" : found->message;
  }
  kube::EmbeddedKubeApi& api() { return *api_; }
  ControlLoop& loop() { return *loop_; }
  kube::Elector& elector() { return *elector_; }
  std::uint64_t writes() const {
    std::uint64_t sum = 0;
    for (const kube::KindTraits& traits : kube::AllKinds()) {
      if (traits.kind != kube::Kind::kLease) sum += api_->writes(traits.kind);
    }
    return sum;
  }

  std::function<Status(const char*)> fault;  // of the store; empty = none

 private:
  void Must(const Result<kube::ObjectPtr>& result) const {
    KVF_CHECK(result.ok() || tolerant_, result.status().message().c_str());
  }

  TempDir dir_;
  CrdAdmission admission_;
  std::map<std::string, std::uint16_t> ports_;
  std::uint16_t next_port_ = 20001;
  bool tolerant_ = false;
  int starts_ = 0;
  std::chrono::milliseconds elapsed_{0};
  std::unique_ptr<MetricsRegistry> metrics_;
  std::unique_ptr<kube::EmbeddedKubeApi> api_;
  std::unique_ptr<kube::Elector> elector_;
  std::unique_ptr<ControlLoop> loop_;
};

// Slots that `node` keeps bytes of.
inline std::size_t SlotsOf(const ShardMap& map, const std::string& node) {
  std::size_t count = 0;
  for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
    for (const MemberIndex owner : map.ByteOwners(slot)) {
      count += owner != kNoOwner && map.members[owner].node_name == node ? 1U : 0U;
    }
  }
  return count;
}

// Byte entries that are at another node in `after`.
inline std::size_t Moved(const ShardMap& before, const ShardMap& after) {
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
