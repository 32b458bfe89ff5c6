#include "operator/controllers/agent_registry.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace kvfabric {
namespace {

// An order that the reports do not show after this long is sent again.
constexpr std::chrono::milliseconds kSendAgainAfter{2000};
// An order that is still refused is refused again within this.
constexpr std::chrono::milliseconds kObjectionLasts{3 * kSendAgainAfter};

}  // namespace

AgentRegistry::AgentRegistry(AgentDialer& dialer, AgentMailbox& mailbox, const Clock& clock,
                             Options options)
    : dialer_(dialer), mailbox_(mailbox), clock_(clock), options_(std::move(options)) {}

void AgentRegistry::StartTerm(std::uint64_t term, const std::string& lease_uid) {
  StopTerm();
  term_ = term;
  lease_uid_ = lease_uid;
  highest_refusing_term_ = 0;
  for (auto& [name, agent] : agents_) {
    agent.heard = false;
    agent.last_heard = clock_.Now();
  }
  for (auto& [pod, dialling] : dialling_) {
    dialling.due = clock_.Now();
    dialling.backoff.Reset();
  }
}

void AgentRegistry::StopTerm() {
  term_.reset();
  while (!links_.empty()) Close(links_.begin()->first, Cancelled("leadership ended"));
  mailbox_.Take();
}

void AgentRegistry::Remember(const std::string& node_name, const std::string& agent_uid,
                             const AgentTarget& target, std::uint16_t bulk_port) {
  if (agents_.count(node_name) != 0) return;
  NodeAgent& agent = agents_[node_name];
  agent.node_name = node_name;
  agent.agent_uid = agent_uid;
  agent.target = target;
  agent.bulk_port = bulk_port;
  agent.last_heard = clock_.Now();
  for (const auto& [name, pod] : pods_) {
    if (pod.node_name == node_name && pod.ip == target.host && pod.grpc_port == target.grpc_port) {
      agent.pod = name;
    }
  }
}

void AgentRegistry::SetPods(
    const std::map<kube::ObjectName, std::shared_ptr<const AgentPodFacts>>& pods) {
  std::map<kube::ObjectName, AgentPodFacts> next;
  for (const auto& [name, pod] : pods) {
    if (pod->running && !pod->ip.empty() && pod->grpc_port != 0) next.emplace(name, *pod);
  }
  for (auto it = dialling_.begin(); it != dialling_.end();) {
    const auto now = next.find(it->first);
    // Another address or uid is another pod.
    const auto before = pods_.find(it->first);
    if (now == next.end() || before == pods_.end() || !(now->second == before->second)) {
      const AgentLinkId link = it->second.link;
      it = dialling_.erase(it);
      if (link != 0) Close(link, Cancelled("its pod is gone or has changed"));
    } else {
      ++it;
    }
  }
  pods_ = std::move(next);
  for (const auto& [name, pod] : pods_) {
    if (dialling_.count(name) != 0) continue;
    const kube::Backoff::Options backoff{options_.first_redial, options_.longest_redial, 0.2,
                                         std::hash<std::string>{}(pod.uid)};
    dialling_.emplace(name, Dialling{kube::Backoff(backoff), clock_.Now(), 0});
  }
}

void AgentRegistry::Retain(const std::set<std::string>& nodes) {
  for (auto it = agents_.begin(); it != agents_.end();) {
    const bool keep = it->second.connected || nodes.count(it->first) != 0 || HasPodOn(it->first);
    it = keep ? std::next(it) : agents_.erase(it);
  }
  for (auto it = refused_.begin(); it != refused_.end();) {
    const bool keep = std::any_of(pods_.begin(), pods_.end(), [&](const auto& entry) {
      const AgentPodFacts& pod = entry.second;
      return AgentTarget{pod.node_name, pod.ip, pod.grpc_port}.ToString() == it->first;
    });
    it = keep ? std::next(it) : refused_.erase(it);
  }
}

