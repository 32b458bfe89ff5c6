#pragma once

// The tokens of a local fabric: lines `tenant token`, mode 0600. The agents read the same file
// (agent/service/token_table.h) and take what this takes.

#include <filesystem>
#include <map>
#include <string>

#include "common/status.h"

namespace kvfabric::kube {

// tenant -> token. A tenant may have several, so that a new one can be brought in before the old
// one goes: all are taken, in the order of the file, and the first is the one to speak with.
using Tokens = std::multimap<std::string, std::string>;

// Every fault of the file at once, by line and never with a token in the text. A file that others
// may read is refused.
Result<Tokens> ReadTokenFile(const std::filesystem::path& path);
// The first token of a tenant that has one.
const std::string& FirstToken(const Tokens& tokens, const std::string& tenant);

}  // namespace kvfabric::kube
