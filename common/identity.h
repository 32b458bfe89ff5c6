#pragma once

// SHA-256 naming of namespaces and blocks. Apart from common/block_key.h because it needs
// libcrypto, which the engine library must not load: only agents compute KeyIds, where a key
// enters the fabric.

#include <string_view>

#include "common/block_key.h"

namespace kvfabric {

NamespaceDigest MakeNamespaceDigest(std::string_view pool_uid, std::string_view tenant,
                                    std::string_view fingerprint);
KeyId MakeKeyId(const NamespaceDigest& ns, Lane lane, std::string_view key);

}  // namespace kvfabric
