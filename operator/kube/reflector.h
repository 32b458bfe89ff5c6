#pragma once

// Reflector keeps a sink equal to what the API holds of one kind: list, then watch, list again
// when the watch is too old. Informer<T> (informer.h) is the sink everybody uses.
//
// Owned by a control loop; Step and everything else on that loop's thread, except on_ready, which
// the API calls from any thread to say that Step has something to do. Level-based: a sink may miss
// intermediate states, never the last one. Never goes back: a list older than what was seen is
// refused and asked for again.

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
  virtual void Replace(const ObjectList& list) = 0;
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
  };

  Reflector(KubeApi& api, const Clock& clock, Options options, ReflectorSink& sink);

  // Does what there is to do now; returns without waiting for news.
  void Step();
  // When Step must be called without on_ready: the end of a wait after a failure.
  std::optional<Clock::TimePoint> NextDue() const { return retry_at_; }
  // The first list has reached the sink.
  bool synced() const { return synced_; }
  // Everything up to here has reached the sink: what a writer waits for to read its own write.
  std::uint64_t resource_version() const { return version_; }
  std::uint64_t lists() const { return lists_; }

 private:
  void List();
  void Replace();
  void Poll();
  void Fail(const Status& status, const char* action);

  KubeApi& api_;        // borrowed; outlives this
  const Clock& clock_;  // borrowed
  const Options options_;
  ReflectorSink& sink_;  // borrowed
  Backoff backoff_;
  std::optional<Clock::TimePoint> retry_at_;
  std::unique_ptr<ListStream> list_;     // in progress
  ObjectList listed_;                    // what it has given so far
  std::unique_ptr<WatchStream> stream_;  // null: list (or watch again when synced at version_)
  bool must_list_ = true;
  bool synced_ = false;
  std::uint64_t version_ = 0;
  std::uint64_t lists_ = 0;
};

}  // namespace kvfabric::kube
