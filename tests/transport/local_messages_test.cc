#include "transport/local_messages.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/fakes/test_seed.h"

namespace kvfabric::wire {
namespace {

struct Sample {
  std::string name;
  std::string bytes;
  // Decodes and encodes again; nullopt when it is refused.
  std::function<std::optional<std::string>(ByteSpan)> again;
};

template <typename T>
Sample Of(std::string name, const T& message) {
  return {std::move(name), Encode(message), [](ByteSpan bytes) -> std::optional<std::string> {
            const auto decoded = Decode<T>(bytes);
            if (!decoded.ok()) return std::nullopt;
            return Encode(*decoded);
          }};
}

// The view that a decoded range encodes from.
struct Viewed {
  explicit Viewed(const LocalKeyRange& range) : keys(range.keys.begin(), range.keys.end()) {
    view = {range.first, keys, range.parent_key, range.run_tag};
  }
  std::vector<std::string_view> keys;
  KeyRangeView view;
};

template <typename T>
Sample OfRequest(std::string name, std::string bytes, std::function<std::string(const T&)> encode) {
  return {std::move(name), std::move(bytes), [encode](ByteSpan b) -> std::optional<std::string> {
            const auto decoded = Decode<T>(b);
            if (!decoded.ok()) return std::nullopt;
            return encode(*decoded);
          }};
}

std::vector<Sample> Samples() {
  const std::vector<std::string_view> keys = {"key one", std::string_view("\0x", 2), "k3"};
  const KeyRangeView range{17, keys, "parent", "tag"};
  const std::vector<std::string_view> one = {"k"};
  const KeyRangeView single{0, one, {}, {}};
  const std::vector<Lane> lanes = {Lane{}, Lane{3, 7}};
  const std::vector<PutEntry> entries = {{0, 5, 9, "m"}, {256, 1, 0, ""}, {1ULL << 40U, 7, 1, "z"}};
  HelloRequest hello;
  hello.token = "token";
  hello.pool = "ns/name";
  hello.fingerprint = "a=b\n";
  hello.kind = NamespaceKind::kSingle;
  GetReply get{5, 10'000, 3, {}};
  get.entries.resize(3);
  get.entries[0].place = GetPlace::kMemfd;
  get.entries[0].memfd_id = 7;
  get.entries[0].offset = 4'096;
  get.entries[0].length = 12;
  get.entries[0].checksum = 99;
  get.entries[0].metadata = "meta";
  get.entries[2].place = GetPlace::kInline;
  get.entries[2].from_peer = true;
  get.entries[2].length = 1;
  PoolStat pool;
  pool.pool = "ns/name";
  pool.capacity_bytes = 1;
  pool.map_epoch = 5;
  pool.counters = {{"puts", 3}, {"evicted", 0}};
  return {
      Of("HELLO", hello),
      Of("HELLO reply", HelloReply{1, 10'000, "uid", {{1, 64}, {2, 128}}}),
      Of("NEW_MEMFD", NewMemfd{{{9, 1}}}),
      Of("CLOSE_MEMFD", CloseMemfd{9}),
      Of("STAGING", StagingRequest{1ULL << 30U}),
      Of("LOOKUP reply", LookupReply{2, {true, false}, 8, 9, 1, 1, LookupMiss::kNoMap}),
      Of("GET reply", get),
      Of("PUT reply", PutReply{{PutOutcome::kOk, PutOutcome::kFailed}, {2, 0}}),
      Of("RELEASE", ReleaseRequest{{1, 2, 3}}),
      Of("RENEW", RenewRequest{4}),
      Of("RENEW reply", RenewReply{true, 5}),
      Of("DELETE reply", DeleteReply{6}),
      Of("STAT reply", StatReply{{pool, pool}}),
      OfRequest<LookupRequest>(
          "LOOKUP", EncodeLookup(lanes, range),
          [](const LookupRequest& m) { return EncodeLookup(m.lanes, Viewed(m.range).view); }),
      OfRequest<GetRequest>(
          "GET", EncodeGet(11, Lane{1, 2}, range),
          [](const GetRequest& m) { return EncodeGet(m.lease_id, m.lane, Viewed(m.range).view); }),
      OfRequest<PutRequest>(
          "PUT", EncodePut(Lane{1, 2}, range, entries),
          [](const PutRequest& m) { return EncodePut(m.lane, Viewed(m.range).view, m.entries); }),
      OfRequest<PutInlineRequest>("PUT_INLINE", EncodePutInline(Lane{}, single, "meta"),
                                  [](const PutInlineRequest& m) {
                                    return EncodePutInline(m.lane, Viewed(m.range).view,
                                                           m.metadata);
                                  }),
      OfRequest<DeleteRequest>("DELETE", EncodeDelete(Lane{}, range), [](const DeleteRequest& m) {
        return EncodeDelete(m.lane, Viewed(m.range).view);
      })};
}

TEST(LocalMessages, SurviveARoundTrip) {
  for (const Sample& sample : Samples()) {
    EXPECT_EQ(sample.again(AsBytes(std::string_view(sample.bytes))), sample.bytes) << sample.name;
  }
}

TEST(LocalMessages, RefuseEveryCutAndWhatIsLeftOver) {
  for (const Sample& sample : Samples()) {
    const std::string_view whole = sample.bytes;
    for (std::size_t cut = 0; cut < whole.size(); ++cut) {
      EXPECT_EQ(sample.again(AsBytes(whole.substr(0, cut))), std::nullopt) << sample.name << cut;
    }
    EXPECT_EQ(sample.again(AsBytes(std::string(whole) + '\0')), std::nullopt) << sample.name;
  }
}

// Whatever is accepted says the same again: no field is read and lost, no bound passed.
TEST(LocalMessages, StandAnyChange) {
  std::mt19937_64 random(TestSeed());
  int accepted = 0;
  for (const Sample& sample : Samples()) {
    for (int i = 0; i < 3'000; ++i) {
      std::string bytes = sample.bytes;
      for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      const auto again = sample.again(AsBytes(std::string_view(bytes)));
      if (!again) continue;
      ++accepted;
      EXPECT_EQ(*again, bytes) << sample.name;
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(LocalMessages, KeepTheirLimits) {
  const auto lookup = [](std::size_t count, std::size_t key_bytes, std::size_t lane_count) {
    const std::string key(key_bytes, 'k');
    const std::vector<std::string_view> keys(count, key);
    const std::vector<Lane> lanes(lane_count);
    return Decode<LookupRequest>(AsBytes(std::string_view(EncodeLookup(lanes, {0, keys, {}, {}}))));
  };
  EXPECT_TRUE(lookup(kMaxKeysPerRequest, 64, kMaxLanesPerRequest).ok());
  EXPECT_TRUE(lookup(1, kMaxKeyBytes, 1).ok());
  EXPECT_FALSE(lookup(kMaxKeysPerRequest + 1, 1, 1).ok());
  EXPECT_FALSE(lookup(0, 1, 1).ok());
  EXPECT_FALSE(lookup(1, 0, 1).ok());
  EXPECT_FALSE(lookup(1, kMaxKeyBytes + 1, 1).ok());
  EXPECT_FALSE(lookup(1, 1, 0).ok());
  EXPECT_FALSE(lookup(1, 1, kMaxLanesPerRequest + 1).ok());
  const std::string long_metadata(kMaxBlockMetadataBytes + 1, 'm');
  const std::vector<std::string_view> one = {"k"};
  EXPECT_FALSE(Decode<PutInlineRequest>(AsBytes(std::string_view(EncodePutInline(
                                            Lane{}, {0, one, {}, {}}, long_metadata))))
                   .ok());
  const std::vector<std::string_view> two = {"k", "l"};
  EXPECT_FALSE(Decode<PutInlineRequest>(
                   AsBytes(std::string_view(EncodePutInline(Lane{}, {0, two, {}, {}}, ""))))
                   .ok());
  EXPECT_FALSE(
      Decode<PutRequest>(AsBytes(std::string_view(EncodePut(Lane{}, {0, two, {}, {}}, {})))).ok());
}

}  // namespace
}  // namespace kvfabric::wire
