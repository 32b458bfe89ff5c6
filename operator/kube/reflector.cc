#include "operator/kube/reflector.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "operator/kube/api_error.h"

namespace kvfabric::kube {

Reflector::Reflector(KubeApi& api, const Clock& clock, Options options, ReflectorSink& sink)
    : api_(api),
      clock_(clock),
      options_(std::move(options)),
      sink_(sink),
      backoff_(options_.backoff) {}

void Reflector::Step() {
  if (retry_at_.has_value() && clock_.Now() < *retry_at_) return;
  retry_at_.reset();
  for (bool more = true; more && !retry_at_.has_value();) {
    switch (phase_) {
      case Phase::kCollect:
        more = OpenCollection();
        break;
      case Phase::kList:
        more = PollList();
        break;
      case Phase::kResume:
        more = OpenWatch();
        break;
      case Phase::kInitial:
      case Phase::kWatch:
        more = PollWatch();
        break;
    }
  }
}

void Reflector::Fail(const Status& status, const char* action) {
  const Clock::TimePoint now = clock_.Now();
  const bool healthy = !last_failure_.has_value() || now - *last_failure_ >= options_.healthy;
  if (healthy) backoff_.Reset();
  // A watcher that fell behind once has done nothing wrong: it lists again at once.
  const bool at_once = healthy && IsGone(status);
  std::chrono::milliseconds wait = at_once ? std::chrono::milliseconds(0) : backoff_.Next();
  wait = std::max(wait, RetryAfterOf(status).value_or(wait));
  last_failure_ = now + wait;
  ++counters_.failures;
  if (wait.count() > 0) retry_at_ = last_failure_;
  LogWarn("informer waits", {{"kind", TraitsOf(options_.kind).name},
                             {"action", action},
                             {"reason", status.message()},
                             {"wait_ms", wait.count()}});
}

bool Reflector::OpenCollection() {
  list_.reset();
  watch_.reset();
  sink_.BeginCollect();
  if (initial_events_) {
    auto watch = api_.Watch(options_.kind, options_.scope, {0, true}, options_.on_ready);
    if (watch.ok()) {
      ++counters_.watches;
      watch_ = std::move(watch).value();
      opened_at_ = clock_.Now();
      watch_gave_ = false;
      phase_ = Phase::kInitial;
      return true;
    }
    if (!InitialEventsAreRefused(watch.status())) {
      Fail(watch.status(), "watch");
      return true;
    }
    initial_events_ = false;
  }
  const std::optional<std::uint64_t> not_older_than =
      from_store_ ? std::nullopt : std::optional<std::uint64_t>(version_);
  auto list = api_.StartList(options_.kind, options_.scope, not_older_than, options_.on_ready);
  if (!list.ok()) {
    if (IsGone(list.status()) || IsResourceVersionTooLarge(list.status())) from_store_ = true;
    Fail(list.status(), "list");
    return true;
  }
  list_ = std::move(list).value();
  phase_ = Phase::kList;
  return true;
}

bool Reflector::PollList() {
  const Result<ListBatch> batch = list_->Poll();
  if (!batch.ok()) {
    if (IsGone(batch.status()) || IsResourceVersionTooLarge(batch.status())) from_store_ = true;
    phase_ = Phase::kCollect;
    Fail(batch.status(), "list");
    return true;
  }
  for (const ObjectPtr& object : batch->items) sink_.Collect({EventType::kAdded, object});
  if (!batch->done) return !batch->items.empty();
  list_.reset();
  phase_ = Commit(batch->resource_version) ? Phase::kResume : Phase::kCollect;
  return true;
}

bool Reflector::Commit(std::uint64_t version) {
  // Initial events come from a consistent read, as a list without a version does.
  const bool from_store = initial_events_ || from_store_;
  if (version < version_) {
    const bool restored = from_store && older_before_;
    older_before_ = from_store;
    from_store_ = true;
    if (!restored) {
      Fail(Unavailable("the list is older (" + std::to_string(version) + ") than what is known (" +
                       std::to_string(version_) + ")"),
           "list");
      return false;
    }
    LogWarn("the API was restored to an older state: taking it",
            {{"kind", TraitsOf(options_.kind).name}, {"known", version_}, {"restored", version}});
  }
  older_before_ = false;
  from_store_ = false;
  ++counters_.lists;
  sink_.CommitCollect();
  version_ = version;
  synced_ = true;
  return true;
}

bool Reflector::OpenWatch() {
  auto watch = api_.Watch(options_.kind, options_.scope, {version_, false}, options_.on_ready);
  if (!watch.ok()) {
    if (IsGone(watch.status()) || IsResourceVersionTooLarge(watch.status())) {
      from_store_ = from_store_ || IsResourceVersionTooLarge(watch.status());
      phase_ = Phase::kCollect;
    }
    Fail(watch.status(), "watch");
    return true;
  }
  ++counters_.watches;
  watch_ = std::move(watch).value();
  opened_at_ = clock_.Now();
  watch_gave_ = false;
  phase_ = Phase::kWatch;
  return true;
}

bool Reflector::PollWatch() {
  const Result<WatchBatch> batch = watch_->Poll();
  return batch.ok() ? TakeBatch(*batch) : WatchEnded(batch.status());
}

bool Reflector::TakeBatch(const WatchBatch& batch) {
  watch_gave_ = watch_gave_ || !batch.events.empty();
  if (phase_ == Phase::kInitial) {
    for (const WatchEvent& event : batch.events) sink_.Collect(event);
    if (!batch.initial_done) return !batch.events.empty();
    phase_ = Commit(batch.resource_version) ? Phase::kWatch : Phase::kCollect;
    return true;
  }
  for (const WatchEvent& event : batch.events) sink_.Apply(event);
  // Only after the events are in the sink: who sees this version has seen them.
  version_ = std::max(version_, batch.resource_version);
  return !batch.events.empty();
}

bool Reflector::WatchEnded(const Status& why) {
  const bool collecting = phase_ == Phase::kInitial;
  watch_.reset();
  phase_ = collecting || IsGone(why) || IsResourceVersionTooLarge(why) ? Phase::kCollect
                                                                       : Phase::kResume;
  if (IsResourceVersionTooLarge(why)) from_store_ = true;
  if (collecting && InitialEventsAreRefused(why)) {
    initial_events_ = false;
    return true;
  }
  const bool short_lived = !watch_gave_ && clock_.Now() - opened_at_ < options_.shortest_watch;
  if (why.code() == StatusCode::kCancelled && !short_lived) return true;  // in good order
  Fail(why, "watch");
  return true;
}

bool Reflector::InitialEventsAreRefused(const Status& why) const {
  return why.code() == StatusCode::kUnimplemented || IsInvalid(why);
}

}  // namespace kvfabric::kube
