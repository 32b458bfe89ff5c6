#include "operator/kube/work_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvfabric::kube {

WorkQueue::WorkQueue(const Clock& clock, Options options)
    : clock_(clock), options_(std::move(options)) {}

bool WorkQueue::AddLocked(const std::string& key, int priority) {
  const auto it = dirty_.find(key);
  if (it != dirty_.end()) {
    it->second.priority = std::max(it->second.priority, priority);
    return true;
  }
  if (dirty_.size() + delayed_.size() >= options_.max_keys) return false;
  dirty_.emplace(key, Entry{priority, next_order_++});
  return true;
}

bool WorkQueue::Add(const std::string& key, int priority) {
  {
    MutexLock lock(mu_);
    if (!AddLocked(key, priority)) return false;
  }
  if (options_.on_ready) options_.on_ready();
  return true;
}

bool WorkQueue::AddAfter(const std::string& key, Clock::Duration delay) {
  if (delay <= Clock::Duration::zero()) return Add(key);
  {
    MutexLock lock(mu_);
    const Clock::TimePoint when = clock_.Now() + delay;
    const auto it = delayed_.find(key);
    if (it != delayed_.end()) {
      it->second = std::min(it->second, when);
    } else {
      if (dirty_.size() + delayed_.size() >= options_.max_keys) return false;
      delayed_.emplace(key, when);
    }
  }
  if (options_.on_ready) options_.on_ready();  // the loop may have to wake earlier than it planned
  return true;
}

std::chrono::milliseconds WorkQueue::Retry(const std::string& key) {
  std::chrono::milliseconds wait = options_.first_retry;
  {
    MutexLock lock(mu_);
    unsigned& failures = failures_[key];
    wait = std::min(options_.longest_retry, options_.first_retry * (std::int64_t{1} << failures));
    if (failures < 30) ++failures;
  }
  AddAfter(key, wait);
  return wait;
}

void WorkQueue::Forget(const std::string& key) {
  MutexLock lock(mu_);
  failures_.erase(key);
}

void WorkQueue::PromoteDelayed(Clock::TimePoint now) {
  std::vector<std::pair<Clock::TimePoint, std::string>> due;
  for (const auto& [key, when] : delayed_) {
    if (when <= now) due.emplace_back(when, key);
  }
  std::sort(due.begin(), due.end());
  for (const auto& [when, key] : due) {
    delayed_.erase(key);
    AddLocked(key, 0);
  }
}

std::optional<std::string> WorkQueue::TryGet() {
  MutexLock lock(mu_);
  PromoteDelayed(clock_.Now());
  auto best = dirty_.end();
  for (auto it = dirty_.begin(); it != dirty_.end(); ++it) {
    if (processing_.count(it->first) != 0) continue;
    if (best == dirty_.end() || it->second.priority > best->second.priority ||
        (it->second.priority == best->second.priority && it->second.order < best->second.order)) {
      best = it;
    }
  }
  if (best == dirty_.end()) return std::nullopt;
  std::string key = best->first;
  dirty_.erase(best);
  processing_.insert(key);
  return key;
}

void WorkQueue::Done(const std::string& key) {
  bool again = false;
  {
    MutexLock lock(mu_);
    processing_.erase(key);
    again = dirty_.count(key) != 0;
  }
  if (again && options_.on_ready) options_.on_ready();
}

std::optional<Clock::TimePoint> WorkQueue::NextDue() const {
  MutexLock lock(mu_);
  for (const auto& [key, entry] : dirty_) {
    if (processing_.count(key) == 0) return clock_.Now();
  }
  std::optional<Clock::TimePoint> next;
  for (const auto& [key, when] : delayed_) {
    if (!next.has_value() || when < *next) next = when;
  }
  return next;
}

std::size_t WorkQueue::waiting() const {
  MutexLock lock(mu_);
  std::size_t count = 0;
  for (const auto& [key, entry] : dirty_) count += processing_.count(key) == 0 ? 1U : 0U;
  return count;
}

unsigned WorkQueue::failures(const std::string& key) const {
  MutexLock lock(mu_);
  const auto it = failures_.find(key);
  return it == failures_.end() ? 0 : it->second;
}

}  // namespace kvfabric::kube
