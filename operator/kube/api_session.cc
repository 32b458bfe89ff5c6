#include "operator/kube/api_session.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "operator/kube/api_error.h"
#include "operator/kube/api_responses.h"

namespace kvfabric::kube {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBreakWait{50};
constexpr milliseconds kLongestBreakWait{1000};
constexpr std::size_t kMaxUnpaged = 256;

Status StoppedStatus() { return Cancelled("api client: it was stopped"); }

HttpTransport::Options TransportOptions(const HttpKube::Options& options) {
  HttpTransport::Options out;
  out.server = options.target.server;
  out.tls_server_name = options.target.tls_server_name;
  out.insecure = options.target.insecure;
  out.proxy = options.target.proxy;
  out.user_agent = options.user_agent;
  out.connect_timeout = options.connect_timeout;
  out.max_body_bytes = options.max_body_bytes;
  return out;
}

Result<std::string> ReadAnswer(const std::string& where, HttpAnswer answer) {
  if (answer.end.fault != HttpFault::kNone) return answer.end.status;
  KVF_RETURN_IF_ERROR(CheckAnswer(where, answer.head, answer.body));
  return std::move(answer.body);
}

}  // namespace

Status CheckAnswer(const std::string& where, const HttpHead& head, std::string_view body) {
  KVF_RETURN_IF_ERROR(StatusOfAnswer(head.code, body, head.retry_after));
  constexpr std::string_view kJson = "application/json";
  if (head.content_type.compare(0, kJson.size(), kJson) == 0) return Status::Ok();
  return Unavailable(where + ": answered \"" + head.content_type.substr(0, 100) +
                     "\" instead of JSON: is an API server there, or a page of a proxy?");
}

const char* MethodOf(ApiVerb verb) {
  switch (verb) {
    case ApiVerb::kCreate:
      return "POST";
    case ApiVerb::kUpdate:
      return "PUT";
    case ApiVerb::kApply:
    case ApiVerb::kPatch:
      return "PATCH";
    case ApiVerb::kDelete:
      return "DELETE";
    default:
      return "GET";
  }
}

std::string Query(std::initializer_list<std::pair<const char*, std::string>> parameters) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out;
  for (const auto& [name, value] : parameters) {
    if (value.empty()) continue;
    out += (out.empty() ? "?" : "&") + std::string(name) + "=";
    for (const char c : value) {
      const auto byte = static_cast<unsigned char>(c);
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == '~';
      if (plain) {
        out += c;
      } else {
        out += {'%', kHex[byte >> 4U], kHex[byte & 15U]};
      }
    }
  }
  return out;
}

Result<std::shared_ptr<ApiSession>> ApiSession::Create(HttpKube::Options options) {
  const HttpTransport::Options transport = TransportOptions(options);
  KVF_ASSIGN_OR_RETURN(auto credentials, Credentials::Create(options.target.credentials,
                                                             *options.clock, options.credentials));
  auto session = std::make_shared<ApiSession>(std::move(options));
  session->credentials_ = std::move(credentials);
  KVF_ASSIGN_OR_RETURN(session->transport_, HttpTransport::Create(transport));
  KVF_ASSIGN_OR_RETURN(session->leases_, HttpTransport::Create(transport));
  return session;
}

ApiSession::ApiSession(HttpKube::Options options)
    : options_(std::move(options)),
      metrics_(options_.metrics),
      random_(options_.seed),
      timer_(std::make_unique<Timer>(Clock::System())) {}

ApiSession::~ApiSession() { Stop(); }

void ApiSession::Stop() {
  std::unique_ptr<Timer> timer;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    timer = std::move(timer_);
    changed_.NotifyAll();
  }
  if (credentials_ != nullptr) credentials_->Stop();
  timer.reset();
  if (transport_ != nullptr) transport_->Stop();
  if (leases_ != nullptr) leases_->Stop();
  MutexLock lock(mu_);
  while (visits_ > 0) changed_.Wait(mu_);
}

double ApiSession::Random() { return std::uniform_real_distribution<double>(0.0, 1.0)(random_); }

std::chrono::seconds ApiSession::RandomWatchTimeout() {
  MutexLock lock(mu_);
  const auto span = options_.watch_timeout_max - options_.watch_timeout_min;
  return options_.watch_timeout_min + std::chrono::seconds(static_cast<std::int64_t>(
                                          static_cast<double>(span.count()) * Random()));
}

bool ApiSession::IsUnpaged(const std::string& list) const {
  MutexLock lock(mu_);
  return unpaged_.count(list) != 0;
}

void ApiSession::SetUnpaged(const std::string& list, bool unpaged) {
  MutexLock lock(mu_);
  if (!unpaged) {
    unpaged_.erase(list);
  } else if (unpaged_.size() < kMaxUnpaged) {
    unpaged_.insert(list);
  }
}

