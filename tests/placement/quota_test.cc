#include "placement/quota.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

using Shares = std::vector<std::uint32_t>;

QuotaClaim Claim(std::uint64_t weight, std::uint32_t cap, std::uint32_t holds = 0) {
  return {.weight = weight, .cap = cap, .holds = holds};
}

TEST(ShareSeats, FollowsWeights) {
  EXPECT_EQ(ShareSeats(std::vector{Claim(1, 100), Claim(2, 100), Claim(4, 100)}, 70),
            (Shares{10, 20, 40}));
}

TEST(ShareSeats, PoursWhatACapRefusesIntoTheOthers) {
  EXPECT_EQ(ShareSeats(std::vector{Claim(8, 30), Claim(1, 100), Claim(1, 100)}, 70),
            (Shares{30, 20, 20}));
  // The first cap filled pushes the second member above its own.
  EXPECT_EQ(ShareSeats(std::vector{Claim(8, 30), Claim(2, 25), Claim(1, 100)}, 100),
            (Shares{30, 25, 45}));
}

TEST(ShareSeats, HandsOutNoMoreThanTheCaps) {
  EXPECT_EQ(ShareSeats(std::vector{Claim(1, 3), Claim(1, 4), Claim(0, 50)}, 100),
            (Shares{3, 4, 0}));
  EXPECT_EQ(ShareSeats(std::vector<QuotaClaim>{}, 100), Shares{});
}

TEST(ShareSeats, LeavesTheOddSeatWithItsHolder) {
  EXPECT_EQ(ShareSeats(std::vector{Claim(1, 9, 3), Claim(1, 9, 4), Claim(1, 9, 3)}, 10),
            (Shares{3, 4, 3}));
  EXPECT_EQ(ShareSeats(std::vector{Claim(1, 9, 3), Claim(1, 9, 3), Claim(1, 9, 4)}, 10),
            (Shares{3, 3, 4}));
}

TEST(ShareSeatsByDomain, KeepsADomainBelowItsCap) {
  const std::vector<MemberClaim> claims = {{Claim(10, 100), 0},
                                           {Claim(10, 100), 0},
                                           {Claim(10, 100), 1},
                                           {Claim(10, 100), 1},
                                           {Claim(40, 100), 2}};
  EXPECT_EQ(ShareSeatsByDomain(claims, Shares{60, 60, 60}, 120), (Shares{15, 15, 15, 15, 60}));
}

TEST(ShareSeatsByDomain, IsExactForRandomClaims) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 2'000; ++round) {
    const std::size_t members = 1 + random() % 40;
    const std::uint32_t domains = 1 + static_cast<std::uint32_t>(random() % 5);
    std::vector<MemberClaim> claims(members);
    std::vector<std::uint64_t> room(domains, 0);
    for (MemberClaim& member : claims) {
      member.domain = static_cast<std::uint32_t>(random() % domains);
      member.claim = Claim(random() % 5 == 0 ? 0 : 1 + random() % (1ULL << 30U),
                           static_cast<std::uint32_t>(random() % 3000),
                           static_cast<std::uint32_t>(random() % 3000));
      if (member.claim.weight > 0) room[member.domain] += member.claim.cap;
    }
    Shares caps(domains);
    std::uint64_t total_room = 0;
    for (std::uint32_t d = 0; d < domains; ++d) {
      caps[d] = static_cast<std::uint32_t>(random() % 20'000);
      total_room += std::min<std::uint64_t>(room[d], caps[d]);
    }
    const auto seats = static_cast<std::uint32_t>(random() % 40'000);
    const Shares shares = ShareSeatsByDomain(claims, caps, seats);

    Shares in_domain(domains, 0);
    for (std::size_t i = 0; i < members; ++i) {
      ASSERT_LE(shares[i], claims[i].claim.weight > 0 ? claims[i].claim.cap : 0);
      in_domain[claims[i].domain] += shares[i];
    }
    for (std::uint32_t d = 0; d < domains; ++d) ASSERT_LE(in_domain[d], caps[d]);
    const std::uint64_t sum = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
    ASSERT_EQ(sum, std::min<std::uint64_t>(seats, total_room));
    // Whoever is below the cap has its weight's share to a seat, compared with any other such.
    for (std::size_t a = 0; a < members; ++a) {
      for (std::size_t b = 0; b < members; ++b) {
        if (claims[a].domain != claims[b].domain || claims[a].claim.weight == 0) continue;
        if (claims[b].claim.weight == 0 || shares[b] >= claims[b].claim.cap) continue;
        const long double per_weight_a = (static_cast<long double>(shares[a]) - 1) /
                                         static_cast<long double>(claims[a].claim.weight);
        const long double per_weight_b = (static_cast<long double>(shares[b]) + 1) /
                                         static_cast<long double>(claims[b].claim.weight);
        ASSERT_LE(per_weight_a, per_weight_b * (1 + 1e-12L));
      }
    }
  }
}

}  // namespace
}  // namespace kvfabric
