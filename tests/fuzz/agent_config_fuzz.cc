// Any text is either a configuration within its limits or INVALID_ARGUMENT with a reason.

#include <cstddef>
#include <cstdint>

#include "agent/service/agent_config.h"
#include "common/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = kvfabric::ParseAgentConfig(text);
  if (config.ok()) {
    KVF_CHECK(!config->node_name.empty() && config->state_dir.front() == '/', "fault not seen");
    KVF_CHECK(config->arena_bytes >= (1U << 20U) && config->workers >= 1, "limit not seen");
    KVF_CHECK(kvfabric::IsLoopback(config->grpc.host), "clear text beyond loopback");
  } else {
    KVF_CHECK(config.status().code() == kvfabric::StatusCode::kInvalidArgument &&
                  !config.status().message().empty(),
              "a fault without a reason");
  }
  return 0;
}
