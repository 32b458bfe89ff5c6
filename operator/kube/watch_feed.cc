#include "operator/kube/watch_feed.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "operator/kube/api_error.h"
#include "operator/kube/api_responses.h"

namespace kvfabric::kube {
namespace {

std::string_view NameOf(EventType type) {
  switch (type) {
    case EventType::kAdded:
      return "ADDED";
    case EventType::kModified:
      return "MODIFIED";
    case EventType::kDeleted:
      return "DELETED";
  }
  return "";
}

void AppendLine(std::string_view type, std::string_view object, std::string* out) {
  out->append(R"({"type":")").append(type).append(R"(","object":)").append(object).append("}\n");
}

}  // namespace

WatchFeed::WatchFeed(WatchParameters parameters, Options options)
    : parameters_(std::move(parameters)),
      options_(std::move(options)),
      ends_at_(options_.clock->Now() + parameters_.timeout.value_or(options_.default_timeout)),
      bookmark_at_(options_.clock->Now() + options_.bookmark_every) {}

Result<std::unique_ptr<WatchFeed>> WatchFeed::Open(KubeApi& api, WatchParameters parameters,
                                                   Options options,
                                                   std::function<void()> on_ready) {
  std::unique_ptr<WatchFeed> feed(new WatchFeed(std::move(parameters), std::move(options)));
  const WatchParameters& wanted = feed->parameters_;
  KVF_ASSIGN_OR_RETURN(feed->stream_,
                       api.Watch(wanted.kind, wanted.scope, wanted.from, std::move(on_ready)));
  return feed;
}

Clock::TimePoint WatchFeed::next_due() const {
  if (!pending_.empty() || initial_end_due_) return options_.clock->Now();
  return parameters_.bookmarks ? std::min(ends_at_, bookmark_at_) : ends_at_;
}

void WatchFeed::AppendEvent(const WatchEvent& event, std::string* out) const {
  const ObjectPtr& object = event.object;
  if (parameters_.form == AnswerForm::kTable) {
    AppendLine(NameOf(event.type),
               options_.table(parameters_.kind, {object->meta.resource_version, {object}}), out);
  } else {
    AppendLine(NameOf(event.type), object->json, out);
  }
}

void WatchFeed::AppendBookmark(bool initial_end, std::string* out) {
  const Kind kind = parameters_.kind;
  std::string object = R"({"kind":")";
  object.append(TraitsOf(kind).name).append(R"(","apiVersion":")").append(ApiVersionOf(kind));
  object += R"(","metadata":{"resourceVersion":")" + std::to_string(version_) + R"(",)";
  if (initial_end) object += R"("annotations":{"k8s.io/initial-events-end":"true"},)";
  object += R"("creationTimestamp":null}})";
  AppendLine("BOOKMARK", object, out);
  told_ = version_;
}

bool WatchFeed::Refill(std::string* out) {
  Result<WatchBatch> batch = stream_->Poll();
  if (!batch.ok()) {
    if (batch.status().code() != StatusCode::kCancelled) {
      AppendLine("ERROR", StatusBody(batch.status()), out);
    }
    return false;
  }
  pending_.insert(pending_.end(), std::make_move_iterator(batch->events.begin()),
                  std::make_move_iterator(batch->events.end()));
  version_ = batch->resource_version;
  initial_end_due_ = batch->initial_done && parameters_.initial_end;
  return true;
}

bool WatchFeed::Next(std::string* out) {
  if (pending_.empty() && !Refill(out)) return false;
  while (!pending_.empty() && out->size() < kPiece) {
    AppendEvent(pending_.front(), out);
    pending_.pop_front();
  }
  if (!pending_.empty()) return true;
  const Clock::TimePoint now = options_.clock->Now();
  if (std::exchange(initial_end_due_, false)) AppendBookmark(true, out);
  const bool over = now >= ends_at_;
  if (parameters_.bookmarks && (over || now >= bookmark_at_)) {
    if (version_ > told_) AppendBookmark(false, out);
    bookmark_at_ = now + options_.bookmark_every;
  }
  return !over;
}

}  // namespace kvfabric::kube
