#pragma once

// Mutex, MutexLock and CondVar: std::mutex with the annotations that clang's -Wthread-safety
// understands, so that touching a guarded field unlocked does not compile.

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define KVF_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define KVF_THREAD_ANNOTATION(x)
#endif
#define CAPABILITY(x) KVF_THREAD_ANNOTATION(capability(x))
#define SCOPED_CAPABILITY KVF_THREAD_ANNOTATION(scoped_lockable)
#define GUARDED_BY(x) KVF_THREAD_ANNOTATION(guarded_by(x))
#define PT_GUARDED_BY(x) KVF_THREAD_ANNOTATION(pt_guarded_by(x))
#define REQUIRES(...) KVF_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) KVF_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) KVF_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RELEASE(...) KVF_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS KVF_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace kvfabric {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;  // a copy would guard nothing
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ACQUIRE() { mu_.lock(); }
  void Unlock() RELEASE() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mu) ACQUIRE(mu) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() RELEASE() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;  // would unlock twice
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Waits only with a deadline or until notified by an owner that outlives the wait.
class CondVar {
 public:
  void Wait(Mutex& mu) REQUIRES(mu) NO_THREAD_SAFETY_ANALYSIS {
    // Not wait(): its symbol is GLIBCXX_3.4.30, newer than what the engine library may need.
    static_cast<void>(WaitUntil(mu, std::chrono::steady_clock::now() + std::chrono::hours(1)));
  }
  // False when the deadline passed.
  bool WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point deadline)
      REQUIRES(mu) NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool notified = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace kvfabric
