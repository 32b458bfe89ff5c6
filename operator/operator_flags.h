#pragma once

// The command line of kvfabric-operator. Pure.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/log.h"
#include "common/status.h"

namespace kvfabric {

struct Endpoint {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0 = any
};

struct OperatorFlags {
  std::filesystem::path state_dir;
  std::filesystem::path tokens;  // default STATE_DIR/tokens
  Endpoint listen;               // the embedded API; loopback only
  Endpoint metrics;              // /metrics /livez /readyz
  LogLevel log_level = LogLevel::kInfo;
  bool help = false;
  bool version = false;
};

std::string_view OperatorHelp();
// Every fault at once.
Result<OperatorFlags> ParseOperatorFlags(const std::vector<std::string>& arguments);

}  // namespace kvfabric
