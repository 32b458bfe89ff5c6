#pragma once

// OperatorCluster: a whole ControlLoop over the embedded API on a fake clock, with fake agents, so
// that minutes of a cluster's life take milliseconds. Nodes and agents are made by name; the
// operator may be killed and started again. One thread.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/metrics.h"
#include "operator/controllers/control_loop.h"
#include "operator/kube/elector.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/specs/crd_schema.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"
#include "tests/operator/fake_agents.h"
#include "tests/operator/fault_script.h"

namespace kvfabric {

class OperatorCluster {
 public:
  static constexpr std::chrono::milliseconds kBeat{500};

  OperatorCluster() { StartOperator(); }

  FakeClock clock;
  FakeDialer dialer;
  Certificates* certificates = nullptr;      // of operators started from now on
  std::function<Status(const char*)> fault;  // of the store; empty = none
  Faults faults;                             // of the API as the operator sees it

  void StartOperator();
  void KillOperator();  // kill -9: nothing is released
  // kill -9 and a new operator with an empty store that knows the same nodes and pods.
  void LoseStore();
  // A copy of the store as it is, and back to it: etcd restored from a backup. Both with the
  // operator down.
  void SaveStore() const;
  void RestoreStore() const;
  // Lets time pass in small steps, everybody doing their work.
  void Run(std::chrono::milliseconds span);

  std::string AddressOf(const std::string& node) const;
  FakeAgent& agent(const std::string& node) { return dialer.agents.at(AddressOf(node)); }
  void AddAgent(const std::string& node, const std::string& zone = "");
  void AddPod(const std::string& pod, const std::string& node, std::uint16_t port);
  void DeletePod(const std::string& pod);
  // Replaces a Node's metadata extras and spec.
  void EditNode(const std::string& node, const std::string& metadata, const std::string& spec);
  void DeleteNode(const std::string& node);
  void ApplyPool(const std::string& spec, const std::string& name = "main");
  // `value` empty: takes it away. The spec stays.
  void AnnotatePool(const std::string& key, const std::string& value,
                    const std::string& name = "main");
  // The node's agent runs again, in a new pod behind another port.
  void MoveAgent(const std::string& node, std::uint16_t port);
  // As AddAgent and ApplyPool, for what may be there already or fail to be written.
  void AddAgentTolerant(const std::string& node);
  void ApplyPoolTolerant(const std::string& spec);
  // n0, n1, ... and a pool, settled.
  void Form(std::size_t agents, const std::string& spec);

  // One DRAM tier and `extra` fields.
  static std::string Spec(const std::string& extra = "", const std::string& capacity = "1Gi");
  // Short times (grace 20 s, warm-up 10 s), so that a test need not simulate minutes.
  static std::string QuickSpec(const std::string& replicas = "1", const std::string& more = "");

  Pool pool(const std::string& name = "main");
  std::optional<ShardMap> map(const std::string& name = "main");
  std::optional<ShardMap> map_of_disk();  // with the operator down
  std::string condition(const std::string& type, const std::string& name = "main");
  std::string message(const std::string& type, const std::string& name = "main");
  kube::EmbeddedKubeApi& api() { return *api_; }
  ControlLoop& loop() { return *loop_; }
  kube::Elector& elector() { return *elector_; }
  std::uint64_t writes() const;  // of all kinds but the Lease, since the operator's start

 private:
  void AddNodeAndPod(const std::string& node, const std::string& zone);
  void Must(const Result<kube::ObjectPtr>& result) const;

  TempDir dir_;
  CrdAdmission admission_;
  std::map<std::string, std::uint16_t> ports_;
  std::uint16_t next_port_ = 20001;
  bool tolerant_ = false;
  int starts_ = 0;
  const std::uint64_t seed_ = TestSeed();
  std::chrono::milliseconds elapsed_{0};
  std::unique_ptr<MetricsRegistry> metrics_;
  std::unique_ptr<kube::EmbeddedKubeApi> api_;
  std::unique_ptr<FaultScript> script_;
  std::unique_ptr<kube::Elector> elector_;
  std::unique_ptr<ControlLoop> loop_;
};

// Slots that `node` keeps bytes of.
std::size_t SlotsOf(const ShardMap& map, const std::string& node);
// Byte entries that are at another node in `after`.
std::size_t Moved(const ShardMap& before, const ShardMap& after);

}  // namespace kvfabric
