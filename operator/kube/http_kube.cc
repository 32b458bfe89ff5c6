#include "operator/kube/http_kube.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/mutex.h"
#include "operator/kube/api_error.h"
#include "operator/kube/api_path.h"
#include "operator/kube/api_session.h"
#include "operator/kube/http_streams.h"
#include "operator/kube/json.h"

namespace kvfabric::kube {
namespace {

constexpr const char* kJson = "application/json";

// A stream as its user holds it: letting go ends it.
class HeldList final : public ListStream {
 public:
  explicit HeldList(std::shared_ptr<ListTask> task) : task_(std::move(task)) {}
  ~HeldList() override { task_->Detach(); }
  HeldList(const HeldList&) = delete;  // would end it twice
  HeldList& operator=(const HeldList&) = delete;
  Result<ListBatch> Poll() override { return task_->Poll(); }

 private:
  const std::shared_ptr<ListTask> task_;
};

class HeldWatch final : public WatchStream {
 public:
  explicit HeldWatch(std::shared_ptr<WatchTask> task) : task_(std::move(task)) {}
  ~HeldWatch() override { task_->Detach(); }
  HeldWatch(const HeldWatch&) = delete;  // would end it twice
  HeldWatch& operator=(const HeldWatch&) = delete;
  Result<WatchBatch> Poll() override { return task_->Poll(); }

 private:
  const std::shared_ptr<WatchTask> task_;
};

// What a blocking List waits on.
class Signal {
 public:
  void Set() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    set_ = true;
    changed_.NotifyAll();
  }
  bool WaitUntil(std::chrono::steady_clock::time_point deadline) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!set_) {
      if (!changed_.WaitUntil(mu_, deadline)) return false;
    }
    set_ = false;
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool set_ GUARDED_BY(mu_) = false;
};

// The object in the body of an answer. One that cannot be read says nothing about what was asked.
Result<ObjectPtr> ObjectOf(Kind kind, const ApiCall& call, Result<std::string> body) {
  if (!body.ok()) return body.status();
  Result<Object> object = ParseObject(kind, std::move(body).value());
  if (!object.ok()) {
    return Unavailable(std::string("api: ") + MethodOf(call.verb) + " " + call.target +
                       ": the answer is not the object: " + object.status().message());
  }
  return ObjectPtr(std::make_shared<const Object>(std::move(object).value()));
}

std::chrono::milliseconds BudgetOf(const HttpKube::Options& options, Kind kind) {
  return kind == Kind::kLease ? options.lease_timeout : options.call_timeout;
}

Status CheckScope(const Scope& scope) {
  if (scope.ns.empty() || IsDnsLabel(scope.ns)) return Status::Ok();
  return InvalidArgument("namespace: \"" + scope.ns + "\": no name of a namespace");
}

Status CheckName(Kind kind, const ObjectName& name) {
  const bool good = IsDnsSubdomain(name.name) &&
                    (TraitsOf(kind).namespaced ? IsDnsLabel(name.ns) : name.ns.empty());
  // It becomes part of a path.
  if (good) return Status::Ok();
  return InvalidArgument("name: \"" + name.ToString() + "\": no name of a " +
                         std::string(TraitsOf(kind).name));
}

}  // namespace

HttpKube::HttpKube(std::shared_ptr<ApiSession> session) : session_(std::move(session)) {}

HttpKube::~HttpKube() { session_->Stop(); }

void HttpKube::Stop() { session_->Stop(); }

Result<std::unique_ptr<HttpKube>> HttpKube::Create(Options options) {
  KVF_ASSIGN_OR_RETURN(std::shared_ptr<ApiSession> session, ApiSession::Create(std::move(options)));
  return std::unique_ptr<HttpKube>(new HttpKube(std::move(session)));
}

Status HttpKube::Ping() {
  ApiCall call;
  call.target = "/version";
  return session_->Call(call, session_->options().call_timeout).status();
}

Result<ObjectPtr> HttpKube::Get(Kind kind, const ObjectName& name) {
  KVF_RETURN_IF_ERROR(CheckName(kind, name));
  ApiCall call;
  call.target = FormatApiPath({kind, name.ns, name.name, false});
  call.lease = kind == Kind::kLease;
  return ObjectOf(kind, call, session_->Call(call, BudgetOf(session_->options(), kind)));
}

Result<ObjectPtr> HttpKube::Write(bool create, Kind kind, const std::string& json, bool status) {
  KVF_ASSIGN_OR_RETURN(const Object given, ParseObject(kind, json));
  ApiCall call;
  call.verb = create ? ApiVerb::kCreate : ApiVerb::kUpdate;
  const ObjectName& name = given.meta.name;
  call.target = FormatApiPath({kind, name.ns, create ? std::string() : name.name, status});
  call.body = json;
  call.content_type = kJson;
  // With a resourceVersion the second of two is a Conflict, and does nothing.
  call.repeatable = !create && given.meta.resource_version != 0;
  call.lease = kind == Kind::kLease;
  return ObjectOf(kind, call, session_->Call(call, BudgetOf(session_->options(), kind)));
}

