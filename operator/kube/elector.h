#pragma once

// Elector: who may write, by a Lease. Its term (the Lease's leaseTransitions, from 1 on) fences
// everything a leader sends.
//
// Step is called by one thread of its own, so that no other work delays a renewal; the rest from
// any thread. No wall clocks are compared between hosts: a foreign lease has ended when it did not
// change for its own duration on our steady clock. Leadership counts from before the request was
// sent, so it ends here before anybody else can take over. Once lost, a new term is needed.

#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "common/clock.h"
#include "common/mutex.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

class Elector {
 public:
  struct Options {
    ObjectName lease;
    std::string identity;  // of this process, unique: host name + "_" + random
    std::chrono::milliseconds lease_duration{8000};
    std::chrono::milliseconds renew_deadline{5000};
    std::chrono::milliseconds retry_period{1000};
    // The holder cannot be alive (the embedded API's lock proves it): take over at the first Step.
    bool previous_holder_is_gone = false;
    // Called by Step's thread when leadership comes or goes; must be quick.
    std::function<void()> on_change;
    std::uint64_t seed = 1;  // of the jitter between tries
  };

  Elector(KubeClient& api, const Clock& clock, Options options);
  Elector(const Elector&) = delete;  // one identity, one elector
  Elector& operator=(const Elector&) = delete;

  // One try to acquire or renew; returns how long to wait before the next.
  std::chrono::milliseconds Step() EXCLUDES(mu_);
  // Gives the Lease up so that a successor need not wait. After the last write; Step must not run
  // any more.
  void Release() EXCLUDES(mu_);

  // Terms up to `seen` were in use although the Lease does not know them (it was deleted, or the
  // store is an older copy): the next Step begins a term above. No effect when it has one.
  void RaiseTerm(std::uint64_t seen) EXCLUDES(mu_);

  // True while this process may write; asked before every write.
  bool leading() const EXCLUDES(mu_);
  // The current or last term; 0 before the first.
  std::uint64_t term() const EXCLUDES(mu_);
  // metadata.uid of the Lease that term() counts in.
  std::string lease_uid() const EXCLUDES(mu_);
  // When the current leadership began; only meaningful while leading.
  Clock::TimePoint leading_since() const EXCLUDES(mu_);
  // How long ago leadership ended without Step noticing (its thread hangs); zero otherwise.
  Clock::Duration overdue() const EXCLUDES(mu_);

 private:
  struct Record {
    std::string holder;
    std::chrono::milliseconds duration{0};
    std::uint64_t transitions = 0;
    std::string acquire_time;
  };

  void TryOnce(Clock::TimePoint sent);
  Status Write(const Record& record, bool create);
  bool HeldByOther(Clock::TimePoint now) const;
  void Observe(const ObjectPtr& object);
  void SetLeading(bool leading, Clock::TimePoint sent, std::uint64_t term) EXCLUDES(mu_);

  KubeClient& api_;     // borrowed; outlives this
  const Clock& clock_;  // borrowed
  const Options options_;

  // Owned by Step's thread.
  std::mt19937_64 random_;
  ObjectPtr observed_;  // the Lease as last seen; null = unknown
  Record record_;       // its content
  Clock::TimePoint observed_at_{};
  bool first_ = true;

  mutable Mutex mu_;
  bool leading_ GUARDED_BY(mu_) = false;
  std::uint64_t term_ GUARDED_BY(mu_) = 0;
  std::uint64_t raised_ GUARDED_BY(mu_) = 0;  // by RaiseTerm
  std::string lease_uid_ GUARDED_BY(mu_);
  Clock::TimePoint since_ GUARDED_BY(mu_){};
  Clock::TimePoint lead_until_ GUARDED_BY(mu_){};
};

}  // namespace kvfabric::kube