void AgentRegistry::Dial(const kube::ObjectName& pod, Dialling* dialling) {
  const AgentPodFacts& facts = pods_.at(pod);
  const AgentLinkId id = next_link_++;
  Link& link = links_[id];
  link.pod = pod;
  link.target = {facts.node_name, facts.ip, facts.grpc_port};
  link.bulk_port = facts.bulk_port;
  link.active = clock_.Now();
  dialling->link = id;
  link.stream =
      dialer_.Dial(link.target, {*term_, options_.operator_id, options_.heartbeat, lease_uid_},
                   mailbox_.ListenerFor(id));
}

void AgentRegistry::Close(AgentLinkId id, const Status& why) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  Link link = std::move(it->second);
  links_.erase(it);
  link.stream.reset();
  if (!link.node_name.empty()) {
    NodeAgent& agent = agents_[link.node_name];
    if (agent.link == id) {
      agent.connected = false;
      agent.link = 0;
      const bool ours = why.code() == StatusCode::kCancelled;
      Log(ours ? LogLevel::kInfo : LogLevel::kWarn, "agent stream ended",
          {{"node", link.node_name}, {"reason", why.message()}});
    }
  }
  const auto dialling = dialling_.find(link.pod);
  if (dialling != dialling_.end() && dialling->second.link == id) {
    dialling->second.link = 0;
    dialling->second.due = clock_.Now() + dialling->second.backoff.Next();
  }
}

std::string AgentRegistry::ObjectionTo(const Link& link,
                                       const AgentIntroduction& introduction) const {
  if (introduction.node_name != link.target.node_name) {
    return "agent at " + link.target.ToString() + " says it is node " + introduction.node_name +
           ", but its pod runs on " + link.target.node_name + ": set its nodeName to the node's";
  }
  const auto it = agents_.find(introduction.node_name);
  if (it == agents_.end() || it->second.target == link.target) return "";
  const NodeAgent& first = it->second;
  const std::string taken = "ALREADY_EXISTS: node " + introduction.node_name + " is the agent at " +
                            first.target.ToString() + " (" + first.agent_uid + "); the one at " +
                            link.target.ToString() + " (" + introduction.agent_uid + ") is refused";
  if (first.connected) return taken + " while the first is connected: stop one of them";
  const bool same_agent = first.agent_uid == introduction.agent_uid;
  const bool held = clock_.Now() - first.last_heard < hold_;
  const bool pod_is_there = !first.pod.name.empty() && PodExists(first.pod);
  if (!same_agent && held && pod_is_there) {
    return taken + " while the first may come back: wait, or delete its pod";
  }
  return "";
}

void AgentRegistry::Introduce(AgentLinkId id, Link* link, const AgentIntroduction& introduction,
                              Clock::TimePoint heard) {
  const std::string objection = ObjectionTo(*link, introduction);
  if (!objection.empty()) {
    if (refused_[link->target.ToString()] != objection) {
      LogError("agent refused", {{"reason", objection}});
    }
    refused_[link->target.ToString()] = objection;
    Close(id, AlreadyExists(objection));
    return;
  }
  refused_.erase(link->target.ToString());
  dialling_.at(link->pod).backoff.Reset();
  NodeAgent& agent = agents_[introduction.node_name];
  const bool news = agent.agent_uid != introduction.agent_uid || !agent.connected;
  agent.node_name = introduction.node_name;
  agent.agent_uid = introduction.agent_uid;
  agent.target = link->target;
  agent.bulk_port = link->bulk_port;
  agent.pod = link->pod;
  agent.connected = true;
  agent.link = id;
  agent.last_heard = std::max(agent.last_heard, heard);
  agent.report.reset();  // of another run
  link->node_name = introduction.node_name;
  if (news) {
    LogInfo("agent connected", {{"node", agent.node_name},
                                {"agent", agent.agent_uid},
                                {"address", agent.target.ToString()},
                                {"boot_epoch", introduction.boot_epoch}});
  }
}

void AgentRegistry::NoteRefusal(const Link& link, const Status& why) {
  const bool refused =
      why.code() == StatusCode::kAlreadyExists || why.code() == StatusCode::kFailedPrecondition;
  if (!link.node_name.empty() || !refused) return;
  std::string& text = refused_[link.target.ToString()];
  const std::string now = "agent at " + link.target.ToString() + ": " + why.message();
  if (text != now) LogError("agent refuses this operator", {{"reason", now}});
  text = now;
}

bool AgentRegistry::Handle(AgentLinkId id, AgentNews& news) {
  const auto it = links_.find(id);
  if (it == links_.end()) return false;  // closed by us meanwhile
  it->second.active = std::max(it->second.active, news.heard);
  if (news.introduction.has_value()) {
    Introduce(id, &it->second, *news.introduction, news.heard);
    if (links_.count(id) == 0) return true;
  }
  const std::string node = it->second.node_name;
  if (node.empty()) highest_refusing_term_ = std::max(highest_refusing_term_, news.known_term);
  if (!node.empty()) {
    NodeAgent& agent = agents_[node];
    if (news.report.has_value()) {
      agent.last_heard = std::max(agent.last_heard, news.heard);
      agent.heard = true;
      agent.report = std::move(news.report);
    }
    if (news.certificate_request.has_value()) {
      it->second.certificate_request = std::move(*news.certificate_request);
    }
    if (news.refused.has_value() && !news.refused->empty()) {
      if (objections_[node] != *news.refused) {
        LogWarn("order refused by agent", {{"node", node}, {"reason", *news.refused}});
      }
      objections_[node] = *news.refused;
      objected_at_[node] = news.heard;
    }
  }
  if (news.closed.has_value()) {
    NoteRefusal(it->second, *news.closed);
    Close(id, *news.closed);
  }
  return true;
}

bool AgentRegistry::Step() {
  bool changed = false;
  for (auto& [id, news] : mailbox_.Take()) changed = Handle(id, news) || changed;
  if (!term_.has_value()) return changed;
  std::vector<AgentLinkId> silent;
  for (auto it = objected_at_.begin(); it != objected_at_.end();) {
    const bool old = clock_.Now() - it->second >= kObjectionLasts;
    if (old) objections_.erase(it->first);
    it = old ? objected_at_.erase(it) : std::next(it);
  }
  for (const auto& [id, link] : links_) {
    if (clock_.Now() - link.active >= options_.silence) silent.push_back(id);
  }
  for (const AgentLinkId id : silent) {
    Close(id, DeadlineExceeded("silent for too long"));
    changed = true;
  }
  for (auto& [pod, dialling] : dialling_) {
    if (dialling.link == 0 && dialling.due <= clock_.Now()) Dial(pod, &dialling);
  }
  return changed;
}

std::optional<Clock::TimePoint> AgentRegistry::NextDue() const {
  std::optional<Clock::TimePoint> next;
  if (!term_.has_value()) return next;
  for (const auto& [pod, dialling] : dialling_) {
    if (dialling.link == 0 && (!next.has_value() || dialling.due < *next)) next = dialling.due;
  }
  return next;
}

const NodeAgent* AgentRegistry::Find(const std::string& node_name) const {
  const auto it = agents_.find(node_name);
  return it == agents_.end() ? nullptr : &it->second;
}

bool AgentRegistry::HasPodOn(const std::string& node_name) const {
  return std::any_of(pods_.begin(), pods_.end(),
                     [&](const auto& entry) { return entry.second.node_name == node_name; });
}

std::uint64_t AgentRegistry::HighestAppliedTerm(const std::set<std::string>& pool_uids) const {
  std::uint64_t highest = 0;
  for (const auto& [name, agent] : agents_) {
    if (!agent.connected || !agent.report.has_value()) continue;
    for (const AgentPoolReport& pool : agent.report->pools) {
      if (pool_uids.count(pool.uid) != 0) highest = std::max(highest, pool.applied_term);
    }
  }
  return highest;
}

AgentRegistry::Link* AgentRegistry::LinkOf(const std::string& node_name) {
  const auto agent = agents_.find(node_name);
  if (agent == agents_.end() || !agent->second.connected) return nullptr;
  const auto link = links_.find(agent->second.link);
  return link == links_.end() ? nullptr : &link->second;
}

bool AgentRegistry::ShowsPools(const AgentReport& report,
                               const std::vector<AgentPoolConfig>& pools) const {
  return report.pools.size() == pools.size() &&
         std::all_of(pools.begin(), pools.end(), [&](const AgentPoolConfig& pool) {
           const AgentPoolReport* shown = report.FindPool(pool.uid);
           return shown != nullptr && shown->applied_generation == pool.generation;
         });
}

