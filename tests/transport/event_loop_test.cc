#include "transport/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "tests/transport/stream_pair.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<EventLoop> MakeLoop(std::size_t max_queued = 65'536) {
  auto loop = EventLoop::Create({.name = "test-loop", .max_queued = max_queued});
  KVF_CHECK(loop.ok(), "cannot make a loop");
  return std::move(loop).value();
}

TEST(EventLoop, RunsTasksOfManyThreadsEachInOrder) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 2'000;
  const auto loop = MakeLoop();
  std::vector<int> last(kThreads, -1);  // loop thread only
  std::atomic<int> out_of_order{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        ASSERT_TRUE(loop->Submit([&, t, i] {
          if (last[static_cast<std::size_t>(t)] != i - 1) ++out_of_order;
          last[static_cast<std::size_t>(t)] = i;
        }));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(loop->RunSync([] {}));
  EXPECT_EQ(out_of_order, 0);
  EXPECT_EQ(last, std::vector<int>(kThreads, kTasks - 1));
}

TEST(EventLoop, RefusesTasksAboveItsBound) {
  const auto loop = MakeLoop(4);
  std::promise<void> entered;
  std::promise<void> gate;
  ASSERT_TRUE(loop->Submit([&] {
    entered.set_value();
    gate.get_future().wait();
  }));
  entered.get_future().wait();
  int accepted = 0;
  while (loop->Submit([] {})) ++accepted;
  EXPECT_EQ(accepted, 4);
  gate.set_value();
  // What was accepted runs; then there is room again.
  while (!loop->RunSync([] {})) std::this_thread::yield();
}

TEST(EventLoop, RunsTimersInOrderOfTimeAndNotThoseCancelled) {
  const auto loop = MakeLoop();
  std::promise<std::vector<int>> fired;
  std::vector<int> order;
  loop->RunSync([&] {
    loop->RunAfter(milliseconds(30), [&] {
      order.push_back(3);
      fired.set_value(order);
    });
    loop->RunAfter(milliseconds(10), [&] { order.push_back(1); });
    const auto doomed = loop->RunAfter(milliseconds(15), [&] { order.push_back(99); });
    loop->RunAfter(milliseconds(20), [&] { order.push_back(2); });
    loop->CancelTimer(doomed);
  });
  EXPECT_EQ(fired.get_future().get(), (std::vector<int>{1, 2, 3}));
}

class CountingHandler final : public EventLoop::FdHandler {
 public:
  explicit CountingHandler(std::atomic<int>& stopped) : stopped_(stopped) {}
  void OnReady(std::uint32_t) override {}
  void OnLoopStop() override { ++stopped_; }

 private:
  std::atomic<int>& stopped_;
};

TEST(EventLoop, TellsHandlersWhenItStopsAndRunsWhatWasQueued) {
  std::atomic<int> stopped{0};
  std::atomic<int> ran{0};
  SocketPair pair = MakeSocketPair();
  std::weak_ptr<CountingHandler> weak;
  {
    const auto loop = MakeLoop();
    auto handler = std::make_shared<CountingHandler>(stopped);
    weak = handler;
    loop->RunSync([&] { ASSERT_TRUE(loop->Watch(pair.ours.get(), EPOLLIN, handler).ok()); });
    handler.reset();
    EXPECT_FALSE(weak.expired()) << "the loop shares ownership while it watches";
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(loop->Submit([&] { ++ran; }));
    loop->Stop();
    EXPECT_FALSE(loop->Submit([] {}));
    EXPECT_FALSE(loop->RunSync([] {}));
  }
  EXPECT_EQ(ran, 100);
  EXPECT_EQ(stopped, 1);
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace kvfabric
