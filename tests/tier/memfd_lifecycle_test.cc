// A memfd's life: sealed, prefaulted, mapped by sessions, emptied, closed, replaced.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/tier/dram_arena.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/manual_executor.h"

namespace kvfabric {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

std::unique_ptr<DramArena> MakeArena(std::uint64_t bytes, const Clock& clock,
                                     Executor* background = nullptr) {
  auto arena = DramArena::Create({.bytes = bytes, .clock = &clock, .background = background});
  EXPECT_TRUE(arena.ok()) << arena.status().ToString();
  return std::move(arena).value();
}

TEST(Memfd, LetsAClientReadAndNothingElse) {
  auto memfd = Memfd::Create(1, kMiB).value();
  memfd->data()[5] = std::byte{42};
  // What a client has: the descriptor, and a descriptor opened anew through /proc.
  const UniqueFd again(
      ::open(("/proc/self/fd/" + std::to_string(memfd->fd())).c_str(), O_RDWR | O_CLOEXEC));
  for (const int fd : {memfd->fd(), again.get()}) {
    EXPECT_EQ(::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_EQ(errno, EPERM);
    EXPECT_LT(::pwrite(fd, "x", 1, 0), 0);
    EXPECT_LT(::ftruncate(fd, 0), 0);
    EXPECT_LT(::ftruncate(fd, static_cast<off_t>(2 * kMiB)), 0);
    EXPECT_LT(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    EXPECT_LT(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    void* map = ::mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(map, MAP_FAILED);
    EXPECT_EQ(static_cast<std::byte*>(map)[5], std::byte{42});
    EXPECT_LT(::mprotect(map, kMiB, PROT_READ | PROT_WRITE), 0);
    memfd->data()[5] = std::byte{43};  // the owner goes on writing, and the client sees it
    EXPECT_EQ(static_cast<std::byte*>(map)[5], std::byte{43});
    memfd->data()[5] = std::byte{42};
    ::munmap(map, kMiB);
  }
}

TEST(Memfd, NamesTheSizeItCouldNotGet) {
  const auto memfd = Memfd::Create(1, std::uint64_t{1} << 50U);  // no address space has that
  ASSERT_FALSE(memfd.ok());
  EXPECT_EQ(memfd.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(memfd.status().message().find("1125899906842624 bytes"), std::string::npos);
}

TEST(DramArena, PrefaultsInTheBackgroundThenIsReady) {
  FakeClock clock;
  ManualExecutor background;
  auto arena = MakeArena(4 * kMiB, clock, &background);
  EXPECT_FALSE(arena->ready());
  background.RunOne();
  EXPECT_FALSE(arena->ready());
  EXPECT_EQ(arena->stats().spare_bytes, kMiB);
  background.RunAll();
  EXPECT_TRUE(arena->ready());
  EXPECT_TRUE(arena->prefault_status().ok());
  EXPECT_EQ(arena->stats().spare_bytes, 4 * kMiB);
  ASSERT_TRUE(arena->Allocate("a", 100).ok());
  struct stat file {};
  ASSERT_EQ(::fstat(arena->MemfdsOf("a")[0]->fd(), &file), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(file.st_blocks) * 512, kMiB) << "pages are not present";
}

TEST(DramArena, ServesWhilePrefaultIsUnderWayWithoutExceedingTheCap) {
  FakeClock clock;
  ManualExecutor background;
  auto arena = MakeArena(4 * kMiB, clock, &background);
  std::vector<ArenaSlot> slots;
  for (auto slot = arena->Allocate("a", kMiB); slot.ok(); slot = arena->Allocate("a", kMiB)) {
    slots.push_back(*slot);
  }
  EXPECT_EQ(slots.size(), 4U);
  background.RunAll();
  EXPECT_TRUE(arena->ready());
  EXPECT_EQ(arena->stats().memfd_bytes, 4 * kMiB);
}

TEST(DramArena, MayGoWhilePrefaultWaits) {
  FakeClock clock;
  ManualExecutor background;
  MakeArena(4 * kMiB, clock, &background).reset();
  EXPECT_EQ(background.RunAll(), 1U);
}

class Recorder final : public ArenaObserver {
 public:
  void OnMemfd(const std::string& tenant, const MemfdRef& memfd) override {
    made.push_back({tenant, memfd->id()});
  }
  void OnClosing(std::uint64_t memfd_id, const std::vector<std::uint64_t>& sessions) override {
    closing.push_back({memfd_id, sessions});
  }
  std::vector<std::pair<std::string, std::uint64_t>> made;
  std::vector<std::pair<std::uint64_t, std::vector<std::uint64_t>>> closing;
};

TEST(DramArena, TellsOfAMemfdBeforeAnOffsetInItIsNamed) {
  FakeClock clock;
  Recorder recorder;
  auto arena = MakeArena(4 * kMiB, clock);
  arena->SetObserver(&recorder);
  const ArenaSlot slot = arena->Allocate("a", 100).value();
  ASSERT_EQ(recorder.made.size(), 1U);
  EXPECT_EQ(recorder.made[0], std::make_pair(std::string("a"), slot.memfd_id));
  ASSERT_TRUE(arena->Allocate("a", 100).ok());
  EXPECT_EQ(recorder.made.size(), 1U);
}

// Memory changes tenant: a fresh memfd with nothing of the old tenant's bytes in it.
TEST(DramArena, ClosesAnEmptyMemfdAndMakesAFreshOneForAnotherTenant) {
  FakeClock clock;
  auto arena = MakeArena(kMiB, clock);
  const ArenaSlot secret = arena->Allocate("a", kMiB).value();
  secret.data[0] = std::byte{42};
  arena->Free(secret);
  const ArenaSlot slot = arena->Allocate("b", kMiB).value();
  EXPECT_NE(slot.memfd_id, secret.memfd_id);
  EXPECT_EQ(slot.data[0], std::byte{0});
  EXPECT_TRUE(arena->MemfdsOf("a").empty());
}

TEST(DramArena, CountsAClosedMemfdUntilEverySessionLetGo) {
  FakeClock clock;
  Recorder recorder;
  auto arena = MakeArena(kMiB, clock);
  arena->SetObserver(&recorder);
  const ArenaSlot slot = arena->Allocate("a", 100).value();
  ASSERT_TRUE(arena->OnMapped(7, slot.memfd_id));
  ASSERT_TRUE(arena->OnMapped(8, slot.memfd_id));
  ASSERT_TRUE(arena->OnMapped(9, slot.memfd_id));
  arena->Free(slot);
  EXPECT_EQ(arena->Allocate("b", 100).status().code(), StatusCode::kResourceExhausted);
  ASSERT_EQ(recorder.closing.size(), 1U);
  EXPECT_EQ(recorder.closing[0].second, (std::vector<std::uint64_t>{7, 8, 9}));
  EXPECT_EQ(arena->stats().closing_bytes, kMiB);
  EXPECT_FALSE(arena->OnMapped(10, slot.memfd_id)) << "it is out of use: nobody may get it now";
  EXPECT_TRUE(arena->MemfdsOf("a").empty());

  arena->OnUnmapped(7, slot.memfd_id);
  EXPECT_TRUE(arena->Laggards().empty());
  clock.Advance(DramArena::kUnmapGrace);
  ASSERT_EQ(arena->Laggards().size(), 2U);
  EXPECT_EQ(arena->Laggards()[0].session, 8U);
  arena->OnSessionEnded(8);
  EXPECT_EQ(arena->Allocate("b", 100).status().code(), StatusCode::kResourceExhausted);
  arena->OnSessionEnded(9);
  EXPECT_TRUE(arena->Laggards().empty());
  EXPECT_TRUE(arena->Allocate("b", 100).ok());
}

// Knows the slots it holds and frees them when told to empty a memfd, but for pinned ones.
class FakeUser final : public ArenaUser {
 public:
  explicit FakeUser(DramArena& arena) : arena_(arena) { arena_.Register(this); }
  ~FakeUser() override { arena_.Unregister(this); }

  void Put(const std::string& tenant, std::uint64_t bytes, std::int64_t touched_us) {
    blocks_.push_back({arena_.Allocate(tenant, bytes).value(), touched_us, false});
  }
  void Pin(std::size_t block, bool pinned) { blocks_[block].pinned = pinned; }
  std::uint64_t memfd(std::size_t block) const { return blocks_[block].slot.memfd_id; }

  void AddWarmth(std::map<std::uint64_t, Warmth>& by_memfd) const override {
    for (const Block& block : blocks_) {
      Warmth& warmth = by_memfd[block.slot.memfd_id];
      warmth.newest_touch_us = std::max(warmth.newest_touch_us, block.touched_us);
    }
  }
  void EmptyMemfd(std::uint64_t memfd_id) override {
    emptied.push_back(memfd_id);
    std::erase_if(blocks_, [this, memfd_id](const Block& block) {
      if (block.slot.memfd_id != memfd_id || block.pinned) return false;
      arena_.Free(block.slot);
      return true;
    });
  }
  std::vector<std::uint64_t> emptied;

 private:
  struct Block {
    ArenaSlot slot;
    std::int64_t touched_us = 0;
    bool pinned = false;
  };
  DramArena& arena_;
  std::vector<Block> blocks_;
};

TEST(DramArena, EmptiesTheMemfdWhoseNewestBlockIsColdest) {
  FakeClock clock;
  auto arena = MakeArena(3 * kMiB, clock);
  FakeUser user(*arena);
  user.Put("a", kMiB / 2, 10);   // this memfd holds the oldest block of all ...
  user.Put("a", kMiB / 2, 500);  // ... and a fresh one
  user.Put("b", kMiB / 2, 300);
  user.Put("b", kMiB / 2, 200);
  user.Put("c", kMiB, 400);
  const std::uint64_t coldest = user.memfd(2);
  ASSERT_EQ(arena->Allocate("d", 100).status().code(), StatusCode::kResourceExhausted);
  arena->Reclaim("d");
  EXPECT_EQ(user.emptied, std::vector<std::uint64_t>{coldest});
  EXPECT_TRUE(arena->Allocate("d", 100).ok());
}

TEST(DramArena, WaitsForPinsOfTheMemfdItEmptiesThenGivesItAway) {
  FakeClock clock;
  auto arena = MakeArena(2 * kMiB, clock);
  FakeUser user(*arena);
  user.Put("a", kMiB / 2, 1);
  user.Put("a", kMiB / 2, 2);
  user.Put("b", kMiB, 3);
  user.Pin(0, true);
  arena->Reclaim("c");
  EXPECT_EQ(arena->Allocate("c", 100).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(arena->Allocate("a", kMiB / 2).status().code(), StatusCode::kResourceExhausted)
      << "a memfd that is being emptied gives no slots";
  arena->Reclaim("c");
  EXPECT_EQ(std::set<std::uint64_t>(user.emptied.begin(), user.emptied.end()).size(), 1U)
      << "no second one is emptied while the first waits";
  user.Pin(0, false);
  arena->Reclaim("c");
  EXPECT_TRUE(arena->Allocate("c", 100).ok());
}

TEST(DramArena, EmptiesAMemfdForAnotherSlotSizeOfTheSameTenant) {
  FakeClock clock;
  auto arena = MakeArena(kMiB, clock);
  FakeUser user(*arena);
  user.Put("a", 1000, 1);
  const std::uint64_t memfd = user.memfd(0);
  ASSERT_FALSE(arena->Allocate("a", 2000).ok());
  arena->Reclaim("a");
  EXPECT_EQ(arena->Allocate("a", 2000).value().memfd_id, memfd) << "the same tenant keeps it";
}

}  // namespace
}  // namespace kvfabric
