#pragma once

// FakeAgents: agents as the operator sees them through AgentLink. One thread.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/certificate.h"
#include "common/check.h"
#include "operator/controllers/agent_link.h"
#include "placement/shard_map_codec.h"

namespace kvfabric {

// One agent process. Obeys as a real one does: fences by term and by (term, epoch) of a pool.
struct FakeAgent {
  std::string node_name;
  std::string agent_uid;
  std::uint64_t boot_epoch = 1;
  bool up = true;       // takes and keeps streams
  bool silent = false;  // SIGSTOP: streams stay, nothing is said
  bool recovering = false;
  bool ready = true;
  std::uint64_t arena_bytes = 8ULL << 30U;
  std::uint64_t under_replicated = 0;
  std::uint64_t used_bytes = 0;  // of each pool
  bool drain_done = false;
  bool refuses_maps = false;

  std::string refuses_operators;  // the text, when it obeys another one
  std::string lease_uid;          // whose terms highest_term counts in
  std::uint64_t highest_term = 0;
  std::map<std::string, AgentPoolConfig> pools;
  std::map<std::string, ShardMap> maps;
  std::set<std::string> dropped_pools;  // every uid that was taken away
  bool draining = false;
  bool speaks_tls = false;
  std::string certificate_request;  // asked for until it has a certificate
  std::string certificate;
  std::string trusted;
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
      if (!agent->refuses_operators.empty()) {
        return Close(AlreadyExists(agent->refuses_operators));
      }
      if (agent->lease_uid != session_.lease_uid) agent->highest_term = 0;
      agent->lease_uid = session_.lease_uid;
      if (session_.term < agent->highest_term) {
        listener_->OnRefused("term " + std::to_string(agent->highest_term) + " was seen",
                             agent->highest_term);
        return Close(FailedPrecondition("old term"));
      }
      agent->highest_term = session_.term;
      if (!introduced_boot_.has_value()) {
        introduced_boot_ = agent->boot_epoch;
        listener_->OnIntroduction(
            {agent->node_name, agent->agent_uid, agent->boot_epoch, "test", ""});
      }
      if (agent->certificate.empty() && !agent->certificate_request.empty()) {
        listener_->OnCertificateRequest(agent->certificate_request);
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
    void SendCertificate(const std::string& certificate, const std::string& trusted) override {
      FakeAgent* agent = Reachable();
      if (agent == nullptr) return;
      if (!certificate.empty()) agent->certificate = certificate;
      agent->trusted = trusted;
    }
    void SendMap(const std::string& pool_uid, std::shared_ptr<const std::string> bytes) override {
      FakeAgent* agent = Reachable();
      if (agent == nullptr) return;
      ++agent->map_messages;
      const auto map = ParseShardMap(AsBytes(*bytes));
      KVF_CHECK(map.ok(), "operator sent a map that cannot be read");
      if (agent->refuses_maps || agent->pools.count(pool_uid) == 0) {
        return listener_->OnRefused("map refused", agent->highest_term);
      }
      const auto known = agent->maps.find(pool_uid);
      if (known != agent->maps.end() &&
          (map->term < known->second.term || map->epoch < known->second.epoch)) {
        return listener_->OnRefused("map is older than the applied one", agent->highest_term);
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
      if (agent.speaks_tls) {
        report.tls = {!agent.certificate.empty(), std::int64_t{1} << 40U,
                      TrustFingerprint(agent.trusted)};
      }
      report.drain.active = agent.draining;
      report.drain.done = agent.draining && agent.drain_done;
      for (const auto& [uid, pool] : agent.pools) {
        AgentPoolReport out;
        out.uid = uid;
        out.applied_generation = pool.generation;
        out.capacity_bytes = pool.dram_capacity_bytes;
        out.under_replicated = agent.under_replicated;
        out.used_bytes = agent.used_bytes;
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

}  // namespace kvfabric
