#pragma once

// EventLoop: one thread that waits on sockets (epoll, level-triggered), timers and posted tasks.
// A process has one per core; a socket belongs to one loop for life and is touched on no other
// thread.
//
// Owned by main or a test. Submit, RunSync and Stop may be called from any thread; everything
// else only on the loop's thread. Tasks and callbacks must be short and never block: they share
// the thread with every socket of the loop.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/clock.h"
#include "common/executor.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvfabric {

class EventLoop final : public Executor {
 public:
  struct Options {
    std::string name = "loop";
    // Tasks waiting at once; beyond it Submit refuses. Services bound what they have in flight
    // below it, so that a completion is refused only at shutdown.
    std::size_t max_queued = 65'536;
  };
  using TimerId = std::uint64_t;
  using WatchId = std::uint64_t;

  // Called when a watched descriptor is ready. The loop shares ownership until Unwatch.
  class FdHandler {
   public:
    virtual ~FdHandler() = default;
    // EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP as epoll reports them.
    virtual void OnReady(std::uint32_t events) = 0;
    // The loop ends: close now. Called once, on the loop; Unwatch happens by itself.
    virtual void OnLoopStop() = 0;
  };

  static Result<std::unique_ptr<EventLoop>> Create(Options options);
  ~EventLoop() override;  // Stop()

  [[nodiscard]] bool Submit(Task task) override EXCLUDES(mu_);
  // Runs `task` on the loop and waits for it; at once when already there. False when stopped.
  bool RunSync(Task task);
  // Refuses new tasks, runs what is queued, tells the handlers, joins. Idempotent; not from the
  // loop.
  void Stop() EXCLUDES(mu_);
  bool InLoop() const { return std::this_thread::get_id() == thread_id_.load(); }

  // On the loop only, from here.
  TimerId RunAfter(Clock::Duration delay, Task task);
  void CancelTimer(TimerId id);
  Result<WatchId> Watch(int fd, std::uint32_t events, std::shared_ptr<FdHandler> handler);
  void Rearm(WatchId id, std::uint32_t events);
  // No OnReady after this returns. Call it before closing the descriptor.
  void Unwatch(WatchId id);
  std::size_t watched() const { return watches_.size(); }

 private:
  struct WatchEntry {
    int fd = -1;
    std::uint32_t events = 0;
    std::shared_ptr<FdHandler> handler;
  };
  using TimerKey = std::pair<Clock::TimePoint, TimerId>;

  EventLoop(Options options, UniqueFd epoll, UniqueFd wake);
  void Run();
  bool RunTasks() EXCLUDES(mu_);
  void RunTimers();
  void StopHandlers();
  int WaitTimeoutMs() const;
  void Wake();

  const Options options_;
  const UniqueFd epoll_;
  const UniqueFd wake_;  // eventfd, id 0 in epoll
  std::atomic<std::thread::id> thread_id_;

  Mutex mu_;
  std::deque<Task> queue_ GUARDED_BY(mu_);
  bool wake_pending_ GUARDED_BY(mu_) = false;
  bool stopping_ GUARDED_BY(mu_) = false;

  // Loop thread.
  std::unordered_map<WatchId, WatchEntry> watches_;
  WatchId next_watch_ = 1;
  std::map<TimerKey, Task> timers_;
  std::unordered_map<TimerId, Clock::TimePoint> timer_times_;
  TimerId next_timer_ = 1;

  std::thread thread_;  // last: starts when all else is there
};

}  // namespace kvfabric
