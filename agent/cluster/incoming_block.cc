#include "agent/cluster/incoming_block.h"

#include "common/identity.h"

namespace kvfabric {

Result<BlockHeader> AcceptHeader(PoolNode& pool, BlockHeader header) {
  if (header.ns == nullptr || header.ns->pool_uid != pool.uid()) {
    return InvalidArgument("block from a peer: is not of pool " + pool.name());
  }
  KVF_RETURN_IF_ERROR(ValidateKey(header.key));
  if (MakeKeyId(header.ns->digest, header.lane, header.key) != header.id) {
    return InvalidArgument("block " + header.id.ToString() +
                           " from a peer: id does not belong to its key");
  }
  if (header.slot >= pool.spec()->slots) {
    return InvalidArgument("block " + header.id.ToString() + " from a peer: slot " +
                           std::to_string(header.slot) + " (0.." +
                           std::to_string(pool.spec()->slots - 1) + ")");
  }
  KVF_ASSIGN_OR_RETURN(header.ns, pool.context().namespaces->Intern(*header.ns));
  return header;
}

}  // namespace kvfabric
