#pragma once

// FaultScript stands between an operator and its API and perturbs what the operator sees and what
// its writes answer, as overloaded, lagging and dying API servers do. What the API holds stays
// right; a test compares the end with what should be. One thread.
//
// The method is Sieve's (Sun et al., OSDI 2022): crash between any two writes, stale views,
// unobserved states.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "common/clock.h"
#include "tests/operator/forwarding_kube.h"

namespace kvfabric {

// What a test turns; outlives the operators it plagues.
struct Faults {
  // Watches of these kinds say nothing, as if the network swallowed their events. Lists of them
  // stay unanswered.
  std::set<kube::Kind> frozen;
  bool unreachable = false;  // every call fails
  // Every call fails with 429, Retry-After 1 s, in this share of cases.
  double storm = 0;
  // Writes are done, but in this share of cases their answer is lost.
  double lost_answers = 0;
  bool expire_watches = false;  // 410 at connect and in stream
  bool break_watches = false;   // connections reset
  // The operator dies in the write of this number: done, but neither it nor anything later hears
  // of it. Leases are not counted.
  std::optional<std::uint64_t> die_in_write;
  // Called before each write that reaches the API.
  std::function<void(kube::Kind)> on_write;

  // What came of it.
  std::uint64_t writes = 0;  // that reached the API, without Leases
  std::uint64_t lists = 0;
  bool dead = false;
};

class FaultScript final : public kube::ForwardingKube {
 public:
  FaultScript(kube::KubeApi& api, Faults& faults, std::uint64_t seed)
      : ForwardingKube(api), faults_(faults), random_(seed) {}

  Result<kube::ObjectPtr> Get(kube::Kind kind, const kube::ObjectName& name) override;
  Result<kube::ObjectPtr> Create(kube::Kind kind, const std::string& json) override;
  Result<kube::ObjectPtr> Update(kube::Kind kind, const std::string& json) override;
  Result<kube::ObjectPtr> UpdateStatus(kube::Kind kind, const std::string& json) override;
  Result<kube::ObjectPtr> Apply(kube::Kind kind, const std::string& json,
                                const kube::ApplyOptions& options) override;
  Result<kube::ObjectPtr> Patch(kube::Kind kind, const kube::ObjectName& name, kube::PatchType type,
                                const std::string& patch, bool status) override;
  Status Delete(kube::Kind kind, const kube::ObjectName& name,
                const kube::Preconditions& preconditions) override;
  Result<std::unique_ptr<kube::ListStream>> StartList(kube::Kind kind, const kube::Scope& scope,
                                                      std::optional<std::uint64_t> not_older_than,
                                                      std::function<void()> on_ready) override;
  Result<std::unique_ptr<kube::WatchStream>> Watch(kube::Kind kind, const kube::Scope& scope,
                                                   const kube::WatchFrom& from,
                                                   std::function<void()> on_ready) override;

 private:
  class List;
  class Stream;
  bool Happens(double share);
  Status Refusal();
  template <typename T>
  T Write(kube::Kind kind, const std::function<T()>& write);

  Faults& faults_;  // borrowed
  std::mt19937_64 random_;
};

}  // namespace kvfabric