void AgentRegistry::WantPools(const std::string& node_name, std::vector<AgentPoolConfig> pools) {
  Link* link = LinkOf(node_name);
  if (link == nullptr) return;
  const NodeAgent& agent = agents_.at(node_name);
  const Clock::TimePoint now = clock_.Now();
  if (link->sent_pools.has_value() && *link->sent_pools == pools) {
    const bool shown = !agent.report.has_value() || ShowsPools(*agent.report, pools);
    if (shown || now - link->sent_pools_at < kSendAgainAfter) return;
  }
  link->sent_pools = pools;
  link->sent_pools_at = now;
  link->stream->SendPools(std::move(pools));
}

void AgentRegistry::WantMap(const std::string& node_name, const std::string& pool_uid,
                            std::uint64_t epoch, std::shared_ptr<const std::string> map) {
  Link* link = LinkOf(node_name);
  // Pools go first: an agent refuses the map of a pool it does not know.
  if (link == nullptr || !link->sent_pools.has_value()) return;
  const NodeAgent& agent = agents_.at(node_name);
  const Clock::TimePoint now = clock_.Now();
  auto& [sent, at] = link->sent_maps[pool_uid];
  if (sent == map) {
    const AgentPoolReport* shown =
        agent.report.has_value() ? agent.report->FindPool(pool_uid) : nullptr;
    const bool applied =
        shown != nullptr && shown->applied_epoch == epoch && shown->applied_term == *term_;
    if (applied || now - at < kSendAgainAfter) return;
  }
  sent = map;
  at = now;
  link->stream->SendMap(pool_uid, std::move(map));
}

void AgentRegistry::WantTrust(const std::string& fingerprint, const std::string& trusted) {
  const Clock::TimePoint now = clock_.Now();
  for (auto& [id, link] : links_) {
    if (link.node_name.empty()) continue;
    const NodeAgent& agent = agents_.at(link.node_name);
    if (!agent.report.has_value() || !agent.report->tls.has_value() ||
        agent.report->tls->trusted == fingerprint) {
      continue;
    }
    if (link.sent_trust == fingerprint && now - link.sent_trust_at < kSendAgainAfter) continue;
    link.sent_trust = fingerprint;
    link.sent_trust_at = now;
    link.stream->SendCertificate("", trusted);
  }
}

bool AgentRegistry::AllTrust(const std::string& fingerprint) const {
  return std::all_of(agents_.begin(), agents_.end(), [&](const auto& entry) {
    const NodeAgent& agent = entry.second;
    // What is gone for good keeps nobody waiting; a pod that is there may come back as it was.
    if (!agent.connected && (agent.pod.name.empty() || !PodExists(agent.pod))) return true;
    return agent.connected && agent.report.has_value() &&
           (!agent.report->tls.has_value() || agent.report->tls->trusted == fingerprint);
  });
}

std::map<std::string, std::string> AgentRegistry::TakeCertificateRequests() {
  std::map<std::string, std::string> taken;
  for (auto& [id, link] : links_) {
    if (link.node_name.empty() || link.certificate_request.empty()) continue;
    taken[link.node_name] = std::exchange(link.certificate_request, {});
  }
  return taken;
}

void AgentRegistry::SendCertificate(const std::string& node_name, const std::string& certificate,
                                    const std::string& trusted) {
  Link* link = LinkOf(node_name);
  if (link != nullptr) link->stream->SendCertificate(certificate, trusted);
}

void AgentRegistry::WantDrain(const std::string& node_name, bool draining) {
  Link* link = LinkOf(node_name);
  if (link == nullptr || !link->sent_pools.has_value()) return;
  const NodeAgent& agent = agents_.at(node_name);
  // A fresh stream to an agent that drains for an earlier leader.
  const bool active = agent.report.has_value() && agent.report->drain.active;
  const bool before = link->sent_drain.value_or(active);
  if (before == draining && (!draining || link->sent_drain.has_value())) return;
  link->sent_drain = draining;
  link->stream->SendDrain(draining, std::chrono::seconds(0));
}

}  // namespace kvfabric
