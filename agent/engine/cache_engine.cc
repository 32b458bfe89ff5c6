#include "agent/engine/cache_engine.h"

#include <utility>

#include "agent/engine/block_handle.h"
#include "agent/engine/block_store.h"
#include "agent/engine/local_engine.h"

namespace kvfabric {

Result<std::unique_ptr<CacheEngine>> CacheEngine::Create(Options options, Environment environment) {
  KVF_RETURN_IF_ERROR(LocalEngine::Validate(options, environment));
  KVF_ASSIGN_OR_RETURN(std::shared_ptr<BlockStore> store, BlockStore::Create(options, environment));
  return std::unique_ptr<CacheEngine>(
      std::make_unique<LocalEngine>(std::move(options), environment, std::move(store)));
}

std::uint64_t CacheEngine::MostIndexBytes(std::uint64_t capacity_bytes, std::size_t max_blocks) {
  constexpr std::uint64_t bytes_a_block = 400;  // 330 measured, and a key of up to 64 bytes
  return bytes_a_block *
         (max_blocks > 0 ? max_blocks : BlockStore::DefaultMaxBlocks(capacity_bytes));
}

const BlockHeader& PinnedBlock::header() const { return handle_->header(); }
const KeyId& PinnedBlock::id() const { return handle_->fixed().id; }
const NamespaceRef& PinnedBlock::ns() const { return handle_->fixed().ns; }
std::uint64_t PinnedBlock::checksum() const { return handle_->fixed().checksum; }
ByteSpan PinnedBlock::bytes() const { return handle_->bytes(); }
MemoryLocation PinnedBlock::location() const { return handle_->location(); }

Reservation::Reservation() = default;
Reservation::Reservation(std::unique_ptr<Slot> slot) : slot_(std::move(slot)) {}
Reservation::~Reservation() = default;
Reservation::Reservation(Reservation&&) noexcept = default;
Reservation& Reservation::operator=(Reservation&&) noexcept = default;

MutableByteSpan Reservation::bytes() {
  return {slot_->entry->data, slot_->entry->header.length_bytes};
}
const BlockHeader& Reservation::header() const { return slot_->entry->header; }

Result<PinnedBlock> Reservation::Commit(std::uint64_t computed) && {
  const std::unique_ptr<Slot> slot = std::move(slot_);
  return slot->store->Commit(std::exchange(slot->entry, nullptr), slot->origin, computed);
}

}  // namespace kvfabric
