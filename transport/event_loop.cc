#include "transport/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace kvfabric {

namespace {
constexpr std::uint64_t kWakeId = 0;
constexpr int kMaxEvents = 128;
// Tasks run between two looks at the sockets, so that a flood of tasks starves no socket.
constexpr std::size_t kTasksPerTurn = 1'024;
}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::Create(Options options) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoStatus(errno, "event loop: epoll_create1");
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return ErrnoStatus(errno, "event loop: eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoStatus(errno, "event loop: watch eventfd");
  }
  return std::unique_ptr<EventLoop>(
      new EventLoop(std::move(options), std::move(epoll), std::move(wake)));
}

EventLoop::EventLoop(Options options, UniqueFd epoll, UniqueFd wake)
    : options_(std::move(options)),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), options_.name.substr(0, 15).c_str());
}

EventLoop::~EventLoop() { Stop(); }

bool EventLoop::Submit(Task task) {
  {
    MutexLock lock(mu_);
    if (stopping_ || queue_.size() >= options_.max_queued) return false;
    queue_.push_back(std::move(task));
    if (std::exchange(wake_pending_, true)) return true;
  }
  Wake();
  return true;
}

bool EventLoop::RunSync(Task task) {
  if (InLoop()) {
    task();
    return true;
  }
  struct Gate {
    Mutex mu;
    CondVar ran_cv;
    bool ran GUARDED_BY(mu) = false;
  };
  Gate gate;
  const bool accepted = Submit([&] {
    task();
    MutexLock lock(gate.mu);
    gate.ran = true;
    gate.ran_cv.NotifyOne();  // under the lock: the waiter's stack goes away after it
  });
  if (!accepted) return false;
  MutexLock lock(gate.mu);
  while (!gate.ran) gate.ran_cv.Wait(gate.mu);
  return true;
}

void EventLoop::Stop() {
  KVF_CHECK(!InLoop(), "an event loop cannot join itself");
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void EventLoop::Wake() {
  const std::uint64_t one = 1;
  // EAGAIN means that the counter is full, so the loop wakes anyway.
  static_cast<void>(!::write(wake_.get(), &one, sizeof(one)));
}

EventLoop::TimerId EventLoop::RunAfter(Clock::Duration delay, Task task) {
  KVF_DCHECK(InLoop(), "timers belong to the loop's thread");
  const TimerId id = next_timer_++;
  const auto when = Clock::System().Now() + delay;
  timers_.emplace(TimerKey{when, id}, std::move(task));
  timer_times_.emplace(id, when);
  return id;
}

void EventLoop::CancelTimer(TimerId id) {
  const auto found = timer_times_.find(id);
  if (found == timer_times_.end()) return;
  timers_.erase(TimerKey{found->second, id});
  timer_times_.erase(found);
}

Result<EventLoop::WatchId> EventLoop::Watch(int fd, std::uint32_t events,
                                            std::shared_ptr<FdHandler> handler) {
  KVF_DCHECK(InLoop(), "sockets belong to the loop's thread");
  const WatchId id = next_watch_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "event loop: watch a descriptor");
  }
  watches_.emplace(id, WatchEntry{fd, events, std::move(handler)});
  return id;
}

void EventLoop::Rearm(WatchId id, std::uint32_t events) {
  const auto found = watches_.find(id);
  if (found == watches_.end() || found->second.events == events) return;
  found->second.events = events;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  KVF_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, found->second.fd, &event) == 0,
            "a watched descriptor was closed before Unwatch");
}

void EventLoop::Unwatch(WatchId id) {
  const auto found = watches_.find(id);
  if (found == watches_.end()) return;
  static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.fd, nullptr));
  watches_.erase(found);
}

int EventLoop::WaitTimeoutMs() const {
  if (timers_.empty()) return -1;
  const auto left = timers_.begin()->first.first - Clock::System().Now();
  if (left <= Clock::Duration::zero()) return 0;
  // Rounded up: waking a little early would spin until the timer is due.
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::min<std::int64_t>(ms, 60'000));
}

void EventLoop::Run() {
  thread_id_.store(std::this_thread::get_id());
  std::array<epoll_event, kMaxEvents> events{};
  bool more_tasks = false;
  for (;;) {
    const int n =
        ::epoll_wait(epoll_.get(), events.data(), kMaxEvents, more_tasks ? 0 : WaitTimeoutMs());
    KVF_CHECK(n >= 0 || errno == EINTR, "epoll_wait failed on our own descriptor");
    for (int i = 0; i < n; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.u64 == kWakeId) {
        std::uint64_t count = 0;
        static_cast<void>(!::read(wake_.get(), &count, sizeof(count)));
        continue;
      }
      // Unwatched by an earlier event of this turn: gone from the map. A copy: epoll_event is
      // packed, and a reference into it would be misaligned.
      const WatchId id = event.data.u64;
      const auto found = watches_.find(id);
      if (found == watches_.end()) continue;
      const std::shared_ptr<FdHandler> handler = found->second.handler;
      handler->OnReady(event.events);
    }
    RunTimers();
    more_tasks = RunTasks();
    if (!more_tasks) {
      MutexLock lock(mu_);
      if (stopping_ && queue_.empty()) break;
    }
  }
  StopHandlers();
}

bool EventLoop::RunTasks() {
  for (std::size_t ran = 0; ran < kTasksPerTurn; ++ran) {
    Task task;
    {
      MutexLock lock(mu_);
      if (queue_.empty()) {
        wake_pending_ = false;
        return false;
      }
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
  return true;
}

void EventLoop::RunTimers() {
  const auto now = Clock::System().Now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    const auto first = timers_.begin();
    const Task task = std::move(first->second);
    timer_times_.erase(first->first.second);
    timers_.erase(first);
    task();
  }
}

void EventLoop::StopHandlers() {
  while (!watches_.empty()) {
    const WatchId id = watches_.begin()->first;
    const std::shared_ptr<FdHandler> handler = watches_.begin()->second.handler;
    handler->OnLoopStop();
    Unwatch(id);
  }
  timers_.clear();
  timer_times_.clear();
}

}  // namespace kvfabric
