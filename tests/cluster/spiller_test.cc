// The spiller's bookkeeping of its peers' room, over links that a test answers.

#include "agent/cluster/spiller.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <utility>

#include "agent/tier/dram_arena.h"
#include "common/identity.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/manual_executor.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kBlockBytes = 16'384;

// A peer that is up. What it is asked waits until the test answers.
class ScriptedLink final : public PeerLink {
 public:
  struct Asked {
    std::size_t blocks = 0;
    Deadline deadline;
    Completion<OfferReply> done;
  };
  std::deque<Asked> offers;
  bool stores = true;  // what it agreed to take; else the push fails
  KeepaliveState state;

  bool up() const override { return true; }
  PeerIdentity identity() const override { return {}; }
  KeepaliveState peer_state() const override { return state; }
  void Offer(OfferRequest request, Deadline deadline, Completion<OfferReply> done) override {
    offers.push_back({request.ids.size(), deadline, std::move(done)});
  }
  void Push(std::string, OfferReason, std::vector<PinnedBlock> blocks, Deadline,
            Completion<PushResult> done) override {
    done(PushResult{std::vector<bool>(blocks.size(), stores)});
  }
  // The oldest offer; the same answer for each of its blocks.
  void Answer(OfferAnswer answer) {
    const Asked asked = std::move(offers.front());
    offers.pop_front();
    asked.done(OfferReply{std::vector<OfferAnswer>(asked.blocks, answer)});
  }

  void Announce(AnnounceRequest, Deadline, Completion<AnnounceReply> done) override {
    done(AnnounceReply{});
  }
  void Locate(LocateRequest, Deadline, Completion<LocateReply> done) override {
    done(LocateReply{});
  }
  void Lease(LeaseRequest, Deadline, Completion<LeaseReply> done) override { done(LeaseReply{}); }
  void Release(std::vector<std::uint64_t>) override {}
  void Delete(DeleteAtPeerRequest, Deadline, Completion<std::uint32_t> done) override { done(0U); }
  void FetchMap(std::string, Deadline, Completion<std::string> done) override {
    done(std::string{});
  }
  void Fetch(std::string, std::uint64_t, std::vector<FetchItem>, FetchSink, Deadline,
             Completion<FetchResult> done) override {
    done(FetchResult{});
  }
};

class ScriptedConnector final : public PeerConnector {
 public:
  std::map<std::string, ScriptedLink*> links;
  std::unique_ptr<PeerLink> Connect(const PeerAddress& address) override {
    auto link = std::make_unique<ScriptedLink>();
    links[address.node_name] = link.get();
    return link;
  }
};

class SpillRoom : public ::testing::Test {
 protected:
  SpillRoom() {
    arena_ = DramArena::Create({.bytes = 4U << 20U, .memfd_bytes = 1U << 20U}).value();
    CacheEngine::Options options;
    options.pool_uid = "pool-uid";
    options.capacity_bytes = 4U << 20U;
    engine_ = CacheEngine::Create(options, {.arena = arena_.get(), .clock = &clock_}).value();
    auto map = std::make_shared<ShardMap>();
    map->pool_uid = "pool-uid";
    map->slot_count = kRedisSlots;
    std::vector<PeerAddress> addresses;
    for (const std::string name : {"self", "b", "c"}) {
      Member member;
      member.node_name = name;
      map->members.push_back(member);
      if (name != "self") addresses.push_back({name, "", "memory", 0});
    }
    map->table.assign(map->slot_count * map->owners_per_slot, 0);
    peers_.SetPeers(addresses);
    const PoolRouting::Self self{"self", "", names_.Intern("self")};
    routing_.Set(PoolRouting::Make(map, nullptr, self, names_, clock_.Now()));
    context_.clock = &clock_;
    context_.background = &background_;
    context_.peers = &peers_;
    spiller_.SetCapacity(20 * 4 * kBlockBytes);  // four blocks may wait
    for (int number = 0; number < 8; ++number) MakeBlock(number);
    clock_.Advance(std::chrono::hours(1));  // warm peers without room do not count as colder
  }
  // Calls under way hold links, and the peers wait for those.
  ~SpillRoom() override {
    for (auto& [name, link] : connector_.links) {
      while (!link->offers.empty()) {
        link->Answer(OfferAnswer::kHasIt);
        background_.RunAll();
      }
    }
  }

  void MakeBlock(int number) {
    BlockHeader header;
    header.ns = ns_;
    header.key = "k" + std::to_string(number);
    header.id = MakeKeyId(ns_->digest, header.lane, header.key);
    header.length_bytes = kBlockBytes;
    ids_.push_back(header.id);
    Result<Reservation> place = engine_->Reserve(std::move(header), BlockOrigin::kPut);
    ASSERT_TRUE(std::move(place).value().Commit(1).ok());
  }
  bool Take(int number) {
    const bool taken = spiller_.Take(*engine_->PinById(ids_[static_cast<std::size_t>(number)]));
    background_.RunAll();
    return taken;
  }
  // What the peers' keepalives say from now on: room for so many blocks; coldest_age 0.
  void Report(std::uint64_t b_blocks, std::uint64_t c_blocks) {
    link("b").state.pools = {{"pool-uid", {}, b_blocks * kBlockBytes}};
    link("c").state.pools = {{"pool-uid", {}, c_blocks * kBlockBytes}};
    spiller_.Tick();
  }
  ScriptedLink& link(const std::string& name) { return *connector_.links.at(name); }
  void Answer(const std::string& name, OfferAnswer answer) {
    link(name).Answer(answer);
    background_.RunAll();
  }

