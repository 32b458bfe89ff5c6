// Slots and tenants: who gets which memory, and how much there is in all.

#include "agent/tier/dram_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

std::unique_ptr<DramArena> MakeArena(std::uint64_t bytes, const Clock& clock) {
  auto arena = DramArena::Create({.bytes = bytes, .clock = &clock});
  EXPECT_TRUE(arena.ok()) << arena.status().ToString();
  return std::move(arena).value();
}

TEST(DramArena, SizesMemfdsFromTheArena) {
  EXPECT_EQ(DramArena::MemfdBytesFor(4 * kMiB), kMiB);
  EXPECT_EQ(DramArena::MemfdBytesFor(64 * kMiB), 4 * kMiB);
  EXPECT_EQ(DramArena::MemfdBytesFor(1024 * kMiB), 64 * kMiB);
  EXPECT_EQ(DramArena::MemfdBytesFor(std::uint64_t{1} << 40U), 64 * kMiB);
}

TEST(DramArena, RefusesAnArenaWithoutRoomForOneMemfd) {
  EXPECT_EQ(DramArena::Create({.bytes = kMiB - 1}).status().code(), StatusCode::kInvalidArgument);
}

TEST(DramArena, RoundsSlotsUpTo256Bytes) {
  EXPECT_EQ(RoundUpToSlot(0), 256U);
  EXPECT_EQ(RoundUpToSlot(1), 256U);
  EXPECT_EQ(RoundUpToSlot(256), 256U);
  EXPECT_EQ(RoundUpToSlot(257), 512U);
  EXPECT_EQ(RoundUpToSlot((std::uint64_t{1} << 32U) + 1), (std::uint64_t{1} << 32U) + 256);
}

TEST(DramArena, RefusesBlocksLargerThanAMemfdIn64Bits) {
  FakeClock clock;
  auto arena = MakeArena(4 * kMiB, clock);
  const std::uint64_t four_gib = std::uint64_t{1} << 32U;
  for (const std::uint64_t bytes :
       {kMiB + 1, four_gib - 4096, four_gib, four_gib + 1, four_gib + 4096, UINT64_MAX}) {
    EXPECT_EQ(arena->Allocate("a", bytes).status().code(), StatusCode::kInvalidArgument) << bytes;
  }
  EXPECT_TRUE(arena->Allocate("a", kMiB).ok());
}

TEST(DramArena, ReusesAnEmptyMemfdForAnotherSlotSize) {
  FakeClock clock;
  auto arena = MakeArena(kMiB, clock);
  const ArenaSlot slot = arena->Allocate("a", 1000).value();
  EXPECT_EQ(arena->Allocate("a", 2000).status().code(), StatusCode::kResourceExhausted);
  arena->Free(slot);
  const ArenaSlot other = arena->Allocate("a", 2000).value();
  EXPECT_EQ(other.memfd_id, slot.memfd_id);
  EXPECT_EQ(other.bytes, 2048U);
}

TEST(DramArena, GivesTheProbeItsOwnMemfdWhenAllElseIsTaken) {
  FakeClock clock;
  auto arena = MakeArena(kMiB, clock);
  ASSERT_TRUE(arena->Allocate("a", kMiB).ok());
  ASSERT_EQ(arena->Allocate("a", 1).status().code(), StatusCode::kResourceExhausted);
  const ArenaSlot probe = arena->Allocate(kProbeTenant, 4096).value();
  EXPECT_EQ(arena->MemfdsOf("a").size(), 1U);
  EXPECT_NE(arena->MemfdsOf("a")[0]->id(), probe.memfd_id);
  EXPECT_EQ(arena->stats().memfd_bytes, kMiB);
  arena->Free(probe);
  EXPECT_TRUE(arena->Allocate(kProbeTenant, 8192).ok());
}

struct Owner {
  std::string tenant;
  std::uint64_t end = 0;
};

