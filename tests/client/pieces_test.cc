// The parts of a session by themselves: Chain, Staging, MappedMemory.

#include <fcntl.h>
#include <sys/mman.h>

#include <random>
#include <thread>

#include "client/chain.h"
#include "client/mapped_memory.h"
#include "client/staging.h"
#include "tests/client/client_fixture.h"

namespace kvfabric {
namespace {

TEST(Chain, RefusesKeysThatCannotBe) {
  EXPECT_FALSE(Chain::Create({"a", ""}).ok());
  EXPECT_FALSE(Chain::Create({std::string(kMaxKeyBytes + 1, 'k')}).ok());
  EXPECT_TRUE(Chain::Create({std::string(kMaxKeyBytes, 'k')}).ok());
  EXPECT_TRUE(Chain::Create({}).ok());
}

TEST(Chain, TellsParentAndRunTagOfAnyPart) {
  std::vector<std::string> keys;
  for (int i = 0; i < 100; ++i) keys.push_back("k" + std::to_string(i));
  const auto chain = Chain::Create(keys);
  ASSERT_TRUE(chain.ok());
  std::vector<std::string_view> views;
  wire::KeyRangeView range = chain->Range(0, 5, views);
  EXPECT_EQ(range.parent_key, "");
  EXPECT_EQ(range.run_tag, "");
  EXPECT_EQ(range.keys.size(), 5U);
  range = chain->Range(37, 10, views);
  EXPECT_EQ(range.first, 37U);
  EXPECT_EQ(range.keys.front(), "k37");
  EXPECT_EQ(range.parent_key, "k36");
  EXPECT_EQ(range.run_tag, "k32");
  range = chain->Range(48, 1'000, views);
  EXPECT_EQ(range.run_tag, "");  // it starts a run
  EXPECT_EQ(range.keys.size(), 52U);
  EXPECT_TRUE(chain->Range(100, 1, views).keys.empty());
  EXPECT_TRUE(chain->Range(4'000'000'000U, 4'000'000'000U, views).keys.empty());
}

TEST(Chain, FitsRequestsIntoAFrame) {
  const auto chain = Chain::Create(std::vector<std::string>(9'000, std::string(100, 'k')));
  ASSERT_TRUE(chain.ok());
  EXPECT_EQ(chain->Fitting(0, 9'000), wire::kMaxKeysPerRequest);
  EXPECT_EQ(chain->Fitting(8'990, 100), 10U);
  EXPECT_EQ(chain->Fitting(9'000, 1), 0U);
  const auto wide = Chain::Create(std::vector<std::string>(5'000, std::string(kMaxKeyBytes, 'k')));
  ASSERT_TRUE(wide.ok());
  const std::uint32_t fits = wide->Fitting(100, 5'000);
  std::vector<std::string_view> views;
  const std::string body = wire::EncodeLookup(std::vector<Lane>(wire::kMaxLanesPerRequest),
                                              wide->Range(100, fits, views));
  EXPECT_LE(body.size(), FrameLimits{}.max_body_bytes);
  EXPECT_GT(body.size(), FrameLimits{}.max_body_bytes * 9 / 10);
  EXPECT_TRUE(wire::Decode<wire::LookupRequest>(AsBytes(body)).ok());
}

Deadline In(int ms) { return Deadline::After(Clock::System(), std::chrono::milliseconds(ms)); }

TEST(Staging, NeverHandsOutTwiceAndTakesAllBack) {
  auto staging = Staging::Create(1U << 20U);
  ASSERT_TRUE(staging.ok());
  std::mt19937_64 random(TestSeed());
  std::vector<std::shared_ptr<Staging::Region>> regions;
  for (int i = 0; i < 3'000; ++i) {
    if (!regions.empty() && random() % 2 == 0) {
      const std::size_t victim = random() % regions.size();
      // Nobody else wrote here.
      const auto bytes = regions[victim]->bytes();
      const auto mark = static_cast<std::byte>(regions[victim]->offset() / 256 % 251);
      for (const std::byte byte : {bytes.front(), bytes[bytes.size() / 2], bytes.back()}) {
        ASSERT_EQ(byte, mark);
      }
      regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(victim));
    } else if (auto region = (*staging)->Allocate(random() % 40'000, Deadline())) {
      ASSERT_LE(region->offset() + region->bytes().size(), (*staging)->size_bytes());
      std::fill(region->bytes().begin(), region->bytes().end(),
                static_cast<std::byte>(region->offset() / 256 % 251));
      regions.push_back(std::move(region));
    }
  }
  regions.clear();
  EXPECT_NE((*staging)->Allocate(1U << 20U, Deadline()), nullptr);  // in one piece again
}

TEST(Staging, WaitsForRoomUntilTheDeadline) {
  auto staging = Staging::Create(4'096);
  ASSERT_TRUE(staging.ok());
  auto all = (*staging)->Allocate(4'096, Deadline());
  ASSERT_NE(all, nullptr);
  EXPECT_EQ((*staging)->Allocate(1, In(5)), nullptr);
  EXPECT_EQ((*staging)->Allocate(4'097, In(60'000)), nullptr);  // never
  EXPECT_EQ((*staging)->Allocate(~std::uint64_t{0}, In(60'000)), nullptr);
  std::thread waiter([&] { EXPECT_NE((*staging)->Allocate(4'096, In(60'000)), nullptr); });
  all.reset();
  waiter.join();
}

TEST(Staging, HandsOutNothingAfterClose) {
  auto staging = Staging::Create(4'096);
  ASSERT_TRUE(staging.ok());
  auto all = (*staging)->Allocate(4'096, Deadline());
  std::thread waiter([&] { EXPECT_EQ((*staging)->Allocate(1, In(60'000)), nullptr); });
  (*staging)->Close();
  waiter.join();
  all.reset();
  // An agent that was stopped may still copy from it.
  EXPECT_EQ((*staging)->Allocate(1, In(0)), nullptr);
}

TEST(Staging, IsSealedMemory) {
  auto staging = Staging::Create(1'000);
  ASSERT_TRUE(staging.ok());
  EXPECT_EQ((*staging)->size_bytes(), 1'024U);
  const int fd = (*staging)->fd()->get();
  EXPECT_NE(::ftruncate(fd, 10), 0);
  EXPECT_NE(::ftruncate(fd, 1 << 20), 0);
  EXPECT_FALSE(Staging::Create(0).ok());
}

UniqueFd MemoryFd(std::uint64_t bytes, int seals) {
  UniqueFd fd(::memfd_create("mapped-memory-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  KVF_CHECK(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0, "size");
  KVF_CHECK(seals == 0 || ::fcntl(fd.get(), F_ADD_SEALS, seals) == 0, "seals");
  return fd;
}

TEST(MappedMemory, RefusesWhatCouldEndThisProcess) {
  MappedMemory memory;
  EXPECT_FALSE(memory.Add(1, 8'192, MemoryFd(8'192, 0)).ok());  // could shrink
  EXPECT_FALSE(memory.Add(2, 8'193, MemoryFd(8'192, F_SEAL_SHRINK)).ok());
  EXPECT_FALSE(memory.Add(3, 0, MemoryFd(8'192, F_SEAL_SHRINK)).ok());
  EXPECT_FALSE(memory.Add(4, 8'192, UniqueFd()).ok());
  EXPECT_FALSE(memory.Add(5, 8'192, UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC))).ok());
  EXPECT_TRUE(memory.Add(6, 8'192, MemoryFd(8'192, F_SEAL_SHRINK)).ok());
  EXPECT_EQ(memory.Find(1), nullptr);
  ASSERT_NE(memory.Find(6), nullptr);
}

TEST(MappedMemory, ShowsOnlyWhatLiesInside) {
  MappedMemory memory;
  ASSERT_TRUE(memory.Add(6, 8'192, MemoryFd(8'192, F_SEAL_SHRINK)).ok());
  const MappedMemory::Ref mapping = memory.Find(6);
  EXPECT_EQ(mapping->At(0, 8'192).size(), 8'192U);
  EXPECT_EQ(mapping->At(8'191, 1).size(), 1U);
  EXPECT_TRUE(mapping->At(8'192, 1).empty());
  EXPECT_TRUE(mapping->At(1, 8'192).empty());
  EXPECT_TRUE(mapping->At(~std::uint64_t{0}, 2).empty());
  EXPECT_TRUE(mapping->At(8, ~std::uint64_t{0}).empty());
}

}  // namespace
}  // namespace kvfabric
