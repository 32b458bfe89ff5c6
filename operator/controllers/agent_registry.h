#pragma once

// AgentRegistry: which agents there are, who they are, and the streams to them. It dials every
// running agent pod, settles identities, and hands down pools, maps and drains.
//
// On the control loop's thread. Identity: one agent a node name. Another one at
// another address is refused while the first's stream lives, and while the first is silent for
// less than the hold and its pod still exists; then the newcomer takes the name. The same agent
// (same agentUID) may come back at another address as soon as its old stream has ended.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "operator/controllers/agent_link.h"
#include "operator/controllers/agent_mailbox.h"
#include "operator/kube/backoff.h"
#include "operator/specs/cluster_objects.h"

namespace kvfabric {

// One node's agent as the operator knows it; stays after its stream ended.
struct NodeAgent {
  std::string node_name;
  std::string agent_uid;
  AgentTarget target;
  std::uint16_t bulk_port = 0;
  kube::ObjectName pod;         // empty name = not known (from a stored map)
  bool connected = false;       // introduced itself on a stream that lives
  bool heard = false;           // a report has come during this leadership
  Clock::TimePoint last_heard;  // of the last message; the start of the leadership before any
  std::optional<AgentReport> report;
  AgentLinkId link = 0;
};

class AgentRegistry {
 public:
  struct Options {
    std::string operator_id;
    std::chrono::milliseconds heartbeat{1000};
    std::chrono::milliseconds first_redial{100};
    std::chrono::milliseconds longest_redial{2000};
    std::chrono::milliseconds silence{10'000};  // a stream that says nothing for this long is ended
  };

  AgentRegistry(AgentDialer& dialer, AgentMailbox& mailbox, const Clock& clock, Options options);

  // Leadership began: links of an earlier term are closed, nobody has been heard. `lease_uid`: the
  // Lease that the term counts in.
  void StartTerm(std::uint64_t term, const std::string& lease_uid);
  // Leadership ended: all links close.
  void StopTerm();
  // An agent the stored map names, before it has been heard.
  void Remember(const std::string& node_name, const std::string& agent_uid,
                const AgentTarget& target, std::uint16_t bulk_port);
  // How long a silent agent keeps its name: the longest nodeLossGracePeriod.
  void set_identity_hold(std::chrono::milliseconds hold) { hold_ = hold; }

  // Forgets agents that are not connected, have no pod and are none of `nodes`: what crashed and
  // never came back must not pile up.
  void Retain(const std::set<std::string>& nodes);

  // Dials new pods, drops links of pods that are gone. The list is the whole truth.
  void SetPods(const std::map<kube::ObjectName, std::shared_ptr<const AgentPodFacts>>& pods);
  // Takes the mail, dials what is due. True when something a reconciler looks at has changed.
  bool Step();
  std::optional<Clock::TimePoint> NextDue() const;

  const NodeAgent* Find(const std::string& node_name) const;
  const std::map<std::string, NodeAgent>& agents() const { return agents_; }
  bool PodExists(const kube::ObjectName& pod) const { return pods_.count(pod) != 0; }
  bool HasPodOn(const std::string& node_name) const;
  // Of the maps of these pools at connected agents.
  std::uint64_t HighestAppliedTerm(const std::set<std::string>& pool_uids) const;
  // That an agent answered a refused hello with, in this term; 0 = none did. Counts in our Lease.
  std::uint64_t highest_refusing_term() const { return highest_refusing_term_; }
  // Agents that were refused because their name is taken, and agents that obey another operator:
  // texts for people, by address.
  const std::map<std::string, std::string>& refused() const { return refused_; }
  // What agents refused of late, by node name.
  const std::map<std::string, std::string>& objections() const { return objections_; }

  // Sent when it differs from what the node was last sent, when it reconnects, and again after
  // `again_after` while its reports do not show it.
  void WantPools(const std::string& node_name, std::vector<AgentPoolConfig> pools);
  void WantMap(const std::string& node_name, const std::string& pool_uid, std::uint64_t epoch,
               std::shared_ptr<const std::string> map);
  void WantDrain(const std::string& node_name, bool draining);
  // Sent to every agent that speaks TLS and reports another bundle; again while it does.
  void WantTrust(const std::string& fingerprint, const std::string& trusted);
  // True when no agent that may be reached holds another bundle.
  bool AllTrust(const std::string& fingerprint) const;

  // Agents that have asked for a certificate since the last call; by node name.
  std::map<std::string, std::string> TakeCertificateRequests();
  void SendCertificate(const std::string& node_name, const std::string& certificate,
                       const std::string& trusted);

 private:
  struct Link {
    kube::ObjectName pod;
    AgentTarget target;
    std::uint16_t bulk_port = 0;
    std::unique_ptr<AgentLink> stream;
    std::string node_name;      // once accepted
    Clock::TimePoint active{};  // when it last said anything, or was dialled
    // What this stream was sent last.
    std::optional<std::vector<AgentPoolConfig>> sent_pools;
    Clock::TimePoint sent_pools_at{};
    std::map<std::string, std::pair<std::shared_ptr<const std::string>, Clock::TimePoint>>
        sent_maps;
    std::optional<bool> sent_drain;
    std::string sent_trust;  // fingerprint
    Clock::TimePoint sent_trust_at{};
    std::string certificate_request;  // not answered yet
  };
  struct Dialling {
    kube::Backoff backoff;
    Clock::TimePoint due;
    AgentLinkId link = 0;  // 0 = waits for `due`
  };

  void Dial(const kube::ObjectName& pod, Dialling* dialling);
  void Close(AgentLinkId id, const Status& why);
  void Introduce(AgentLinkId id, Link* link, const AgentIntroduction& introduction,
                 Clock::TimePoint heard);
  // Empty: the newcomer may have the name.
  std::string ObjectionTo(const Link& link, const AgentIntroduction& introduction) const;
  bool Handle(AgentLinkId id, AgentNews& news);
  // Tells people when `why` is the agent's refusal of the hello.
  void NoteRefusal(const Link& link, const Status& why);
  Link* LinkOf(const std::string& node_name);
  bool ShowsPools(const AgentReport& report, const std::vector<AgentPoolConfig>& pools) const;

  AgentDialer& dialer_;    // borrowed
  AgentMailbox& mailbox_;  // borrowed
  const Clock& clock_;     // borrowed
  const Options options_;
  std::chrono::milliseconds hold_{300'000};
  std::optional<std::uint64_t> term_;  // set while leading
  std::string lease_uid_;              // of term_
  std::uint64_t highest_refusing_term_ = 0;
  AgentLinkId next_link_ = 1;
  std::map<kube::ObjectName, AgentPodFacts> pods_;
  std::map<kube::ObjectName, Dialling> dialling_;
  std::map<AgentLinkId, Link> links_;
  std::map<std::string, NodeAgent> agents_;
  std::map<std::string, std::string> refused_;
  std::map<std::string, std::string> objections_;
  std::map<std::string, Clock::TimePoint> objected_at_;
};

}  // namespace kvfabric
