#pragma once

// The tokens of a local fabric: lines `tenant token`, mode 0600.

#include <filesystem>
#include <map>
#include <string>

#include "common/status.h"

namespace kvfabric::kube {

// tenant -> token. Every fault of the file at once, by line and never with a token in the text.
// A file that others may read is refused.
Result<std::map<std::string, std::string>> ReadTokenFile(const std::filesystem::path& path);

}  // namespace kvfabric::kube
