#pragma once

// AgentConfig: agent.yaml, decoded once in main. docs/config-agent.md lists the fields.
//
// Decoding reports all faults at once, one line each: `config: PATH: VALUE: RULE: write FIX`.
// Unknown and repeated keys are refused. Values; any thread.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/log.h"
#include "common/status.h"

namespace kvfabric {

struct ListenAddress {
  std::string host = "127.0.0.1";  // numeric IPv4 or IPv6
  std::uint16_t port = 0;          // 0 = any free one, told in agent.json
};

struct AgentConfig {
  static constexpr std::size_t kMaxTextBytes = std::size_t{64} << 10U;

  std::string node_name;
  std::string zone;
  std::string state_dir;    // absolute
  std::string socket_path;  // absolute; default STATE_DIR/agent.sock
  std::string tokens_file;  // absolute
  // Directory of the bootstrap bundle, absolute; empty = gRPC and bulk in clear, with tokens.
  std::string tls_bootstrap_dir;
  ListenAddress grpc{"127.0.0.1", 7070};
  ListenAddress bulk{"127.0.0.1", 7071};
  ListenAddress http{"127.0.0.1", 9090};
  std::uint64_t arena_bytes = 0;
  LogLevel log_level = LogLevel::kInfo;
  std::uint32_t workers = 2;
  // On loopback only; clients may speak framed TCP in clear, with tokens.
  bool local_mode = true;
};

Result<AgentConfig> ParseAgentConfig(std::string_view yaml);
// Reads and decodes; the path stands in every fault.
Result<AgentConfig> LoadAgentConfig(const std::string& path);

// "HOST:PORT", or "[IPV6]:PORT".
std::string FormatAddress(const ListenAddress& address);
bool IsLoopback(const std::string& host);

}  // namespace kvfabric
