#include "operator/kube/http_streams.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/log.h"
#include "operator/kube/api_error.h"
#include "operator/kube/api_path.h"
#include "operator/kube/api_responses.h"
#include "operator/kube/json.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kMaxContinueBytes = 64 << 10U;
constexpr std::string_view kInitialEnd = "k8s.io/initial-events-end";

std::string CollectionPath(Kind kind, const Scope& scope) {
  ApiPath path;
  path.kind = kind;
  path.ns = scope.ns;
  return FormatApiPath(path);
}

std::string NameOf(Kind kind) { return std::string(TraitsOf(kind).plural); }

// Of an object's or a list's metadata; nullopt when it is no number.
std::optional<std::uint64_t> VersionOf(const Json& object) {
  const Json* metadata = Find(object, "metadata");
  const std::string text = metadata == nullptr ? "" : StringAt(*metadata, "resourceVersion");
  std::uint64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return version;
}

// What cannot be read is the fault of the answer, not of who asked.
Result<ObjectPtr> ReadObject(Kind kind, std::string json) {
  KVF_ASSIGN_OR_RETURN(std::string typed, WithTypeMeta(kind, std::move(json)));
  Result<Object> object = ParseObject(kind, std::move(typed));
  if (!object.ok()) {
    return Unavailable("answer: an object of " + NameOf(kind) + ": " + object.status().message());
  }
  return ObjectPtr(std::make_shared<const Object>(std::move(object).value()));
}

WatchEnd ReasonOf(const Status& status, HttpFault fault, bool said) {
  if (IsGone(status)) return WatchEnd::kGone;
  if (status.code() == StatusCode::kCancelled) return WatchEnd::kEnded;
  if (fault == HttpFault::kTooLate) return WatchEnd::kSilent;
  if (fault == HttpFault::kNone && ApiDetailOf(status) != nullptr && !said) {
    return WatchEnd::kRefused;
  }
  return WatchEnd::kBroken;
}

}  // namespace

ListTask::ListTask(std::shared_ptr<ApiSession> session, Kind kind, Scope scope,
                   std::optional<std::uint64_t> not_older_than, std::function<void()> on_ready)
    : StreamTask(std::move(session), ApiVerb::kList, std::move(on_ready)),
      kind_(kind),
      scope_(std::move(scope)),
      not_older_than_(not_older_than),
      memory_(CollectionPath(kind, scope_) + "\n" + scope_.labels + "\n" + scope_.fields) {}

std::string ListTask::Target() {
  // A list that is not of now comes from the server's cache, which does not page.
  if (continue_.empty()) paged_ = !not_older_than_.has_value() && !session_->IsUnpaged(memory_);
  const bool newer = not_older_than_.value_or(0) > 0;
  return CollectionPath(kind_, scope_) +
         Query({{"labelSelector", scope_.labels},
                {"fieldSelector", scope_.fields},
                {"limit", paged_ ? std::to_string(session_->options().page_items) : ""},
                {"continue", continue_},
                {"resourceVersion",
                 not_older_than_.has_value() ? std::to_string(*not_older_than_) : ""},
                {"resourceVersionMatch", newer ? "NotOlderThan" : ""}});
}

void ListTask::Begin() {
  page_items_ = 0;
  framer_.emplace([this](std::string item) { return Add(std::move(item)); });
}

Status ListTask::Add(std::string item) {
  KVF_ASSIGN_OR_RETURN(ObjectPtr object, ReadObject(kind_, std::move(item)));
  ++page_items_;
  MutexLock lock(mu_);
  Hold(object->json.size());
  items_.push_back(std::move(object));
  return Status::Ok();
}

Status ListTask::Take(std::string_view bytes) {
  const std::size_t before = page_items_;
  const Status status = framer_->Feed(bytes);
  if (page_items_ != before) Notify();
  return status;
}

