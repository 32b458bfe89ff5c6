// What LocalService does with memory: tenants, closed memfds, clients that die, blocks over TCP.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <thread>

#include "tests/service/local_service_fixture.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;
using wire::PutOutcome;

TEST_F(LocalServiceTest, ShowsNoTenantAnothersMemoryOrKeys) {
  Start();
  const auto blue = Connect(kBlue);
  const TestStaging staging(4'096);
  Stage(*blue, staging);
  Put(*blue, staging, {"secret"}, "bytes of blue");

  LocalPeer red(UnixAddress());
  const auto hello = red.Hello(kRed, FakeFabric::kPool);
  ASSERT_EQ(hello.header.status, StatusCode::kOk);
  EXPECT_EQ(hello.descriptors.size(), 0U) << "blue's memory";
  EXPECT_EQ(Lookup(red, {"secret"}).hits, 0U);
  const std::vector<std::string_view> keys = {"secret"};
  const auto get = wire::Decode<wire::GetReply>(
      AsBytes(red.Call(FrameOp::kGet, wire::EncodeGet(0, Lane{}, View(keys))).body));
  ASSERT_TRUE(get.ok());
  EXPECT_EQ(get->entries.at(0).place, wire::GetPlace::kMiss);
  EXPECT_EQ(red.others.size(), 0U) << "nothing but answers";

  // The same key of red is another block, in memory of its own.
  const TestStaging red_staging(4'096);
  Stage(red, red_staging);
  EXPECT_EQ(Put(red, red_staging, {"secret"}, "bytes of red"),
            std::vector<PutOutcome>{PutOutcome::kOk});
  const auto own = red.Call(FrameOp::kGet, wire::EncodeGet(0, Lane{}, View(keys)));
  const auto own_get = wire::Decode<wire::GetReply>(AsBytes(own.body));
  ASSERT_TRUE(own_get.ok());
  ASSERT_EQ(red.others.size(), 1U);
  const auto fresh = wire::Decode<wire::NewMemfd>(AsBytes(red.others[0].body));
  ASSERT_TRUE(fresh.ok());
  ASSERT_EQ(fresh->memfds.size(), 1U);
  EXPECT_EQ(fresh->memfds[0].id, own_get->entries.at(0).memfd_id);
  for (const MemfdRef& memfd : fabric_->arena().MemfdsOf("blue")) {
    EXPECT_NE(memfd->id(), fresh->memfds[0].id);
  }
}

// An arena of two memfds, both blue's and empty again: red's put must close one.
class ClosedMemfdTest : public LocalServiceTest {
 protected:
  void StartFull() {
    Start({}, 2U << 20U);
    blue_ = std::make_unique<LocalPeer>(UnixAddress());
    ASSERT_EQ(blue_->Hello(kBlue, FakeFabric::kPool).header.status, StatusCode::kOk);
    Stage(*blue_, staging_);
    const std::string block(600'000, 'b');
    const std::vector<std::string_view> one = {"one"};
    const std::vector<std::string_view> two = {"two"};
    ASSERT_EQ(Put(*blue_, staging_, one, block), std::vector<PutOutcome>{PutOutcome::kOk});
    ASSERT_EQ(Put(*blue_, staging_, two, block), std::vector<PutOutcome>{PutOutcome::kOk});
    for (const auto& keys : {one, two}) {  // learns of both memfds
      blue_->Call(FrameOp::kGet, wire::EncodeGet(0, Lane{}, View(keys)));
      blue_->Call(FrameOp::kRelease, wire::Encode(wire::ReleaseRequest{{1, 2}}));
      blue_->Call(FrameOp::kDelete, wire::EncodeDelete(Lane{}, View(keys)));
    }
    ASSERT_EQ(fabric_->arena().stats().slot_bytes, 0U);
  }
  std::vector<PutOutcome> RedPut(const char* key) {
    if (red_ == nullptr) {
      red_ = Connect(kRed);
      Stage(*red_, red_staging_);
    }
    return Put(*red_, red_staging_, {key}, std::string(600'000, 'r'));
  }

  const TestStaging staging_{1U << 20U};
  const TestStaging red_staging_{1U << 20U};
  std::unique_ptr<LocalPeer> blue_;
  std::unique_ptr<LocalPeer> red_;
};

TEST_F(ClosedMemfdTest, GoesBackWhenTheClientSaysItUnmapped) {
  StartFull();
  static_cast<void>(RedPut("r"));
  const auto ask = blue_->Next();
  ASSERT_EQ(ask.header.op, FrameOp::kCloseMemfd);
  EXPECT_GT(fabric_->arena().stats().closing_bytes, 0U);
  OutgoingFrame unmapped;
  unmapped.header.op = FrameOp::kCloseMemfd;
  unmapped.header.flags = kFrameReply;
  unmapped.body = ask.body;
  blue_->SendFrame(std::move(unmapped));
  EXPECT_TRUE(Eventually([&] { return fabric_->arena().stats().closing_bytes == 0; }));
  EXPECT_EQ(RedPut("r2"), std::vector<PutOutcome>{PutOutcome::kOk});
  EXPECT_EQ(blue_->Call(FrameOp::kPing, "").header.status, StatusCode::kOk);
}

TEST_F(ClosedMemfdTest, GoesBackAfterASecondFromAClientThatSaysNothing) {
  StartFull();
  static_cast<void>(RedPut("r"));
  ASSERT_GT(fabric_->arena().stats().closing_bytes, 0U);
  EXPECT_EQ(blue_->Next().header.op, FrameOp::kCloseMemfd);
  const auto asked = std::chrono::steady_clock::now();
  blue_->Next();
  EXPECT_TRUE(blue_->lost && !blue_->timed_out);
  const auto took = std::chrono::steady_clock::now() - asked;
  EXPECT_GE(took, milliseconds(700));
  EXPECT_LT(took, milliseconds(2'000) * TimeScale());
  EXPECT_TRUE(Eventually([&] { return fabric_->arena().stats().closing_bytes == 0; }));
  EXPECT_EQ(RedPut("r2"), std::vector<PutOutcome>{PutOutcome::kOk});
}

// Forked before any thread of this test runs; speaks to the service when told, then stays.
TEST_F(LocalServiceTest, ReturnsEverythingOfAKilledClientWithin100Ms) {
  int go[2] = {-1, -1};
  int ready[2] = {-1, -1};
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const SocketAddress address = UnixAddress();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte = 0;
    static_cast<void>(!::read(go[0], &byte, 1));
    LocalPeer peer(address);
    static_cast<void>(peer.Hello(kBlue, FakeFabric::kPool));
    for (int i = 0; i < 10; ++i) static_cast<void>(Lookup(peer, {"k"}));
    static_cast<void>(!::write(ready[1], "r", 1));
    static_cast<void>(!::read(go[0], &byte, 1));
    ::_exit(0);
  }
  Start();
  const auto writer = Connect();
  const TestStaging staging(4'096);
  Stage(*writer, staging);
  Put(*writer, staging, {"k"}, "block");
  ASSERT_EQ(::write(go[1], "g", 1), 1);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(fabric_->leases(), 10U);
  EXPECT_EQ(fabric_->open_sessions(), 2U);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] { return fabric_->leases() == 0; }, milliseconds(100)));
  EXPECT_TRUE(Eventually([&] { return fabric_->open_sessions() == 1; }, milliseconds(100)));
  EXPECT_EQ(fabric_->engine().Stats().pinned_bytes, 0U);
  EXPECT_EQ(writer->Call(FrameOp::kPing, "").header.status, StatusCode::kOk);
  ::waitpid(child, nullptr, 0);
  for (const int fd : {go[0], go[1], ready[0], ready[1]}) ::close(fd);
}

TEST_F(LocalServiceTest, CarriesBlocksInlineOverTcp) {
  Start();
  ListenOnTcp();
  LocalPeer peer(tcp_->address());
  const auto hello = peer.Hello(kBlue, FakeFabric::kPool);
  ASSERT_EQ(hello.header.status, StatusCode::kOk) << hello.body;
  std::mt19937_64 random(TestSeed());
  std::vector<std::string> names;
  std::vector<std::string> blocks;
  for (int i = 0; i < 5; ++i) {
    names.push_back("key" + std::to_string(i));
    blocks.emplace_back(1 + random() % 900'000, '\0');
    for (char& c : blocks.back()) c = static_cast<char>(random());
    const std::vector<std::string_view> keys = {names.back()};
    const auto reply = peer.Call(FrameOp::kPutInline,
                                 wire::EncodePutInline(Lane{}, View(keys), "m"), blocks.back());
    const auto put = wire::Decode<wire::PutReply>(AsBytes(reply.body));
    ASSERT_TRUE(put.ok()) << reply.body;
    ASSERT_EQ(put->status.at(0), PutOutcome::kOk);
  }
  std::vector<std::string_view> keys(names.begin(), names.end());
  keys.push_back("absent");
  const auto last = peer.Call(FrameOp::kGet, wire::EncodeGet(0, Lane{}, View(keys)));
  std::vector<wire::GetEntry> entries;
  std::string bytes;
  const auto add = [&](const LocalPeer::Frame& frame) {
    const auto part = wire::Decode<wire::GetReply>(AsBytes(frame.body));
    ASSERT_TRUE(part.ok());
    EXPECT_EQ(part->first_index, entries.size());
    entries.insert(entries.end(), part->entries.begin(), part->entries.end());
    bytes += frame.payload;
  };
  for (const LocalPeer::Frame& frame : peer.others) add(frame);
  add(last);
  ASSERT_EQ(entries.size(), 6U);
  std::size_t at = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(entries[i].place, wire::GetPlace::kInline);
    EXPECT_EQ(entries[i].checksum, BlockChecksum(AsBytes(std::string_view(blocks[i]))));
    EXPECT_EQ(bytes.substr(at, entries[i].length), blocks[i]) << i;
    at += entries[i].length;
  }
  EXPECT_EQ(entries[5].place, wire::GetPlace::kMiss);
  EXPECT_TRUE(Eventually([&] { return fabric_->leases() == 0; }))
      << "it took its own and needs none";
}

TEST_F(LocalServiceTest, DropsBlocksOverTcpThatArriveBrokenOrBeyondItsBytes) {
  Start({.max_inline_bytes = 10'000});
  ListenOnTcp();
  const auto peer = ConnectTcp();
  const auto put = [&](std::string_view key, std::size_t bytes) {
    const std::vector<std::string_view> keys = {key};
    const auto reply =
        peer->Call(FrameOp::kPutInline, wire::EncodePutInline(Lane{}, View(keys), ""),
                   std::string(bytes, 'x'));
    const auto decoded = wire::Decode<wire::PutReply>(AsBytes(reply.body));
    return decoded.ok() ? decoded->status.at(0) : PutOutcome::kFailed;
  };
  EXPECT_EQ(put("large", 10'001), PutOutcome::kNoSpace);
  EXPECT_EQ(put("fits", 10'000), PutOutcome::kOk);
  EXPECT_EQ(put("again", 10'000), PutOutcome::kOk) << "the bytes came back";
  peer->claimed_checksum = 12'345;
  EXPECT_EQ(put("broken", 100), PutOutcome::kChecksumMismatch);
  peer->claimed_checksum = 0;  // over TCP it may not be left out
  EXPECT_EQ(put("broken", 100), PutOutcome::kChecksumMismatch);
  EXPECT_EQ(Lookup(*peer, {"broken"}).hits, 0U);
  EXPECT_EQ(Lookup(*peer, {"fits"}).hits, 1U);
}

TEST_F(LocalServiceTest, LeavesNothingOfABlockThatStoppedHalfWay) {
  Start({.max_inline_bytes = 200'000});
  ListenOnTcp();
  const auto reader = ConnectTcp();
  const std::vector<std::string_view> keys = {"half"};
  for (int i = 0; i < 5; ++i) {  // also their bytes come back, or the last would find no room
    auto writer = ConnectTcp();
    OutgoingFrame frame;
    frame.header.op = FrameOp::kPutInline;
    frame.header.request_id = 9;
    frame.header.remaining_ms = 10'000;
    frame.header.body_bytes = 0;
    frame.body = wire::EncodePutInline(Lane{}, View(keys), "");
    // The header of a frame whose payload is cut: sent by hand.
    FrameHeader header = frame.header;
    header.body_bytes = static_cast<std::uint32_t>(frame.body.size());
    header.payload_bytes = 150'000;
    header.body_hash = FrameBodyHash(AsBytes(std::string_view(frame.body)));
    const auto head = EncodeFrameHeader(header);
    const std::string bytes = std::string(AsText(head)) + frame.body + std::string(70'000, 'h');
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = ::send(writer->fd(), bytes.data() + sent, bytes.size() - sent, 0);
      if (n > 0) sent += static_cast<std::size_t>(n);
      if (n < 0 && errno != EAGAIN) FAIL() << "cannot send";
    }
    EXPECT_EQ(Lookup(*reader, keys).hits, 0U);
    writer.reset();
    EXPECT_TRUE(Eventually([&] { return fabric_->open_sessions() == 1; }));
    EXPECT_EQ(Lookup(*reader, keys).hits, 0U);
  }
  EXPECT_EQ(fabric_->arena().stats().slot_bytes, 0U);
  const auto reply =
      reader->Call(FrameOp::kPutInline, wire::EncodePutInline(Lane{}, View(keys), ""),
                   std::string(150'000, 'h'));
  EXPECT_EQ(wire::Decode<wire::PutReply>(AsBytes(reply.body))->status.at(0), PutOutcome::kOk);
}

TEST_F(LocalServiceTest, RefusesClientsOverTcpWhereThePoolWantsTls) {
  Start({.tcp_clients = false});
  ListenOnTcp();
  LocalPeer peer(tcp_->address());
  const auto reply = peer.Hello(kBlue, FakeFabric::kPool);
  EXPECT_TRUE(peer.lost || reply.header.op == FrameOp::kError);
  EXPECT_EQ(fabric_->open_sessions(), 0U);
}

}  // namespace
}  // namespace kvfabric
