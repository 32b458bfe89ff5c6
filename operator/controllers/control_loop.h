#pragma once

// ControlLoop: the operator's one working thread. It steps the informers, follows leadership, the
// agents and the queue, and reconciles. Everything in it happens in Step, so a test drives it on a
// fake clock and a process runs it with Run.
//
// Owned by main. Wake may be called from any thread; health and counters too; the rest on the
// thread that steps. Leadership itself is renewed elsewhere (Elector has its own thread): while it
// is not held nothing is written and no stream is open.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "operator/controllers/agent_registry.h"
#include "operator/controllers/certificates.h"
#include "operator/controllers/pool_reconciler.h"
#include "operator/kube/elector.h"
#include "operator/kube/fenced_kube.h"
#include "operator/kube/informer.h"
#include "operator/kube/kube_api.h"
#include "operator/kube/work_queue.h"

namespace kvfabric {

class ControlLoop {
 public:
  struct Options {
    AgentRegistry::Options registry{};
    PoolReconciler::Options reconciler{};
    std::string agent_namespace = kAgentNamespace;  // where the agents' pods are
    std::chrono::milliseconds tick{250};            // each pool is looked at this often
    std::chrono::milliseconds gather{10};           // reports that come together cause one look
  };
  struct Environment {
    kube::KubeApi* api = nullptr;
    AgentDialer* dialer = nullptr;
    kube::Elector* elector = nullptr;
    const Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;
    Certificates* certificates = nullptr;  // null: agents speak in clear
  };

  ControlLoop(const Environment& environment, Options options);
  ~ControlLoop();
  ControlLoop(const ControlLoop&) = delete;  // parts point to each other
  ControlLoop& operator=(const ControlLoop&) = delete;

  // One pass: does what there is to do, waits for nothing.
  void Step();
  // When Step is needed if nobody wakes it.
  Clock::TimePoint NextDue() const;
  // Steps until stopped. On the machine's clock only.
  void Run(const std::stop_token& stop);
  void Wake() EXCLUDES(mu_);
  // Closes all streams; after the last Step.
  void Stop();

  bool synced() const { return synced_.load(std::memory_order_acquire); }
  // When the last Step ended: a loop that hangs is not alive.
  Clock::TimePoint last_step() const {
    return Clock::TimePoint(Clock::Duration(last_step_.load(std::memory_order_acquire)));
  }
  const AgentRegistry& registry() const { return *registry_; }
  const PoolReconciler& reconciler() const { return *reconciler_; }
  const kube::WorkQueue& queue() const { return *queue_; }

 private:
  struct Probe;

  void FollowLeadership();
  // Agents have seen a higher term, of one of our pools (the Lease was deleted) or of our Lease
  // (the store is an older copy): they would refuse us for good. The elector takes a higher one by
  // writing the Lease, so a leader that was deposed gains nothing by it.
  void CatchUpTerm();
  void ReconcileDue();
  // Answers agents that want a certificate, spreads the bundle, moves a rotation on.
  void TendCertificates();
  void EnqueueAll(Clock::Duration delay);
  void SetIdentityHold();
  void SetHeld();

  const Environment environment_;
  const Options options_;
  std::unique_ptr<Probe> probe_;
  std::unique_ptr<AgentMailbox> mailbox_;
  std::unique_ptr<AgentRegistry> registry_;
  std::unique_ptr<kube::WorkQueue> queue_;
  std::unique_ptr<kube::Informer<Pool>> pools_;
  std::unique_ptr<kube::Informer<ShardMapObject>> maps_;
  std::unique_ptr<kube::Informer<NodeFacts>> nodes_;
  std::unique_ptr<kube::Informer<AgentPodFacts>> pods_;
  std::unique_ptr<kube::FencedKube> fenced_;  // what reconcilers write through
  std::unique_ptr<PoolReconciler> reconciler_;
  std::optional<std::uint64_t> term_;
  std::string lease_uid_;     // of term_
  std::uint64_t raised_ = 0;  // highest term the elector was told of
  bool pods_changed_ = true;

  std::atomic<bool> synced_{false};  // release when set, acquire when read
  std::atomic<Clock::Duration::rep> last_step_{0};
  Mutex mu_;
  CondVar wake_;
  bool woken_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric
