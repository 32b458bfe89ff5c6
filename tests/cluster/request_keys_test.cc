#include "agent/cluster/request_keys.h"

#include <gtest/gtest.h>

#include "common/identity.h"
#include "tests/cluster/cluster_fixture.h"

namespace kvfabric {
namespace {

Namespace MakeNs(NamespaceKind kind) {
  return {"pool", "tenant", kind, MakeNamespaceDigest("pool", "tenant", "model=m\n")};
}

TEST(RequestKeys, PutsTheBlocksOfARunInOneSlotWhereverTheRequestBegins) {
  const Namespace ns = MakeNs(NamespaceKind::kChain);
  const Lane lane;
  const auto whole =
      RequestKeys::Resolve(ns, {&lane, 1}, ChainRange("c", 0, 100), kRedisSlots, true).value();
  for (std::uint32_t first = 0; first < 100; ++first) {
    const auto part =
        RequestKeys::Resolve(ns, {&lane, 1}, ChainRange("c", first, 100 - first), kRedisSlots, true)
            .value();
    for (std::uint32_t at = 0; at + first < 100; ++at) {
      const std::uint32_t depth = at + first;
      EXPECT_EQ(part.slot(at), whole.slot(depth)) << first << "+" << at;
      EXPECT_EQ(part.slot(at), whole.slot(RunStart(depth)));
      EXPECT_EQ(part.id(0, at), whole.id(0, depth));
      EXPECT_EQ(part.parent(0, at), whole.parent(0, depth));
    }
  }
  EXPECT_TRUE(whole.parent(0, 0).none());
}

TEST(RequestKeys, NamesLanesApart) {
  const Namespace ns = MakeNs(NamespaceKind::kChain);
  const std::vector<Lane> lanes{{0, 0}, {0, 1}, {1, Lane::kSharedRank}};
  const auto keys =
      RequestKeys::Resolve(ns, lanes, ChainRange("c", 3, 5), kRedisSlots, true).value();
  EXPECT_EQ(keys.lane_count(), 3U);
  for (std::size_t lane = 0; lane < 3; ++lane) {
    EXPECT_EQ(keys.id(lane, 2), MakeKeyId(ns.digest, lanes[lane], "c/5"));
    EXPECT_EQ(keys.parent(lane, 0), MakeKeyId(ns.digest, lanes[lane], "c/2"));
  }
}

TEST(RequestKeys, RefusesRequestsItCannotPlace) {
  const Namespace ns = MakeNs(NamespaceKind::kChain);
  const Lane lane;
  const auto refuse = [&](KeyRange range, bool need_parent) {
    return RequestKeys::Resolve(ns, {&lane, 1}, range, kRedisSlots, need_parent).status().code() ==
           StatusCode::kInvalidArgument;
  };
  KeyRange no_tag = ChainRange("c", 5, 3);
  no_tag.run_tag.clear();
  EXPECT_TRUE(refuse(no_tag, false));
  KeyRange no_parent = ChainRange("c", 5, 3);
  no_parent.parent_key.clear();
  EXPECT_TRUE(refuse(no_parent, true));
  EXPECT_FALSE(refuse(no_parent, false));
  KeyRange empty_key = ChainRange("c", 0, 3);
  empty_key.keys[1].clear();
  EXPECT_TRUE(refuse(empty_key, false));
  EXPECT_TRUE(refuse(ChainRange("c", 0, kMaxRequestKeys + 1), false));
  EXPECT_EQ(RequestKeys::Resolve(ns, {}, ChainRange("c", 0, 1), kRedisSlots, false).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(RequestKeys, PlacesSingleKeysByTheirTag) {
  const Namespace ns = MakeNs(NamespaceKind::kSingle);
  const Lane lane;
  KeyRange range;
  range.keys = {"{user}a", "{user}b", "other"};
  const auto keys = RequestKeys::Resolve(ns, {&lane, 1}, range, kRedisSlots, true).value();
  EXPECT_EQ(keys.slot(0), keys.slot(1));
  EXPECT_NE(keys.slot(0), keys.slot(2));
  EXPECT_TRUE(keys.parent(0, 2).none());
}

}  // namespace
}  // namespace kvfabric
