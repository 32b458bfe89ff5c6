#pragma once

// AgentLink: the operator's stream to one agent, and AgentDialer, which opens them.
// Implementations: agent_dialer.h (gRPC, kvfabric.v1.Control) and a fake in the tests of the
// controllers.
//
// The structs say in C++ what api/kvfabric/v1/control.proto says on the wire.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace kvfabric {

struct AgentTarget {
  std::string node_name;
  std::string host;
  std::uint16_t grpc_port = 0;

  bool operator==(const AgentTarget&) const = default;
  std::string ToString() const {
    const bool v6 = host.find(':') != std::string::npos;
    return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(grpc_port);
  }
};

struct AgentIntroduction {
  std::string node_name;
  std::string agent_uid;
  std::uint64_t boot_epoch = 0;
  std::string version;
  std::string zone;
};

struct AgentPoolReport {
  std::string uid;
  std::uint64_t applied_term = 0;
  std::uint64_t applied_epoch = 0;
  std::int64_t applied_generation = 0;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t blocks = 0;
  std::uint64_t hit_blocks = 0;
  std::uint64_t lookup_blocks = 0;
  std::uint64_t under_replicated = 0;
};
struct AgentDrainReport {
  bool active = false;
  bool done = false;
  std::uint64_t moved_blocks = 0;
  std::uint64_t moved_bytes = 0;
  std::uint64_t dropped_blocks = 0;
  std::uint64_t remaining_blocks = 0;
};
// What an agent proves itself with; nothing where it speaks in clear.
struct AgentTlsReport {
  bool own_certificate = false;
  std::int64_t expires_s = 0;  // unix time
  std::string trusted;         // fingerprint of its bundle
};
struct AgentReport {
  std::uint64_t boot_epoch = 0;
  bool recovering = false;
  bool ready = false;
  std::string not_ready_reason;
  std::uint64_t arena_bytes = 0;
  std::vector<AgentPoolReport> pools;
  AgentDrainReport drain;
  std::optional<AgentTlsReport> tls;

  const AgentPoolReport* FindPool(const std::string& uid) const {
    for (const AgentPoolReport& pool : pools) {
      if (pool.uid == uid) return &pool;
    }
    return nullptr;
  }
};

struct AgentTenantConfig {
  std::string name;
  std::uint64_t dram_quota_bytes = 0;  // 0 = none
  bool operator==(const AgentTenantConfig&) const = default;
};
struct AgentPoolConfig {
  std::string uid;
  std::string name;  // "namespace/name"
  std::int64_t generation = 0;
  std::uint64_t dram_capacity_bytes = 0;
  std::uint32_t high_watermark_percent = 90;
  std::uint32_t low_watermark_percent = 80;
  std::string eviction_policy;
  std::uint32_t slots = 0;
  std::uint32_t replicas = 1;
  bool acks_replicated = false;
  bool locality_spread = false;
  std::vector<AgentTenantConfig> tenants;
  std::uint64_t bandwidth_limit_bytes_per_s = 0;
  std::chrono::seconds drain_timeout{0};
  std::chrono::milliseconds lookup_deadline{0};
  bool paused = false;
  bool clear_bulk = false;  // transport Disabled
  bool operator==(const AgentPoolConfig&) const = default;
};

// What a link tells. Called on any thread, in order, never after the link's destructor returned;
// must be quick and must not call the link.
class AgentLinkListener {
 public:
  virtual ~AgentLinkListener() = default;
  virtual void OnIntroduction(AgentIntroduction introduction) = 0;
  virtual void OnReport(AgentReport report) = 0;
  // `known_term`: the highest the agent has seen of our Lease, 0 when it did not say.
  virtual void OnRefused(std::string why, std::uint64_t known_term) = 0;
  // PEM, PKCS #10: it wants a certificate of its own.
  virtual void OnCertificateRequest(std::string request) = 0;
  // Last call: the stream has ended.
  virtual void OnClosed(Status why) = 0;
};

// One stream. One thread calls it; no call waits for the agent. What is sent while an older
// message of the same kind (and pool) still waits takes its place, so the queue is bounded by what
// there is to say. Destroying it ends the stream.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  // The whole list each time.
  virtual void SendPools(std::vector<AgentPoolConfig> pools) = 0;
  // `map`: placement's binary form.
  virtual void SendMap(const std::string& pool_uid, std::shared_ptr<const std::string> map) = 0;
  // `deadline` 0 = each pool's drainTimeout.
  virtual void SendDrain(bool draining, std::chrono::seconds deadline) = 0;
  // PEM. An empty certificate: the bundle alone.
  virtual void SendCertificate(const std::string& certificate, const std::string& trusted) = 0;
};

class AgentDialer {
 public:
  struct Session {
    std::uint64_t term = 0;  // goes with every message
    std::string operator_id;
    std::chrono::milliseconds heartbeat{1000};
    std::string lease_uid;  // the Lease that `term` counts in
  };
  virtual ~AgentDialer() = default;
  // Never blocks: a target that does not answer closes the link.
  virtual std::unique_ptr<AgentLink> Dial(const AgentTarget& target, const Session& session,
                                          std::shared_ptr<AgentLinkListener> listener) = 0;
};

}  // namespace kvfabric