Result<Proof> ApiSession::Prove() {
  Result<Proof> proof = credentials_->Get();
  metrics_.SetTokenAge(credentials_->TokenAge());
  return proof;
}

std::optional<milliseconds> ApiSession::WaitBefore(const HttpHead& head, HttpFault fault,
                                                   bool repeatable, int tries, milliseconds left) {
  if (tries >= options_.max_tries) return std::nullopt;
  milliseconds wait{0};
  MutexLock lock(mu_);
  if (fault == HttpFault::kNone) {
    const bool asked = (head.code == 429 || head.code >= 500) && head.retry_after.has_value();
    if (!asked) return std::nullopt;
    wait = *head.retry_after / 1000 * options_.retry_after_unit.count();
  } else if (fault == HttpFault::kBroken && repeatable) {
    wait = std::min(kLongestBreakWait, kFirstBreakWait * (1 << std::min(tries, 10)));
  } else {
    return std::nullopt;
  }
  // Many clients were told the same second.
  const auto spread = static_cast<double>(std::max(wait, kFirstBreakWait).count()) / 4;
  wait += milliseconds(static_cast<std::int64_t>(spread * Random()));
  if (wait >= left || stopped_) return std::nullopt;
  return wait;
}

void ApiSession::Later(milliseconds delay, std::function<void()> task) {
  MutexLock lock(mu_);
  if (timer_ != nullptr) timer_->After(delay, std::move(task));
}

ApiSession::Visit::Visit(ApiSession& session) : session_(session.shared_from_this()) {
  MutexLock lock(session_->mu_);
  ++session_->visits_;
}

ApiSession::Visit::~Visit() {
  MutexLock lock(session_->mu_);
  --session_->visits_;
  session_->changed_.NotifyAll();
}

Status ApiSession::TakePlace(Clock::TimePoint deadline) {
  MutexLock lock(mu_);
  while (!stopped_ && calls_ >= options_.max_calls) {
    if (!changed_.WaitUntil(mu_, deadline)) {
      return ResourceExhausted("api client: " + std::to_string(options_.max_calls) +
                               " calls are under way, and none ended in time");
    }
  }
  if (stopped_) return StoppedStatus();
  ++calls_;
  return Status::Ok();
}

void ApiSession::LeavePlace() {
  MutexLock lock(mu_);
  --calls_;
  changed_.NotifyAll();
}

Status ApiSession::Pause(milliseconds wait) {
  const auto until = std::chrono::steady_clock::now() + wait;
  MutexLock lock(mu_);
  while (!stopped_ && changed_.WaitUntil(mu_, until)) {
  }
  return stopped_ ? StoppedStatus() : Status::Ok();
}

Result<std::string> ApiSession::Call(const ApiCall& call, milliseconds budget) {
  const auto deadline = std::chrono::steady_clock::now() + budget;
  const Visit visit(*this);
  if (call.lease) return Try(call, deadline);  // a Lease waits for nobody
  KVF_RETURN_IF_ERROR(TakePlace(deadline));
  Result<std::string> out = Try(call, deadline);
  LeavePlace();
  return out;
}

Result<std::string> ApiSession::Try(const ApiCall& call, Clock::TimePoint deadline) {
  bool proved_again = false;
  for (int tries = 1;; ++tries) {
    KVF_ASSIGN_OR_RETURN(const Proof proof, Prove());
    HttpRequest request;
    request.method = MethodOf(call.verb);
    request.target = call.target;
    request.authorization = proof.authorization;
    request.tls = proof.tls;
    request.content_type = call.content_type;
    request.body = call.body;
    request.repeatable = call.repeatable;
    const auto began = std::chrono::steady_clock::now();
    request.total =
        std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - began));
    HttpAnswer answer = (call.lease ? *leases_ : *transport_).Call(std::move(request));
    const bool whole = answer.end.fault == HttpFault::kNone;
    const auto now = std::chrono::steady_clock::now();
    metrics_.Requested(call.verb, whole ? answer.head.code : 0, now - began);
    if (whole && answer.head.code == 401 && !proved_again && credentials_->Reject(proof)) {
      proved_again = true;
      continue;
    }
    const auto wait = WaitBefore(answer.head, answer.end.fault, call.repeatable, tries,
                                 std::chrono::duration_cast<milliseconds>(deadline - now));
    if (!wait.has_value()) {
      const std::string where = "api " + options_.target.server + ": " + MethodOf(call.verb) + " " +
                                call.target.substr(0, call.target.find('?'));
      return ReadAnswer(where, std::move(answer));
    }
    LogDebug("api: trying again", {{"path", call.target},
                                   {"code", answer.head.code},
                                   {"flow_schema", answer.head.flow_schema},
                                   {"wait_ms", wait->count()}});
    KVF_RETURN_IF_ERROR(Pause(*wait));
  }
}

}  // namespace kvfabric::kube
