#pragma once

// EventRecorder writes Events (events.k8s.io/v1) of what happened to an object, for `kubectl
// describe`. The name of an Event is made of the object and the reason, so that there is one for
// each pair however often it happens and whoever leads: a repetition raises series.count. Its note
// stays the first one (the API lets nobody change it).
//
// Callers record transitions, never what they find at each look. A write that fails is logged and
// counted and otherwise forgotten: Events are for people.
//
// One thread. Remembers at most max_known pairs, to write a repetition at most every `refresh`.

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "common/clock.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

inline constexpr std::size_t kMaxEventNoteBytes = 1024;

struct EventSubject {
  Kind kind = Kind::kPool;
  ObjectName name;
  std::string uid;
};

struct EventText {
  bool warning = false;
  std::string reason;  // one CamelCase word
  std::string action;  // what was done or looked at, one CamelCase word
  std::string note;    // cut at kMaxEventNoteBytes
  bool operator==(const EventText&) const = default;
};

class EventRecorder {
 public:
  struct Options {
    std::string instance;  // of the operator
    std::chrono::milliseconds refresh{30'000};
    std::size_t max_known = 4096;
  };

  EventRecorder(KubeClient& api, const Clock& clock, Options options);

  void Record(const EventSubject& subject, const EventText& text);

  std::uint64_t written() const { return written_; }
  std::uint64_t failed() const { return failed_; }

 private:
  struct Known {
    Clock::TimePoint written{};
    std::uint64_t pending = 0;  // repetitions since
  };

  Status Write(const EventSubject& subject, const EventText& text, const ObjectName& name,
               std::uint64_t repetitions);
  Status Repeat(const ObjectPtr& stored, std::uint64_t repetitions);

  KubeClient& api_;     // borrowed
  const Clock& clock_;  // borrowed
  const Options options_;
  std::map<ObjectName, Known> known_;
  std::uint64_t written_ = 0;
  std::uint64_t failed_ = 0;
};

}  // namespace kvfabric::kube
