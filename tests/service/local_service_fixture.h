#pragma once

// A LocalService over FakeFabric on two loops, with a Unix socket and a TCP port that hands
// connections over as the bulk port does.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/service/local_service.h"
#include "tests/fakes/fake_fabric.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"
#include "tests/service/local_peer.h"

namespace kvfabric {

class LocalServiceTest : public ::testing::Test {
 protected:
  static constexpr const char* kBlue = "blue-token-1";
  static constexpr const char* kRed = "red-token-22";

  void Start(LocalService::Options options = {}, std::uint64_t arena_bytes = 32U << 20U,
             std::size_t put_queue = 1'024, std::size_t loop_queue = 65'536) {
    fabric_ = std::make_unique<FakeFabric>(arena_bytes);
    workers_ = std::make_unique<WorkerPool>("puts", 2, put_queue);
    for (int i = 0; i < 2; ++i) {
      auto loop =
          EventLoop::Create({.name = "loop-" + std::to_string(i), .max_queued = loop_queue});
      KVF_CHECK(loop.ok(), "cannot make a loop");
      loops_.push_back(std::move(*loop));
    }
    options.socket_path = path();
    service_ = MustStart(options);
  }

  LocalService::Environment Environment() {
    LocalService::Environment environment;
    environment.fabric = fabric_.get();
    environment.arena = &fabric_->arena();
    environment.tenant_of = [](std::string_view token) -> std::optional<std::string> {
      if (token == kBlue) return "blue";
      if (token == kRed) return "red";
      return std::nullopt;
    };
    environment.loops = {loops_[0].get(), loops_[1].get()};
    environment.put_workers = workers_.get();
    environment.clock = &Clock::System();
    environment.metrics = &metrics_;
    return environment;
  }
  std::unique_ptr<LocalService> MustStart(const LocalService::Options& options) {
    auto service = LocalService::Start(options, Environment());
    KVF_CHECK(service.ok(), "cannot start the service");
    return std::move(*service);
  }

  void ListenOnTcp() {
    auto any = SocketAddress::Tcp("127.0.0.1", 0);
    auto listener =
        Listener::Listen(*loops_[1], {.address = *any}, [this](UniqueFd fd, std::string peer) {
          const auto first = std::make_shared<FirstFrame>(*service_);
          auto frames = FrameConnection::Start(
              *loops_[1], std::make_unique<PlainStream>(std::move(fd), std::move(peer)), {}, first);
          if (frames.ok()) first->frames = *frames;
        });
    KVF_CHECK(listener.ok(), "cannot listen");
    tcp_ = std::move(*listener);
  }

  void TearDown() override {
    tcp_.reset();
    service_.reset();
    fabric_.reset();
    for (auto& loop : loops_) loop->Stop();
    workers_.reset();
  }

  std::string path() const { return (directory_.path() / "agent.sock").string(); }
  SocketAddress UnixAddress() const { return *SocketAddress::Unix(path()); }
  std::unique_ptr<LocalPeer> Connect(const char* token = kBlue,
                                     NamespaceKind kind = NamespaceKind::kChain) {
    return Greeted(UnixAddress(), token, kind);
  }
  std::unique_ptr<LocalPeer> ConnectTcp(const char* token = kBlue) {
    return Greeted(tcp_->address(), token, NamespaceKind::kChain);
  }

  // Waits for what another thread is about to make true, at most `limit` times KVF_TIME_SCALE.
  static bool Eventually(const std::function<bool()>& condition,
                         std::chrono::milliseconds limit = std::chrono::milliseconds(5'000)) {
    const auto scaled = std::chrono::duration_cast<std::chrono::milliseconds>(limit * TimeScale());
    const auto deadline = std::chrono::steady_clock::now() + scaled;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  static wire::KeyRangeView View(const std::vector<std::string_view>& keys) {
    return {.first = 0, .keys = keys};
  }
  // Puts one block a key out of `staging`, which holds them one after the other.
  static std::vector<wire::PutOutcome> Put(LocalPeer& peer, const TestStaging& staging,
                                           const std::vector<std::string_view>& keys,
                                           const std::string& block, std::string metadata = {}) {
    std::vector<wire::PutEntry> entries;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::memcpy(staging.at() + i * block.size(), block.data(), block.size());
      entries.push_back({i * block.size(), block.size(), 0, metadata});
    }
    const auto reply = peer.Call(FrameOp::kPut, wire::EncodePut(Lane{}, View(keys), entries));
    const auto put = wire::Decode<wire::PutReply>(AsBytes(reply.body));
    EXPECT_TRUE(put.ok()) << reply.body;
    return put.ok() ? put->status : std::vector<wire::PutOutcome>{};
  }
  static void Stage(LocalPeer& peer, const TestStaging& staging) {
    const auto reply = peer.Call(
        FrameOp::kStaging, wire::Encode(wire::StagingRequest{staging.bytes()}), {}, staging.fd());
    EXPECT_EQ(reply.header.status, StatusCode::kOk) << reply.body;
  }
  static wire::LookupReply Lookup(LocalPeer& peer, const std::vector<std::string_view>& keys,
                                  std::vector<Lane> lanes = {Lane{}}) {
    const auto reply = peer.Call(FrameOp::kLookup, wire::EncodeLookup(lanes, View(keys)));
    const auto lookup = wire::Decode<wire::LookupReply>(AsBytes(reply.body));
    EXPECT_TRUE(lookup.ok()) << reply.body;
    return lookup.value_or(wire::LookupReply{});
  }

  TempDir directory_;
  MetricsRegistry metrics_;
  std::vector<std::unique_ptr<EventLoop>> loops_;
  std::unique_ptr<FakeFabric> fabric_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<LocalService> service_;
  std::unique_ptr<Listener> tcp_;

 private:
  // What the bulk port does with a connection's first frame.
  class FirstFrame final : public FrameHandler {
   public:
    explicit FirstFrame(LocalService& service) : service_(service) {}
    Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& /*parts*/) override {
      const std::shared_ptr<FrameConnection> connection = std::move(frames);
      return service_.TakeOver(*connection, frame);
    }
    Status OnPayload(const std::vector<std::uint64_t>& /*checksums*/) override {
      return Status::Ok();
    }
    void OnClosed(const Status& /*why*/) override { frames = nullptr; }
    std::shared_ptr<FrameConnection> frames;

   private:
    LocalService& service_;
  };

  static std::unique_ptr<LocalPeer> Greeted(const SocketAddress& address, const char* token,
                                            NamespaceKind kind) {
    auto peer = std::make_unique<LocalPeer>(address);
    const auto reply = peer->Hello(token, FakeFabric::kPool, kind);
    EXPECT_EQ(reply.header.status, StatusCode::kOk) << reply.body;
    return peer;
  }
};

}  // namespace kvfabric