// Reads what stands around the items of a whole page.
Status ListTask::EndPage() {
  if (!framer_.has_value()) return Unavailable("answer: an empty list answer");
  KVF_RETURN_IF_ERROR(framer_->Finish());
  const Result<Json> envelope = ParseJson(framer_->envelope());
  const std::string wanted = std::string(TraitsOf(kind_).name) + "List";
  if (!envelope.ok() || !framer_->saw_items() || StringAt(*envelope, "kind") != wanted) {
    return Unavailable("api: list of " + NameOf(kind_) + ": not a list");
  }
  const std::optional<std::uint64_t> version = VersionOf(*envelope);
  if (!version.has_value()) {
    return Unavailable("api: list of " + NameOf(kind_) + ": without a resourceVersion");
  }
  std::string next = StringAt(*Find(*envelope, "metadata"), "continue");
  // A server that gives one token again would be asked for ever.
  if (next.size() > kMaxContinueBytes || (!next.empty() && (!paged_ || next == continue_))) {
    return Unavailable("api: list of " + NameOf(kind_) + ": a continue token without sense");
  }
  continue_ = std::move(next);
  MutexLock lock(mu_);
  // All pages are of one version; should they differ, the first says where to watch from.
  if (version_ == 0) version_ = *version;
  done_ = continue_.empty();
  return Status::Ok();
}

void ListTask::Ended(const Status& status, HttpFault /*fault*/) {
  if (IsGone(status) && !continue_.empty()) {
    session_->SetUnpaged(memory_, true);
    return Finish(
        status.WithContext("list of " + NameOf(kind_) + ": its pages expired, list again"));
  }
  const Status page = status.ok() ? EndPage() : status;
  if (!page.ok()) return Finish(page);
  if (!continue_.empty() && OutOfTime()) {
    return Finish(DeadlineExceeded("api: list of " + NameOf(kind_) + ": more pages than time"));
  }
  if (!continue_.empty()) {
    page_items_ = 0;
    return Reopen(std::chrono::milliseconds(0));
  }
  if (!paged_ && !not_older_than_.has_value()) session_->SetUnpaged(memory_, false);
  Notify();
}

Result<ListBatch> ListTask::Poll() {
  ListBatch batch;
  {
    MutexLock lock(mu_);
    if (given_) return FailedPrecondition("list: it has ended");
    if (items_.empty() && finished_.has_value()) return *finished_;
    batch.items = std::exchange(items_, {});
    Drained();
    if (done_) {
      batch.done = true;
      batch.resource_version = version_;
      given_ = true;
    }
    if (!finished_.has_value()) return batch;
  }
  Notify();  // the end is still to be polled, and has rung already
  return batch;
}

WatchTask::WatchTask(std::shared_ptr<ApiSession> session, Kind kind, Scope scope,
                     const WatchFrom& from, std::function<void()> on_ready)
    : StreamTask(std::move(session), ApiVerb::kWatch, std::move(on_ready)),
      kind_(kind),
      scope_(std::move(scope)),
      from_(from),
      // From version 0 a server first gives what there is, in any order.
      unordered_(from.initial_events || from.resource_version == 0),
      version_(from.initial_events ? 0 : from.resource_version),
      given_version_(version_) {}

std::string WatchTask::Target() {
  const bool initial = from_.initial_events;
  return CollectionPath(kind_, scope_) +
         Query({{"watch", "true"},
                {"allowWatchBookmarks", "true"},
                {"timeoutSeconds", std::to_string(session_->RandomWatchTimeout().count())},
                {"labelSelector", scope_.labels},
                {"fieldSelector", scope_.fields},
                {"resourceVersion", initial ? "" : std::to_string(from_.resource_version)},
                {"sendInitialEvents", initial ? "true" : ""},
                {"resourceVersionMatch", initial ? "NotOlderThan" : ""}});
}

void WatchTask::Begin() {
  framer_.emplace([this](std::string event) { return Add(std::move(event)); });
}

