#include "operator/kube/elector.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/log.h"
#include "operator/kube/api_error.h"
#include "operator/kube/json.h"
#include "operator/kube/timestamp.h"

namespace kvfabric::kube {

Elector::Elector(KubeClient& api, const Clock& clock, Options options)
    : api_(api), clock_(clock), options_(std::move(options)), random_(options_.seed) {}

std::chrono::milliseconds Elector::Step() {
  const Clock::TimePoint sent = clock_.Now();
  bool lost = false;
  {
    MutexLock lock(mu_);
    lost = leading_ && sent >= lead_until_;
  }
  if (lost) {
    LogError("leadership lost", {{"lease", options_.lease.ToString()}});
    observed_ = nullptr;
    SetLeading(false, sent, 0);
  }
  TryOnce(sent);
  if (leading()) return options_.retry_period;
  const double jitter = std::uniform_real_distribution<double>(0.0, 1.2)(random_);
  return options_.retry_period + std::chrono::milliseconds(static_cast<std::int64_t>(
                                     static_cast<double>(options_.retry_period.count()) * jitter));
}

void Elector::TryOnce(Clock::TimePoint sent) {
  // What was read after a write that failed may be another's.
  const bool renewing = leading() && observed_ != nullptr && record_.holder == options_.identity;
  if (!renewing) {
    const Result<ObjectPtr> found = api_.Get(Kind::kLease, options_.lease);
    if (found.ok()) {
      Observe(*found);
      if (HeldByOther(sent)) {
        if (leading()) LogError("lease taken by another", {{"holder", record_.holder}});
        SetLeading(false, sent, 0);
        return;
      }
    } else if (!IsNotFound(found.status())) {
      LogWarn("lease unreadable", {{"reason", found.status().message()}});
      return;
    } else {
      observed_ = nullptr;
    }
  }
  const bool create = observed_ == nullptr;
  // Not when another had it in between and gave it back: that was a term of its own.
  const bool was_leading = leading() && (create || record_.holder == options_.identity);
  Record next = create ? Record{} : record_;
  next.holder = options_.identity;
  next.duration = options_.lease_duration;
  std::uint64_t used = 0;   // highest term that may not come again
  std::uint64_t wrong = 0;  // a term up to this one is of no use
  {
    MutexLock lock(mu_);
    wrong = raised_;
    used = std::max(raised_, term_);
  }
  // A leader whose Lease was deleted makes it anew: its terms go on.
  if (!was_leading || create || next.transitions <= wrong) {
    next.transitions = std::max(next.transitions, used) + 1;
    next.acquire_time = FormatMicroTime(clock_.UnixMicros());
  }
  const Status written = Write(next, create);
  if (!written.ok()) {
    observed_ = nullptr;  // read again before the next try
    LogWarn("lease not written", {{"reason", written.message()}});
    return;
  }
  first_ = false;
  SetLeading(true, sent, next.transitions);
}

bool Elector::HeldByOther(Clock::TimePoint now) const {
  if (record_.holder.empty()) return false;
  // Our own name in it without leadership: a renewal whose answer was lost, or a term that ended.
  if (record_.holder == options_.identity) return false;
  if (first_ && options_.previous_holder_is_gone) return false;
  return now < observed_at_ + record_.duration;
}

void Elector::Observe(const ObjectPtr& object) {
  if (observed_ == nullptr || observed_->meta.resource_version != object->meta.resource_version ||
      observed_->meta.uid != object->meta.uid) {
    observed_at_ = clock_.Now();
  }
  observed_ = object;
  record_ = Record{};
  const Result<Json> root = ParseJson(object->json);
  const Json* spec = root.ok() ? Find(*root, "spec") : nullptr;
  if (spec == nullptr) return;
  record_.holder = StringAt(*spec, "holderIdentity");
  record_.acquire_time = StringAt(*spec, "acquireTime");
  const Json* seconds = Find(*spec, "leaseDurationSeconds");
  if (seconds != nullptr && seconds->is_number_integer()) {
    record_.duration = std::chrono::seconds(seconds->get<std::int64_t>());
  }
  const Json* transitions = Find(*spec, "leaseTransitions");
  if (transitions != nullptr && transitions->is_number_unsigned()) {
    record_.transitions = transitions->get<std::uint64_t>();
  }
}

Status Elector::Write(const Record& record, bool create) {
  Json root = {{"apiVersion", ApiVersionOf(Kind::kLease)},
               {"kind", "Lease"},
               {"metadata", {{"namespace", options_.lease.ns}, {"name", options_.lease.name}}}};
  Json& spec = root["spec"];
  spec["holderIdentity"] = record.holder;
  spec["leaseDurationSeconds"] =
      std::chrono::duration_cast<std::chrono::seconds>(record.duration).count();
  spec["leaseTransitions"] = record.transitions;
  spec["acquireTime"] = record.acquire_time;
  spec["renewTime"] = FormatMicroTime(clock_.UnixMicros());
  Result<ObjectPtr> written = Internal("not written");
  if (create) {
    written = api_.Create(Kind::kLease, root.dump());
  } else {
    root["metadata"]["resourceVersion"] = std::to_string(observed_->meta.resource_version);
    root["metadata"]["uid"] = observed_->meta.uid;
    written = api_.Update(Kind::kLease, root.dump());
  }
  if (!written.ok()) return written.status();
  observed_ = *written;
  record_ = record;
  return Status::Ok();
}

void Elector::SetLeading(bool leading, Clock::TimePoint sent, std::uint64_t term) {
  bool changed = false;
  std::uint64_t now_term = 0;
  {
    MutexLock lock(mu_);
    changed = leading_ != leading || (leading && term_ != term);
    leading_ = leading;
    if (leading) {
      term_ = term;
      lease_uid_ = observed_->meta.uid;
      lead_until_ = sent + options_.renew_deadline;
      if (changed) since_ = sent;
    }
    now_term = term_;
  }
  if (!changed) return;
  LogInfo(leading ? "leading" : "not leading", {{"term", now_term}});
  if (options_.on_change) options_.on_change();
}

void Elector::Release() {
  if (leading() && observed_ != nullptr) {
    Record record = record_;
    record.holder.clear();
    record.duration = std::chrono::seconds(1);
    const Status written = Write(record, false);
    if (!written.ok()) LogWarn("lease not released", {{"reason", written.message()}});
  }
  SetLeading(false, clock_.Now(), 0);
}

void Elector::RaiseTerm(std::uint64_t seen) {
  MutexLock lock(mu_);
  raised_ = std::max(raised_, seen);
}

bool Elector::leading() const {
  MutexLock lock(mu_);
  return leading_ && clock_.Now() < lead_until_;
}

std::uint64_t Elector::term() const {
  MutexLock lock(mu_);
  return term_;
}

std::string Elector::lease_uid() const {
  MutexLock lock(mu_);
  return lease_uid_;
}

Clock::TimePoint Elector::leading_since() const {
  MutexLock lock(mu_);
  return since_;
}

Clock::Duration Elector::overdue() const {
  MutexLock lock(mu_);
  const Clock::TimePoint now = clock_.Now();
  return leading_ && now > lead_until_ ? now - lead_until_ : Clock::Duration::zero();
}

}  // namespace kvfabric::kube
