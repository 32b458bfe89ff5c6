#pragma once

// WorkQueue: which keys are to be reconciled, each at most once at a time.
//
// A key added while it waits is there once; added while it is being worked on, it comes again
// after Done. Delayed adds keep the earliest time. A key that fails comes back after 5 ms doubling
// to 1000 s, until Forget. Higher priority goes first, within one priority the older; a key keeps
// the highest it was added with.
//
// Any thread may call. Never blocks: the owner's loop sleeps until NextDue or until on_ready,
// which is called on the adding thread and must be quick. Bounded by the number of distinct keys:
// at max_keys Add answers false, and the caller's next resync brings the key again.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/clock.h"
#include "common/mutex.h"

namespace kvfabric::kube {

class WorkQueue {
 public:
  struct Options {
    std::chrono::milliseconds first_retry{5};
    std::chrono::milliseconds longest_retry{1'000'000};
    std::size_t max_keys = 65'536;
    std::function<void()> on_ready;
  };

  WorkQueue(const Clock& clock, Options options);
  WorkQueue(const WorkQueue&) = delete;  // keys in work belong to one queue
  WorkQueue& operator=(const WorkQueue&) = delete;

  bool Add(const std::string& key, int priority = 0) EXCLUDES(mu_);
  bool AddAfter(const std::string& key, Clock::Duration delay) EXCLUDES(mu_);
  // After a failure: AddAfter with this key's next wait, which is returned.
  std::chrono::milliseconds Retry(const std::string& key) EXCLUDES(mu_);
  // The next failure waits first_retry again.
  void Forget(const std::string& key) EXCLUDES(mu_);

  // A key to work on, or nothing is due. The key is the caller's until Done.
  std::optional<std::string> TryGet() EXCLUDES(mu_);
  void Done(const std::string& key) EXCLUDES(mu_);

  // When TryGet will next have something, as far as is known now.
  std::optional<Clock::TimePoint> NextDue() const EXCLUDES(mu_);
  std::size_t waiting() const EXCLUDES(mu_);  // due and not in work
  unsigned failures(const std::string& key) const EXCLUDES(mu_);

 private:
  struct Entry {
    int priority = 0;
    std::uint64_t order = 0;
  };
  bool AddLocked(const std::string& key, int priority) REQUIRES(mu_);
  void PromoteDelayed(Clock::TimePoint now) REQUIRES(mu_);

  const Clock& clock_;  // borrowed; outlives this
  const Options options_;

  mutable Mutex mu_;
  std::uint64_t next_order_ GUARDED_BY(mu_) = 1;
  std::map<std::string, Entry> dirty_ GUARDED_BY(mu_);  // waiting, or to come again after Done
  std::set<std::string> processing_ GUARDED_BY(mu_);
  std::map<std::string, Clock::TimePoint> delayed_ GUARDED_BY(mu_);
  std::map<std::string, unsigned> failures_ GUARDED_BY(mu_);
};

}  // namespace kvfabric::kube
