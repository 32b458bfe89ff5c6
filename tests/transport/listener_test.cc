#include "transport/listener.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <latch>
#include <thread>

#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"
#include "tests/transport/stream_pair.h"
#include "transport/connector.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;

class ListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = EventLoop::Create({.name = "listener"});
    ASSERT_TRUE(loop.ok());
    loop_ = std::move(*loop);
    path_ = (directory_.path() / "agent.sock").string();
    address_ = *SocketAddress::Unix(path_);
  }
  Result<std::unique_ptr<Listener>> Listen(const SocketAddress& address) {
    return Listener::Listen(*loop_, {.address = address}, [this](UniqueFd, std::string peer) {
      last_peer_ = std::move(peer);
      ++accepted_;
    });
  }
  UniqueFd MustConnect(const SocketAddress& address) {
    auto fd = ConnectBlocking(address, Deadline::After(Clock::System(), milliseconds(5'000)));
    EXPECT_TRUE(fd.ok()) << fd.status().ToString();
    return fd.ok() ? std::move(*fd) : UniqueFd();
  }
  bool Accepted(int count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (accepted_ < count && std::chrono::steady_clock::now() < deadline) {
      loop_->RunSync([] {});
    }
    return accepted_ == count;
  }

  TempDir directory_;
  std::string path_;
  SocketAddress address_;
  std::unique_ptr<EventLoop> loop_;
  std::atomic<int> accepted_{0};
  std::string last_peer_;
};

TEST_F(ListenerTest, AcceptsOnTcpAndUnix) {
  const auto tcp = Listen(*SocketAddress::Tcp("127.0.0.1", 0));
  ASSERT_TRUE(tcp.ok()) << tcp.status().ToString();
  EXPECT_NE((*tcp)->address().port(), 0);
  const UniqueFd over_tcp = MustConnect((*tcp)->address());
  EXPECT_TRUE(Accepted(1));
  const auto local = Listen(address_);
  ASSERT_TRUE(local.ok()) << local.status().ToString();
  const UniqueFd over_unix = MustConnect(address_);
  EXPECT_TRUE(Accepted(2));
  loop_->RunSync([&] { EXPECT_EQ(last_peer_, "unix pid " + std::to_string(::getpid())); });
}

TEST_F(ListenerTest, RefusesAPortInUseAndNamesIt) {
  const auto first = Listen(*SocketAddress::Tcp("127.0.0.1", 0));
  ASSERT_TRUE(first.ok());
  const auto second = Listen((*first)->address());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(second.status().message().find((*first)->address().ToString()), std::string::npos);
  EXPECT_NE(second.status().message().find("stop what listens there"), std::string::npos);
}

TEST_F(ListenerTest, ReplacesASocketThatADeadProcessLeft) {
  {
    const UniqueFd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(dead.get(), address_.addr(), address_.length()), 0);
    ASSERT_EQ(::listen(dead.get(), 1), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  const auto listener = Listen(address_);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  const UniqueFd client = MustConnect(address_);
  EXPECT_TRUE(Accepted(1));
}

TEST_F(ListenerTest, NeverTakesALiveSocketNorAFile) {
  {
    const UniqueFd alien(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(alien.get(), address_.addr(), address_.length()), 0);
    ASSERT_EQ(::listen(alien.get(), 1), 0);
    EXPECT_EQ(Listen(address_).status().code(), StatusCode::kFailedPrecondition);
    const UniqueFd still_there = MustConnect(address_);
  }
  ::unlink(path_.c_str());
  std::ofstream(path_) << "precious";
  EXPECT_EQ(Listen(address_).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(ListenerTest, RemovesItsSocketWhenItGoes) {
  { ASSERT_TRUE(Listen(address_).ok()); }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(Listen(address_).ok());
}

// 32 at once, again and again: one listens, 31 are told why, and no socket is lost.
TEST_F(ListenerTest, LetsExactlyOneOfManyStartsListen) {
  constexpr int kStarts = 32;
  for (int round = 0; round < 5; ++round) {
    std::latch start(kStarts);
    std::vector<std::unique_ptr<Listener>> listeners(kStarts);
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kStarts; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        auto listener = Listen(address_);
        if (listener.ok()) {
          listeners[static_cast<std::size_t>(i)] = std::move(*listener);
        } else if (listener.status().code() == StatusCode::kFailedPrecondition) {
          ++refused;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(refused, kStarts - 1);
    const UniqueFd client = MustConnect(address_);
    EXPECT_TRUE(Accepted(round + 1));
  }
}

TEST_F(ListenerTest, ConnectsWithoutBlockingAndSaysWhenNobodyIsThere) {
  const auto listener = Listen(*SocketAddress::Tcp("127.0.0.1", 0));
  ASSERT_TRUE(listener.ok());
  const SocketAddress nobody = [] {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    const auto any = *SocketAddress::Tcp("127.0.0.1", 0);
    EXPECT_EQ(::bind(fd.get(), any.addr(), any.length()), 0);
    return *SocketAddress::OfSocket(fd.get());  // closed again: nobody listens
  }();
  const auto connect = [&](const SocketAddress& to) {
    std::promise<Status> outcome;
    std::shared_future<Status> status = outcome.get_future().share();
    loop_->RunSync([&] {
      Connect(*loop_, to, milliseconds(5'000), false,
              [&](Result<std::unique_ptr<Stream>> stream) { outcome.set_value(stream.status()); });
      // Never inside the call, so that a caller may hold what its callback needs.
      EXPECT_EQ(status.wait_for(milliseconds(0)), std::future_status::timeout);
    });
    return status.get();
  };
  EXPECT_TRUE(connect((*listener)->address()).ok());
  EXPECT_EQ(connect(nobody).code(), StatusCode::kUnavailable);
  EXPECT_EQ(connect(address_).code(), StatusCode::kUnavailable) << "no such socket";
}

// A full backlog takes no more: the third and later connects get no answer, as from a host that
// is gone.
class BlackHole {
 public:
  BlackHole() {
    fd_.reset(::socket(AF_INET, SOCK_STREAM, 0));
    const auto any = *SocketAddress::Tcp("127.0.0.1", 0);
    KVF_CHECK(::bind(fd_.get(), any.addr(), any.length()) == 0, "bind");
    KVF_CHECK(::listen(fd_.get(), 0) == 0, "listen");
    address_ = *SocketAddress::OfSocket(fd_.get());
    for (int i = 0; i < 3; ++i) {
      auto started = StartConnect(address_);
      if (started.ok()) fillers_.push_back(std::move(started->fd));
    }
  }
  const SocketAddress& address() const { return address_; }

 private:
  UniqueFd fd_;
  SocketAddress address_;
  std::vector<UniqueFd> fillers_;
};

TEST_F(ListenerTest, GivesUpOnABlackHoleAtTheDeadline) {
  const BlackHole hole;
  const auto began = std::chrono::steady_clock::now();
  const auto blocking =
      ConnectBlocking(hole.address(), Deadline::After(Clock::System(), milliseconds(100)));
  EXPECT_EQ(blocking.status().code(), StatusCode::kDeadlineExceeded);
  std::promise<Status> outcome;
  loop_->RunSync([&] {
    Connect(*loop_, hole.address(), milliseconds(100), false,
            [&](Result<std::unique_ptr<Stream>> stream) { outcome.set_value(stream.status()); });
  });
  EXPECT_EQ(outcome.get_future().get().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1'000) * TimeScale());
}

TEST_F(ListenerTest, TellsAPendingConnectThatTheLoopStops) {
  const BlackHole hole;
  std::promise<Status> outcome;
  loop_->RunSync([&] {
    Connect(*loop_, hole.address(), milliseconds(60'000), false,
            [&](Result<std::unique_ptr<Stream>> stream) { outcome.set_value(stream.status()); });
  });
  loop_->Stop();
  EXPECT_EQ(outcome.get_future().get().code(), StatusCode::kCancelled);
}

TEST(SocketAddress, ReadsWhatItWritesAndSaysWhatToWriteInstead) {
  for (const char* good : {"unix:/run/kvfabric/agent.sock", "tcp:127.0.0.1:7071", "tcp:[::1]:80"}) {
    const auto address = SocketAddress::Parse(good);
    ASSERT_TRUE(address.ok()) << good;
    EXPECT_EQ(address->ToString(), good);
  }
  EXPECT_EQ(SocketAddress::Parse("tcp:localhost:7071")->ToString(), "tcp:127.0.0.1:7071");
  for (const char* bad :
       {"", "agent.sock", "unix:", "unix:relative", "tcp:1.2.3.4", "tcp::7071", "tcp:1.2.3.4:70000",
        "tcp:1.2.3.4:x", "tcp:::1:80", "tcp:host.name:80", "http://x"}) {
    const auto address = SocketAddress::Parse(bad);
    EXPECT_EQ(address.status().code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(SocketAddress::Unix("/" + std::string(200, 'x')).ok());
}

}  // namespace
}  // namespace kvfabric
