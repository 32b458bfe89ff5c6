#pragma once

// The texts of api/crd/*.yaml, put into the binary by the build. Private to operator/specs.

#include <string_view>

namespace kvfabric {

extern const std::string_view kPoolCrdText;
extern const std::string_view kShardMapCrdText;

}  // namespace kvfabric
