#pragma once

// Reflector keeps a sink equal to what the API holds of one kind: all of it first (by a watch with
// initial events where the API offers it, else by a list), then what changes. Informer<T>
// (informer.h) is the sink everybody uses. The rules are those of Kubernetes' own clients
// (KEP-3157 for initial events, KEP-5504 for comparing versions).
//
// Owned by a control loop; Step and everything else on that loop's thread, except on_ready, which
// the API calls from any thread to say that Step has something to do. Level-based: a sink may miss
// intermediate states, never the last one.
//
// Never goes back: a list older than what the sink holds is refused and asked for again, from the
// store itself. Only when the store says so twice in a row has it been restored to an older state,
// and is believed.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/clock.h"
#include "operator/kube/backoff.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

class ReflectorSink {
 public:
  virtual ~ReflectorSink() = default;
  // A fresh collection begins; one that was not committed is dropped.
  virtual void BeginCollect() = 0;
  // An event of the collection; whatever a list gives is kAdded.
  virtual void Collect(const WatchEvent& event) = 0;
  // The collection takes the place of all there was.
  virtual void CommitCollect() = 0;
  virtual void Apply(const WatchEvent& event) = 0;
};

class Reflector {
 public:
  struct Options {
    Kind kind = Kind::kNode;
    Scope scope;
    std::function<void()> on_ready;
    Backoff::Options backoff{std::chrono::milliseconds(800), std::chrono::milliseconds(30'000), 1.0,
                             1};
    // So long without a failure, and the next one waits as the first did.
    std::chrono::milliseconds healthy{120'000};
    // A watch that ends sooner, without an event, counts as a failure.
    std::chrono::milliseconds shortest_watch{1000};
  };
  struct Counters {
    std::uint64_t lists = 0;     // collections committed, by list or by initial events
    std::uint64_t watches = 0;   // opened
    std::uint64_t failures = 0;  // that were waited for
  };

  Reflector(KubeApi& api, const Clock& clock, Options options, ReflectorSink& sink);

  // Does what there is to do now; returns without waiting for news.
  void Step();
  // When Step must be called without on_ready: the end of a wait after a failure.
  std::optional<Clock::TimePoint> NextDue() const { return retry_at_; }
  // The first collection has reached the sink.
  bool synced() const { return synced_; }
  // Everything up to here has reached the sink: what a writer waits for to read its own write.
  std::uint64_t resource_version() const { return version_; }
  const Counters& counters() const { return counters_; }

 private:
  enum class Phase : std::uint8_t {
    kCollect,  // nothing is open; the next is a collection
    kList,     // stream list_ is collecting
    kInitial,  // stream watch_ is collecting
    kResume,   // nothing is open; the next is a watch from version_
    kWatch,    // stream watch_ gives changes
  };

  // Each does one step of its phase; true when the new phase has something to do at once.
  bool OpenCollection();
  bool PollList();
  bool OpenWatch();
  bool PollWatch();
  bool TakeBatch(const WatchBatch& batch);
  // False: too old, another collection is due.
  bool Commit(std::uint64_t version);
  bool WatchEnded(const Status& why);
  void Fail(const Status& status, const char* action);
  bool InitialEventsAreRefused(const Status& why) const;

  KubeApi& api_;        // borrowed; outlives this
  const Clock& clock_;  // borrowed
  const Options options_;
  ReflectorSink& sink_;  // borrowed
  Backoff backoff_;
  std::optional<Clock::TimePoint> retry_at_;
  std::optional<Clock::TimePoint> last_failure_;  // the end of its wait
  Phase phase_ = Phase::kCollect;
  bool initial_events_ = true;  // until the API refuses them
  bool from_store_ = true;      // the next list asks the store itself, not a cache
  bool older_before_ = false;   // the store's last list was older than version_
  std::unique_ptr<ListStream> list_;
  std::unique_ptr<WatchStream> watch_;
  Clock::TimePoint opened_at_{};
  bool watch_gave_ = false;  // an event since it was opened
  bool synced_ = false;
  std::uint64_t version_ = 0;
  Counters counters_;
};

}  // namespace kvfabric::kube