Status WatchTask::Take(std::string_view bytes) {
  const Status status = framer_->Feed(bytes);
  if (std::exchange(news_, false)) Notify();
  return status;
}

Status WatchTask::Add(std::string event) {
  std::string_view type;
  std::string_view object;
  KVF_RETURN_IF_ERROR(ForEachMember(event, [&](std::string_view key, std::string_view value) {
    if (key == "type") type = value;
    if (key == "object") object = value;
  }));
  if (object.substr(0, 1) != "{") return Unavailable("answer: an event without an object");
  if (type == "\"ADDED\"") return AddObject(EventType::kAdded, std::string(object));
  if (type == "\"MODIFIED\"") return AddObject(EventType::kModified, std::string(object));
  if (type == "\"DELETED\"") return AddObject(EventType::kDeleted, std::string(object));
  if (type == "\"BOOKMARK\"") return AddBookmark(object);
  if (type == "\"ERROR\"") return ReadError(object);
  LogWarn("watch: an event of an unknown type is skipped",
          {{"kind", TraitsOf(kind_).name}, {"type", type.substr(0, 64)}});
  session_->metrics().UnknownEvent();
  return Status::Ok();
}

Status WatchTask::AddObject(EventType type, std::string object) {
  KVF_ASSIGN_OR_RETURN(ObjectPtr read, ReadObject(kind_, std::move(object)));
  if (type != EventType::kAdded && !from_.initial_events) unordered_ = false;
  news_ = true;
  MutexLock lock(mu_);
  if (!unordered_) version_ = std::max(version_, read->meta.resource_version);
  Hold(read->json.size());
  events_.push_back({type, std::move(read)});
  return Status::Ok();
}

Status WatchTask::AddBookmark(std::string_view object) {
  const Result<Json> root = ParseJson(object);
  const std::optional<std::uint64_t> version = root.ok() ? VersionOf(*root) : std::nullopt;
  if (!version.has_value()) return Unavailable("answer: a bookmark without a resourceVersion");
  const Json* annotations = Find(*Find(*root, "metadata"), "annotations");
  const bool ends_initial = annotations != nullptr && StringAt(*annotations, kInitialEnd) == "true";
  // Before all initial events are there, no version covers what was given.
  if (from_.initial_events && unordered_ && !ends_initial) return Status::Ok();
  unordered_ = false;
  news_ = true;
  MutexLock lock(mu_);
  version_ = std::max(version_, *version);
  initial_done_ = initial_done_ || (ends_initial && from_.initial_events);
  return Status::Ok();
}

Status WatchTask::ReadError(std::string_view object) {
  const Result<Json> root = ParseJson(object);
  const Json* code = root.ok() ? Find(*root, "code") : nullptr;
  const bool known = code != nullptr && code->is_number_integer();
  const auto number = known ? code->get<std::int64_t>() : 500;
  const bool sane = number >= 300 && number < 600;
  said_ = StatusOfAnswer(sane ? static_cast<int>(number) : 500, object);
  return *said_;
}

void WatchTask::Ended(const Status& status, HttpFault fault) {
  Status end = said_.value_or(status);
  if (end.ok() && framer_.has_value()) end = framer_->Finish();
  if (end.ok()) end = Cancelled("watch: the API ended it in good order");
  session_->metrics().Restarted(ReasonOf(end, fault, said_.has_value()));
  Finish(std::move(end));
}

Result<WatchBatch> WatchTask::Poll() {
  WatchBatch batch;
  {
    MutexLock lock(mu_);
    const bool news = !events_.empty() || initial_done_ || version_ != given_version_;
    if (!news && finished_.has_value()) return *finished_;
    batch.events = std::exchange(events_, {});
    batch.resource_version = version_;
    given_version_ = version_;
    batch.initial_done = std::exchange(initial_done_, false);
    Drained();
    if (!finished_.has_value()) return batch;
  }
  Notify();  // the end is still to be polled, and has rung already
  return batch;
}

}  // namespace kvfabric::kube
