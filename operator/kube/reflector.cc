#include "operator/kube/reflector.h"

#include <iterator>
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

void Reflector::Fail(const Status& status, const char* action) {
  const std::chrono::milliseconds wait = backoff_.Next();
  retry_at_ = clock_.Now() + wait;
  LogWarn("informer waits", {{"kind", TraitsOf(options_.kind).name},
                             {"action", action},
                             {"reason", status.message()},
                             {"wait_ms", wait.count()}});
}

void Reflector::Step() {
  if (retry_at_.has_value() && clock_.Now() < *retry_at_) return;
  retry_at_.reset();
  if (must_list_) List();
  if (must_list_ || retry_at_.has_value()) return;
  if (stream_ == nullptr) {
    Result<std::unique_ptr<WatchStream>> stream =
        api_.Watch(options_.kind, options_.scope, {version_, false}, options_.on_ready);
    if (!stream.ok()) {
      must_list_ = IsGone(stream.status());
      Fail(stream.status(), "watch");
      return;
    }
    stream_ = std::move(stream).value();
  }
  Poll();
}

void Reflector::List() {
  stream_.reset();
  if (list_ == nullptr) {
    listed_ = {};
    Result<std::unique_ptr<ListStream>> list =
        api_.StartList(options_.kind, options_.scope, version_, options_.on_ready);
    if (!list.ok()) return Fail(list.status(), "list");
    list_ = std::move(list).value();
  }
  for (;;) {
    Result<ListBatch> batch = list_->Poll();
    if (!batch.ok()) {
      list_.reset();
      return Fail(batch.status(), "list");
    }
    if (!batch->done && batch->items.empty()) return;  // on_ready tells
    std::move(batch->items.begin(), batch->items.end(), std::back_inserter(listed_.items));
    if (!batch->done) continue;
    listed_.resource_version = batch->resource_version;
    break;
  }
  list_.reset();
  Replace();
}

void Reflector::Replace() {
  const ObjectList list = std::exchange(listed_, {});
  if (list.resource_version < version_) {
    return Fail(Unavailable("the list is older (" + std::to_string(list.resource_version) +
                            ") than what is known (" + std::to_string(version_) + ")"),
                "list");
  }
  ++lists_;
  sink_.Replace(list);
  version_ = list.resource_version;
  synced_ = true;
  must_list_ = false;
  backoff_.Reset();
}

void Reflector::Poll() {
  for (;;) {
    const Result<WatchBatch> batch = stream_->Poll();
    if (!batch.ok()) {
      stream_.reset();
      must_list_ = IsGone(batch.status());
      // Falling behind is no fault of the API: list at once, unless it keeps happening.
      Fail(batch.status(), "poll");
      return;
    }
    for (const WatchEvent& event : batch->events) sink_.Apply(event);
    // Only after the events are in the sink: who sees this version has seen them.
    version_ = batch->resource_version;
    if (batch->events.empty()) return;
    backoff_.Reset();
  }
}

}  // namespace kvfabric::kube