// Random puts and frees by three tenants: no two slots overlap, a memfd is of one tenant for ever,
// the cap holds, and all memory can be had again afterwards.
TEST(DramArena, KeepsTenantsAndSlotsApartUnderRandomUse) {
  std::mt19937_64 random(TestSeed());
  FakeClock clock;
  constexpr std::uint64_t kCap = 8 * kMiB;
  auto arena = MakeArena(kCap, clock);
  std::map<std::uint64_t, std::string> tenant_of_memfd;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Owner> taken;  // (memfd, offset)
  std::vector<ArenaSlot> slots;
  const std::vector<std::uint64_t> sizes = {100, 4096, 65'536, 70'000, 300'000, kMiB};
  for (int step = 0; step < 20'000; ++step) {
    if (!slots.empty() && random() % 2 == 0) {
      const std::size_t at = random() % slots.size();
      taken.erase({slots[at].memfd_id, slots[at].offset});
      arena->Free(slots[at]);
      slots[at] = slots.back();
      slots.pop_back();
      continue;
    }
    const std::string tenant(1, static_cast<char>('a' + random() % 3));
    const auto slot = arena->Allocate(tenant, sizes[random() % sizes.size()]);
    ASSERT_LE(arena->stats().memfd_bytes, kCap);
    if (!slot.ok()) continue;
    const auto [owner, fresh] = tenant_of_memfd.emplace(slot->memfd_id, tenant);
    ASSERT_EQ(owner->second, tenant);
    const std::uint64_t end = slot->offset + slot->bytes;
    ASSERT_LE(end, arena->memfd_bytes());
    const auto next = taken.lower_bound({slot->memfd_id, slot->offset});
    if (next != taken.end() && next->first.first == slot->memfd_id) {
      ASSERT_GE(next->first.second, end);
    }
    if (next != taken.begin() && std::prev(next)->first.first == slot->memfd_id) {
      ASSERT_LE(std::prev(next)->second.end, slot->offset);
    }
    taken[{slot->memfd_id, slot->offset}] = {tenant, end};
    slots.push_back(*slot);
  }
  for (const ArenaSlot& slot : slots) arena->Free(slot);
  EXPECT_EQ(arena->stats().slot_bytes, 0U);
  std::uint64_t got = 0;
  while (arena->Allocate("d", kMiB).ok()) got += kMiB;
  EXPECT_EQ(got, kCap);
}

TEST(DramArena, SurvivesAllocationAndFreeFromManyThreads) {
  FakeClock clock;
  auto arena = MakeArena(8 * kMiB, clock);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      const std::string tenant = t % 2 == 0 ? "a" : "b";
      std::vector<ArenaSlot> slots;
      for (int step = 0; step < 3000; ++step) {
        auto slot = arena->Allocate(tenant, 1000 + 1000 * (random() % 3));
        if (slot.ok()) {
          std::memset(slot->data, t, slot->bytes);  // a shared slot is a race that TSan sees
          slots.push_back(*slot);
        }
        if (slots.size() > 50 || !slot.ok()) {
          for (const ArenaSlot& s : slots) arena->Free(s);
          slots.clear();
        }
      }
      for (const ArenaSlot& s : slots) arena->Free(s);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->stats().slot_bytes, 0U);
  EXPECT_LE(arena->stats().memfd_bytes, 8 * kMiB);
}

using DramArenaDeathTest = ::testing::Test;

TEST(DramArenaDeathTest, EndsTheProcessWhenASlotIsGivenBackTwice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  FakeClock clock;
  auto arena = MakeArena(kMiB, clock);
  const ArenaSlot keep = arena->Allocate("a", 1000).value();
  const ArenaSlot slot = arena->Allocate("a", 1000).value();
  arena->Free(slot);
  EXPECT_DEATH(arena->Free(slot), "given back twice");
  arena->Free(keep);
}

}  // namespace
}  // namespace kvfabric
