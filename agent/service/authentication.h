#pragma once

// Who a caller is, from the token of its connection; what main makes of the token table.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace kvfabric {

// The tenant that has this token; nullopt = unknown. Any thread, never blocks.
using TenantOfToken = std::function<std::optional<std::string>(std::string_view token)>;

// The tenant that operators, peers and tools speak as.
inline constexpr std::string_view kAdminTenant = "admin";

}  // namespace kvfabric
