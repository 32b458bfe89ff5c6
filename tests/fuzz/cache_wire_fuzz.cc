// Any bytes, cut anywhere, are a PutRequest within its limits or INVALID_ARGUMENT; how they are
// cut makes no difference.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "agent/service/cache_wire.h"
#include "common/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kvfabric::ByteSpan;
  if (size < 1) return 0;
  const std::size_t step = 1U + data[0] % 61U;
  const ByteSpan bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  std::vector<ByteSpan> cut;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    cut.push_back(bytes.subspan(at, std::min(step, bytes.size() - at)));
  }
  const std::vector<ByteSpan> one = {bytes};
  const auto whole = kvfabric::ParsePut(one, {});
  const auto parts = kvfabric::ParsePut(cut, {});
  KVF_CHECK(whole.ok() == parts.ok(), "the cut decides");
  if (!whole.ok()) return 0;
  KVF_CHECK(whole->head == parts->head && whole->blocks.size() == parts->blocks.size(),
            "the cut changes the message");
  for (std::size_t i = 0; i < whole->blocks.size(); ++i) {
    KVF_CHECK(
        whole->blocks[i].checksum == parts->blocks[i].checksum &&
            kvfabric::AsText(whole->blocks[i].data) == kvfabric::AsText(parts->blocks[i].data) &&
            whole->blocks[i].metadata == parts->blocks[i].metadata,
        "the cut changes a block");
  }
  return 0;
}
