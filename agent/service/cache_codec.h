#pragma once

// Cache messages as protobuf to and from the Fabric's plain structs. Any thread.

#include <vector>

#include "agent/cluster/fabric.h"
#include "common/status.h"

namespace kvfabric::v1 {
class KeyRange;
class Lane;
class LookupReply;
class Namespace;
class StatReply;
}  // namespace kvfabric::v1

namespace kvfabric {

// INVALID_ARGUMENT for what no namespace, lane or chain can have.
Result<KeyRange> DecodeKeyRange(const v1::KeyRange& message);
Result<Lane> DecodeLane(const v1::Lane& message);
// Of the pool that the tenant may see; NOT_FOUND when there is none.
Result<NamespaceRef> DecodeNamespace(const v1::Namespace& message, const std::string& tenant,
                                     Fabric& fabric);
void EncodeLookup(const LookupAnswer& answer, v1::LookupReply& message);
void EncodePools(const std::vector<PoolStatAnswer>& pools, const std::string& only,
                 v1::StatReply& message);

}  // namespace kvfabric