  FakeClock clock_;
  ManualExecutor background_;
  MetricsRegistry registry_;
  NodeNames names_;
  ScriptedConnector connector_;
  const NamespaceRef ns_ =
      std::make_shared<const Namespace>(Namespace{"pool-uid", "default", NamespaceKind::kSingle,
                                                  MakeNamespaceDigest("pool-uid", "default", "")});
  std::unique_ptr<DramArena> arena_;
  std::unique_ptr<CacheEngine> engine_;
  PeerSet peers_{{&clock_, &background_, &connector_, &names_, &registry_}, {}};
  RoutingCell routing_;
  Gate gate_;
  PoolMetrics metrics_{registry_, "ns/pool"};
  NodeContext context_;
  std::vector<KeyId> ids_;
  Spiller spiller_{"pool-uid", {&context_, &routing_, &gate_, &metrics_}};
};

TEST_F(SpillRoom, TriesAPeerAgainWhosePushFailed) {
  Report(1, 0);
  link("b").stores = false;
  ASSERT_TRUE(Take(0));
  EXPECT_FALSE(Take(1));  // the room is spoken for
  Answer("b", OfferAnswer::kPush);
  // An idle peer goes on to say the same: nothing came.
  spiller_.Tick();
  link("b").stores = true;
  ASSERT_TRUE(Take(1));
  Answer("b", OfferAnswer::kPush);
  EXPECT_FALSE(Take(2));  // until a keepalive tells what is left
  clock_.Advance(std::chrono::seconds(1));
  spiller_.Tick();
  EXPECT_TRUE(Take(2));
}

TEST_F(SpillRoom, CountsWhatAPeerHadAsNoRoomTaken) {
  Report(1, 0);
  ASSERT_TRUE(Take(0));
  Answer("b", OfferAnswer::kHasIt);
  EXPECT_TRUE(Take(1));
}

TEST_F(SpillRoom, GivesTheRoomBackOfWhatWaitedTooLong) {
  Report(2, 0);
  ASSERT_TRUE(Take(0));
  ASSERT_TRUE(Take(1));  // waits behind the first
  clock_.Advance(milliseconds(200));
  spiller_.Tick();
  EXPECT_EQ(metrics_.spill_dropped.Value(), 1);
  EXPECT_TRUE(Take(2));
}

TEST_F(SpillRoom, AsksAPeerThatRefusedSoonAgain) {
  Report(2, 0);
  ASSERT_TRUE(Take(0));
  Answer("b", OfferAnswer::kNo);
  EXPECT_EQ(metrics_.spill_dropped.Value(), 1);
  spiller_.Tick();
  EXPECT_FALSE(Take(1));
  clock_.Advance(milliseconds(50));
  spiller_.Tick();
  ASSERT_TRUE(Take(1));
  Answer("b", OfferAnswer::kNo);
  Report(3, 0);  // it says otherwise
  EXPECT_TRUE(Take(2));
}

TEST_F(SpillRoom, GivesABatchTheTimeOfItsLatestBlock) {
  Report(2, 4);
  ASSERT_TRUE(Take(0));
  ASSERT_EQ(link("c").offers.size(), 1U);
  Report(8, 4);
  ASSERT_TRUE(Take(1));
  clock_.Advance(milliseconds(100));
  ASSERT_TRUE(Take(2));
  Answer("c", OfferAnswer::kNo);  // the first goes behind the third
  Answer("b", OfferAnswer::kPush);
  ASSERT_EQ(link("b").offers.size(), 1U);
  EXPECT_EQ(link("b").offers[0].blocks, 2U);
  EXPECT_EQ(link("b").offers[0].deadline.at(), clock_.Now() + milliseconds(200));
}

TEST_F(SpillRoom, CountsABlockOnceThatFindsTheQueueFullAfterARefusal) {
  Report(2, 4);
  ASSERT_TRUE(Take(0));
  spiller_.SetCapacity(0);
  Answer("c", OfferAnswer::kNo);
  EXPECT_EQ(metrics_.spill_dropped.Value(), 1);
}

TEST_F(SpillRoom, CountsWhatFindsTheQueueFull) {
  Report(8, 0);
  for (int number = 0; number < 4; ++number) EXPECT_TRUE(Take(number));
  EXPECT_FALSE(Take(4));
  EXPECT_EQ(metrics_.spill_dropped.Value(), 1);
}

}  // namespace
}  // namespace kvfabric
