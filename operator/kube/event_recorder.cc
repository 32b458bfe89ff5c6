#include "operator/kube/event_recorder.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/checksum.h"
#include "common/log.h"
#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "operator/kube/timestamp.h"

namespace kvfabric::kube {
namespace {

constexpr const char* kController = "kvfabric.io/operator";
constexpr std::size_t kMaxSubjectBytes = 200;  // of its name within ours
constexpr std::size_t kMaxInstanceBytes = 128;

// Events of objects without a namespace go to `default`.
ObjectName NameOf(const EventSubject& subject, const std::string& reason) {
  const std::string key =
      std::string(TraitsOf(subject.kind).name) + '\n' + subject.uid + '\n' + reason;
  std::array<char, 17> hash{};
  std::snprintf(hash.data(), hash.size(), "%016llx",
                static_cast<unsigned long long>(Hash64(AsBytes(key))));
  std::string name = subject.name.name.substr(0, kMaxSubjectBytes);
  while (!name.empty() && (name.back() == '-' || name.back() == '.')) name.pop_back();
  return {subject.name.ns.empty() ? "default" : subject.name.ns, name + "." + hash.data()};
}

// At most `limit` bytes, cut between characters.
std::string Cut(const std::string& text, std::size_t limit) {
  if (text.size() <= limit) return text;
  std::size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end);
}

}  // namespace

EventRecorder::EventRecorder(KubeClient& api, const Clock& clock, Options options)
    : api_(api), clock_(clock), options_(std::move(options)) {}

void EventRecorder::Record(const EventSubject& subject, const EventText& text) {
  const ObjectName name = NameOf(subject, text.reason);
  const Clock::TimePoint now = clock_.Now();
  const auto it = known_.find(name);
  if (it != known_.end() && now - it->second.written < options_.refresh) {
    ++it->second.pending;
    return;
  }
  const std::uint64_t repetitions = it == known_.end() ? 1 : it->second.pending + 1;
  const Status written = Write(subject, text, name, repetitions);
  if (!written.ok()) {
    ++failed_;
    LogWarn("event not written", {{"event", name.ToString()}, {"reason", written.message()}});
    return;
  }
  ++written_;
  if (it == known_.end() && known_.size() >= options_.max_known) {
    known_.erase(std::min_element(known_.begin(), known_.end(), [](const auto& a, const auto& b) {
      return a.second.written < b.second.written;
    }));
  }
  known_[name] = {now, 0};
}

Status EventRecorder::Write(const EventSubject& subject, const EventText& text,
                            const ObjectName& name, std::uint64_t repetitions) {
  const Json event = {{"apiVersion", ApiVersionOf(Kind::kEvent)},
                      {"kind", "Event"},
                      {"metadata", {{"namespace", name.ns}, {"name", name.name}}},
                      {"eventTime", FormatMicroTime(clock_.UnixMicros())},
                      {"reportingController", kController},
                      {"reportingInstance", Cut(options_.instance, kMaxInstanceBytes)},
                      {"action", text.action},
                      {"reason", text.reason},
                      {"regarding",
                       {{"apiVersion", ApiVersionOf(subject.kind)},
                        {"kind", TraitsOf(subject.kind).name},
                        {"namespace", subject.name.ns},
                        {"name", subject.name.name},
                        {"uid", subject.uid}}},
                      {"note", Cut(text.note, kMaxEventNoteBytes)},
                      {"type", text.warning ? "Warning" : "Normal"}};
  // The API drops Events after an hour: what was known may have to be made again.
  const Result<ObjectPtr> created = api_.Create(Kind::kEvent, DumpJson(event));
  if (!IsAlreadyExists(created.status())) return created.status();
  KVF_ASSIGN_OR_RETURN(const ObjectPtr stored, api_.Get(Kind::kEvent, name));
  return Repeat(stored, repetitions);
}

Status EventRecorder::Repeat(const ObjectPtr& stored, std::uint64_t repetitions) {
  KVF_ASSIGN_OR_RETURN(Json event, ParseJson(stored->json));
  const Json* series = Find(event, "series");
  const Json* before = series == nullptr ? nullptr : Find(*series, "count");
  const std::uint64_t count =
      before != nullptr && before->is_number_unsigned() ? before->get<std::uint64_t>() : 1;
  event["series"] = {{"count", count + repetitions},
                     {"lastObservedTime", FormatMicroTime(clock_.UnixMicros())}};
  return api_.Update(Kind::kEvent, DumpJson(event)).status();
}

}  // namespace kvfabric::kube