Result<ObjectPtr> HttpKube::Create(Kind kind, const std::string& json) {
  return Write(true, kind, json, false);
}
Result<ObjectPtr> HttpKube::Update(Kind kind, const std::string& json) {
  return Write(false, kind, json, false);
}
Result<ObjectPtr> HttpKube::UpdateStatus(Kind kind, const std::string& json) {
  return Write(false, kind, json, true);
}

Result<ObjectPtr> HttpKube::Apply(Kind kind, const std::string& json, const ApplyOptions& options) {
  KVF_ASSIGN_OR_RETURN(const Object given, ParseObject(kind, json));
  const ObjectName& name = given.meta.name;
  ApiCall call;
  call.verb = ApiVerb::kApply;
  call.target =
      FormatApiPath({kind, name.ns, name.name, options.status}) +
      Query({{"fieldManager", options.field_manager}, {"force", options.force ? "true" : "false"}});
  call.body = json;
  call.content_type = "application/apply-patch+yaml";
  call.lease = kind == Kind::kLease;
  return ObjectOf(kind, call, session_->Call(call, BudgetOf(session_->options(), kind)));
}

Result<ObjectPtr> HttpKube::Patch(Kind kind, const ObjectName& name, PatchType type,
                                  const std::string& patch, bool status) {
  KVF_RETURN_IF_ERROR(CheckName(kind, name));
  ApiCall call;
  call.verb = ApiVerb::kPatch;
  call.target = FormatApiPath({kind, name.ns, name.name, status});
  call.body = patch;
  call.content_type =
      type == PatchType::kMerge ? "application/merge-patch+json" : "application/json-patch+json";
  call.repeatable = false;  // a list may be added to
  call.lease = kind == Kind::kLease;
  return ObjectOf(kind, call, session_->Call(call, BudgetOf(session_->options(), kind)));
}

Status HttpKube::Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions) {
  KVF_RETURN_IF_ERROR(CheckName(kind, name));
  Json body = {{"kind", "DeleteOptions"}, {"apiVersion", "v1"}};
  if (!preconditions.uid.empty()) body["preconditions"]["uid"] = preconditions.uid;
  if (preconditions.resource_version != 0) {
    body["preconditions"]["resourceVersion"] = std::to_string(preconditions.resource_version);
  }
  ApiCall call;
  call.verb = ApiVerb::kDelete;
  call.target = FormatApiPath({kind, name.ns, name.name, false});
  call.body = body.dump();
  call.content_type = kJson;
  // Unguarded, the second could meet another object of the same name.
  call.repeatable = !preconditions.uid.empty() || preconditions.resource_version != 0;
  call.lease = kind == Kind::kLease;
  return session_->Call(call, BudgetOf(session_->options(), kind)).status();
}

Result<ObjectList> HttpKube::List(Kind kind, const std::string& ns) {
  const auto deadline = std::chrono::steady_clock::now() + session_->options().call_timeout;
  const ApiSession::Visit visit(*session_);
  const auto signal = std::make_shared<Signal>();
  Scope scope;
  scope.ns = ns;
  for (bool again = false;; again = true) {
    KVF_ASSIGN_OR_RETURN(const std::unique_ptr<ListStream> stream,
                         StartList(kind, scope, std::nullopt, [signal] { signal->Set(); }));
    ObjectList out;
    Status broken;
    while (broken.ok()) {
      Result<ListBatch> batch = stream->Poll();
      if (!batch.ok()) {
        broken = batch.status();
        break;
      }
      std::move(batch->items.begin(), batch->items.end(), std::back_inserter(out.items));
      if (batch->done) {
        out.resource_version = batch->resource_version;
        return out;
      }
      // What rang for these items may have been the end, too.
      if (batch->items.empty() && !signal->WaitUntil(deadline)) {
        return DeadlineExceeded("api " + session_->options().target.server + ": list of " +
                                std::string(TraitsOf(kind).plural) + ": not there in time");
      }
    }
    // Its pages expired: the next one comes whole.
    if (!IsGone(broken) || again) return broken;
  }
}

Result<std::unique_ptr<ListStream>> HttpKube::StartList(Kind kind, const Scope& scope,
                                                        std::optional<std::uint64_t> not_older_than,
                                                        std::function<void()> on_ready) {
  KVF_RETURN_IF_ERROR(CheckScope(scope));
  auto task =
      std::make_shared<ListTask>(session_, kind, scope, not_older_than, std::move(on_ready));
  task->Start();
  return std::unique_ptr<ListStream>(std::make_unique<HeldList>(std::move(task)));
}

Result<std::unique_ptr<WatchStream>> HttpKube::Watch(Kind kind, const Scope& scope,
                                                     const WatchFrom& from,
                                                     std::function<void()> on_ready) {
  KVF_RETURN_IF_ERROR(CheckScope(scope));
  auto task = std::make_shared<WatchTask>(session_, kind, scope, from, std::move(on_ready));
  task->Start();
  return std::unique_ptr<WatchStream>(std::make_unique<HeldWatch>(std::move(task)));
}

}  // namespace kvfabric::kube
