#include "common/identity.h"

#include <openssl/sha.h>

#include <vector>

namespace kvfabric {

namespace {

void AppendBe32(std::vector<unsigned char>& out, std::size_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    out.push_back(static_cast<unsigned char>((value >> static_cast<unsigned>(shift)) & 0xFFU));
  }
}

void AppendField(std::vector<unsigned char>& out, std::string_view field) {
  AppendBe32(out, field.size());
  out.insert(out.end(), field.begin(), field.end());
}

}  // namespace

NamespaceDigest MakeNamespaceDigest(std::string_view pool_uid, std::string_view tenant,
                                    std::string_view fingerprint) {
  std::vector<unsigned char> input;
  AppendField(input, pool_uid);
  AppendField(input, tenant);
  AppendField(input, fingerprint);
  NamespaceDigest digest;
  SHA256(input.data(), input.size(), reinterpret_cast<unsigned char*>(digest.bytes.data()));
  return digest;
}

KeyId MakeKeyId(const NamespaceDigest& ns, Lane lane, std::string_view key) {
  // Keys are at most kMaxKeyBytes, checked where they enter; the buffer holds any of them.
  std::array<unsigned char, 32 + 4 + kMaxKeyBytes> input{};
  KVF_CHECK(key.size() <= kMaxKeyBytes, "key length is checked where the key enters");
  std::memcpy(input.data(), ns.bytes.data(), 32);
  input[32] = static_cast<unsigned char>(lane.group >> 8U);
  input[33] = static_cast<unsigned char>(lane.group & 0xFFU);
  input[34] = static_cast<unsigned char>(lane.rank >> 8U);
  input[35] = static_cast<unsigned char>(lane.rank & 0xFFU);
  std::memcpy(input.data() + 36, key.data(), key.size());
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(input.data(), 36 + key.size(), digest.data());
  KeyId id;
  std::memcpy(id.bytes.data(), digest.data(), id.bytes.size());
  return id;
}

}  // namespace kvfabric
