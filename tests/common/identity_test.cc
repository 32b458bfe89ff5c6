#include "common/identity.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace kvfabric {
namespace {

// tests/golden/identity.txt was made with Python's hashlib, not with this code:
// pool tenant fingerprint(hex) digest group rank key(hex) keyid
TEST(Identity, MatchesGoldenVectors) {
  std::ifstream golden("tests/golden/identity.txt");
  ASSERT_TRUE(golden) << "run from the repository root";
  std::string line;
  int vectors = 0;
  const auto unhex = [](const std::string& hex) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
      bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    return bytes;
  };
  while (std::getline(golden, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    std::string pool, tenant, fingerprint, digest, key, id;
    unsigned group = 0, rank = 0;
    in >> pool >> tenant >> fingerprint >> digest >> group >> rank >> key >> id;
    const NamespaceDigest ns = MakeNamespaceDigest(pool, tenant, unhex(fingerprint));
    EXPECT_EQ(ToHex(ns.bytes), digest);
    const Lane lane{static_cast<std::uint16_t>(group), static_cast<std::uint16_t>(rank)};
    EXPECT_EQ(MakeKeyId(ns, lane, unhex(key)).ToString(), id);
    ++vectors;
  }
  EXPECT_EQ(vectors, 4);
}

// LMCache #4825, sglang #37160, vLLM #44701: whatever separates two readers must be in the
// identity, typed, so that no two fields can be confused.
TEST(Identity, SeparatesEveryField) {
  std::set<std::string> ids;
  for (const char* pool : {"p1", "p2"}) {
    for (const char* tenant : {"a", "b"}) {
      for (const char* fingerprint : {"dtype=bf16\n", "dtype=fp8\n"}) {
        for (const std::uint16_t group : {0, 1}) {
          for (const std::uint16_t rank : {std::uint16_t{0}, Lane::kSharedRank}) {
            for (const char* key : {"k1", "k2"}) {
              const NamespaceDigest ns = MakeNamespaceDigest(pool, tenant, fingerprint);
              ids.insert(MakeKeyId(ns, Lane{group, rank}, key).ToString());
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(ids.size(), 64U);
  // Moving a byte from one field to the next gives another digest.
  EXPECT_NE(MakeNamespaceDigest("ab", "c", "d"), MakeNamespaceDigest("a", "bc", "d"));
  EXPECT_NE(MakeNamespaceDigest("a", "bc", "d"), MakeNamespaceDigest("a", "b", "cd"));
}

}  // namespace
}  // namespace kvfabric
