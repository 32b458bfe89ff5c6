#pragma once

// The rules every KubeApi keeps, as one test suite. An implementation is instantiated with a
// factory (INSTANTIATE_TEST_SUITE_P in its own .cc); the suite knows nothing else of it.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

// One API with our CRDs installed, for one test.
class KubeUnderTest {
 public:
  virtual ~KubeUnderTest() = default;
  virtual KubeApi& api() = 0;
  // Two namespaces that exist and hold nothing of ours.
  virtual std::string ns() const { return "default"; }
  virtual std::string other_ns() const { return "elsewhere"; }
  // After that many events of one kind nobody can watch from before them.
  // 0: no number is enough, and our CRDs were installed after version 1.
  virtual int events_kept() const = 0;
  // Within this a watch without events moves on.
  virtual std::chrono::milliseconds bookmark_within() const { return std::chrono::seconds(5); }
};

struct KubeTarget {
  std::string name;
  std::function<std::unique_ptr<KubeUnderTest>()> make;
};

inline void PrintTo(const KubeTarget& target, std::ostream* out) { *out << target.name; }

// What on_ready of a stream sets.
class Signal {
 public:
  void Set() EXCLUDES(mu_);
  // Waits for a Set since the last Wait; false at the deadline.
  bool Wait(std::chrono::steady_clock::time_point deadline) EXCLUDES(mu_);

 private:
  Mutex mu_;
  CondVar changed_;
  bool set_ GUARDED_BY(mu_) = false;
};

class KubeConformance : public ::testing::TestWithParam<KubeTarget> {
 protected:
  // A watch and what it has given.
  struct Watching {
    std::shared_ptr<Signal> signal = std::make_shared<Signal>();
    std::unique_ptr<WatchStream> stream;
    std::vector<WatchEvent> events;
    std::uint64_t resource_version = 0;
    bool initial_done = false;
    Status ended;  // OK while it runs
  };

  void SetUp() override {
    target_ = GetParam().make();
    ASSERT_NE(target_, nullptr) << "the API under test cannot be reached";
  }
  KubeApi& api() { return target_->api(); }
  KubeUnderTest& target() { return *target_; }

  // Objects of the test's namespace.
  std::string ConfigMap(const std::string& name, const std::string& data,
                        const std::string& extra_metadata = "") const;
  // A pool that passes the schema; `spec` adds members (",\"paused\":true").
  std::string Pool(const std::string& name, const std::string& extra_metadata = "",
                   const std::string& spec = "", const std::string& status = "") const;
  ObjectName Name(const std::string& name) const { return {target_->ns(), name}; }
  static std::string Guard(const ObjectPtr& object);

  // Everything a list gives; fails the test when it does not come.
  ObjectList ListAll(Kind kind, const Scope& scope,
                     std::optional<std::uint64_t> not_older_than = std::nullopt);
  // A watch from now, or from `from`.
  Watching StartWatch(Kind kind, const Scope& scope, std::optional<WatchFrom> from = std::nullopt);
  // Polls until `enough` says so, the stream ends, or the deadline, which fails the test.
  void PollUntil(Watching& watching, const std::function<bool(const Watching&)>& enough);
  void PollEvents(Watching& watching, std::size_t count) {
    PollUntil(watching, [count](const Watching& w) { return w.events.size() >= count; });
  }

 private:
  std::unique_ptr<KubeUnderTest> target_;
};

// `ADDED a, MODIFIED a`: what happened to what.
std::string Story(const std::vector<WatchEvent>& events);

}  // namespace kvfabric::kube
