#include "tests/operator/fault_script.h"

#include <utility>

#include "operator/kube/api_error.h"

namespace kvfabric {

using kube::Kind;
using kube::ListBatch;
using kube::ListStream;
using kube::ObjectName;
using kube::ObjectPtr;
using kube::WatchBatch;
using kube::WatchStream;

class FaultScript::List final : public ListStream {
 public:
  List(const Faults& faults, Kind kind, std::unique_ptr<ListStream> inner)
      : faults_(faults), kind_(kind), inner_(std::move(inner)) {}
  Result<ListBatch> Poll() override {
    if (faults_.frozen.count(kind_) != 0) return ListBatch{};
    return inner_->Poll();
  }

 private:
  const Faults& faults_;
  const Kind kind_;
  const std::unique_ptr<ListStream> inner_;
};

class FaultScript::Stream final : public WatchStream {
 public:
  Stream(const Faults& faults, Kind kind, std::uint64_t version, std::unique_ptr<WatchStream> inner)
      : faults_(faults), kind_(kind), version_(version), inner_(std::move(inner)) {}
  Result<WatchBatch> Poll() override {
    if (faults_.expire_watches) return Status(StatusCode::kOutOfRange, "too old");
    if (faults_.break_watches || faults_.unreachable) return Unavailable("connection reset");
    if (faults_.frozen.count(kind_) != 0) return WatchBatch{{}, version_, false};
    Result<WatchBatch> batch = inner_->Poll();
    if (batch.ok()) version_ = batch->resource_version;
    return batch;
  }

 private:
  const Faults& faults_;
  const Kind kind_;
  std::uint64_t version_;
  const std::unique_ptr<WatchStream> inner_;
};

bool FaultScript::Happens(double share) {
  return share > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < share;
}

Status FaultScript::Refusal() {
  if (faults_.dead) return Unavailable("dead");
  if (faults_.unreachable) return Unavailable("connection refused");
  if (!Happens(faults_.storm)) return Status::Ok();
  auto detail = std::make_shared<kube::ApiDetail>();
  detail->http_code = 429;
  detail->retry_after = std::chrono::seconds(1);
  return {StatusCode::kUnavailable, "too many requests", std::move(detail)};
}

template <typename T>
T FaultScript::Write(Kind kind, const std::function<T()>& write) {
  if (Status refusal = Refusal(); !refusal.ok()) return refusal;
  if (kind != Kind::kLease) {
    if (faults_.on_write) faults_.on_write(kind);
    ++faults_.writes;
    if (faults_.die_in_write == faults_.writes) faults_.dead = true;
  }
  T answer = write();
  if (faults_.dead) return Unavailable("dead");
  if (kind != Kind::kLease && Happens(faults_.lost_answers)) return DeadlineExceeded("answer lost");
  return answer;
}

Result<ObjectPtr> FaultScript::Get(Kind kind, const ObjectName& name) {
  if (Status refusal = Refusal(); !refusal.ok()) return refusal;
  return ForwardingKube::Get(kind, name);
}
Result<ObjectPtr> FaultScript::Create(Kind kind, const std::string& json) {
  return Write<Result<ObjectPtr>>(kind, [&] { return ForwardingKube::Create(kind, json); });
}
Result<ObjectPtr> FaultScript::Update(Kind kind, const std::string& json) {
  return Write<Result<ObjectPtr>>(kind, [&] { return ForwardingKube::Update(kind, json); });
}
Result<ObjectPtr> FaultScript::UpdateStatus(Kind kind, const std::string& json) {
  return Write<Result<ObjectPtr>>(kind, [&] { return ForwardingKube::UpdateStatus(kind, json); });
}
Result<ObjectPtr> FaultScript::Apply(Kind kind, const std::string& json,
                                     const kube::ApplyOptions& options) {
  return Write<Result<ObjectPtr>>(kind, [&] { return ForwardingKube::Apply(kind, json, options); });
}
Result<ObjectPtr> FaultScript::Patch(Kind kind, const ObjectName& name, kube::PatchType type,
                                     const std::string& patch, bool status) {
  return Write<Result<ObjectPtr>>(
      kind, [&] { return ForwardingKube::Patch(kind, name, type, patch, status); });
}
Status FaultScript::Delete(Kind kind, const ObjectName& name,
                           const kube::Preconditions& preconditions) {
  return Write<Status>(kind, [&] { return ForwardingKube::Delete(kind, name, preconditions); });
}

Result<std::unique_ptr<ListStream>> FaultScript::StartList(
    Kind kind, const kube::Scope& scope, std::optional<std::uint64_t> not_older_than,
    std::function<void()> on_ready) {
  if (Status refusal = Refusal(); !refusal.ok()) return refusal;
  ++faults_.lists;
  KVF_ASSIGN_OR_RETURN(auto inner,
                       ForwardingKube::StartList(kind, scope, not_older_than, std::move(on_ready)));
  return std::unique_ptr<ListStream>(new List(faults_, kind, std::move(inner)));
}

Result<std::unique_ptr<WatchStream>> FaultScript::Watch(Kind kind, const kube::Scope& scope,
                                                        const kube::WatchFrom& from,
                                                        std::function<void()> on_ready) {
  if (Status refusal = Refusal(); !refusal.ok()) return refusal;
  if (faults_.expire_watches && !from.initial_events) {
    return Status(StatusCode::kOutOfRange, "too old");
  }
  KVF_ASSIGN_OR_RETURN(auto inner, ForwardingKube::Watch(kind, scope, from, std::move(on_ready)));
  return std::unique_ptr<WatchStream>(
      new Stream(faults_, kind, from.resource_version, std::move(inner)));
}

}  // namespace kvfabric
