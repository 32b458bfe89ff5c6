#include "operator/kube/http_transport.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "operator/kube/server_url.h"

namespace kvfabric::kube {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::size_t kMaxHeadBytes = std::size_t{256} << 10U;
constexpr std::uint64_t kMaxRetryAfterSeconds = 3600;
constexpr long kKeepAliveIdleSeconds = 15;
constexpr long kKeepAliveEverySeconds = 5;
constexpr long kMaxIdleConnectionSeconds = 60;  // API servers close them at 90
constexpr long kMaxIdleConnections = 8;
constexpr std::chrono::milliseconds kLongestPoll{1000};

Status ClosedStatus() { return Cancelled("api client: it was stopped"); }

HttpFault FaultOf(CURLcode code) {
  switch (code) {
    case CURLE_OK:
      return HttpFault::kNone;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
      return HttpFault::kNotSent;
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
      return HttpFault::kBroken;
    case CURLE_OPERATION_TIMEDOUT:
      return HttpFault::kTooLate;
    case CURLE_WRITE_ERROR:
      return HttpFault::kStopped;
    default:
      return HttpFault::kOther;
  }
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') text.remove_suffix(1);
  return text;
}

bool SameWord(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

std::optional<std::chrono::milliseconds> ReadSeconds(std::string_view text) {
  std::uint64_t seconds = 0;
  if (text.empty()) return std::nullopt;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    seconds = std::min(seconds * 10 + digit, kMaxRetryAfterSeconds);
  }
  return std::chrono::seconds(seconds);
}

void ReadHeader(std::string_view line, HttpHead* head) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = Trimmed(line.substr(colon + 1));
  if (SameWord(name, "content-type")) head->content_type = value;
  if (SameWord(name, "retry-after")) head->retry_after = ReadSeconds(value);
  if (SameWord(name, "x-kubernetes-pf-flowschema-uid")) head->flow_schema = value;
}

// Of a request under way; the loop's thread only.
struct Transfer {
  HttpRequest request;
  std::shared_ptr<HttpListener> listener;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  curl_slist* connect_to = nullptr;
  std::array<char, CURL_ERROR_SIZE> error{};
  HttpHead head;
  std::size_t head_bytes = 0;
  bool head_too_long = false;
  bool paused = false;
  SteadyTime last_byte;
  int dead_after_ms = 0;

  Transfer() = default;
  ~Transfer() {
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    curl_slist_free_all(connect_to);
  }
  Transfer(const Transfer&) = delete;  // owns libcurl's handles
  Transfer& operator=(const Transfer&) = delete;
};

std::size_t OnHeaderLine(char* data, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::string_view line(data, size * count);
  transfer.head_bytes += line.size();
  transfer.head_too_long = transfer.head_bytes > kMaxHeadBytes;
  if (transfer.head_too_long) return 0;
  if (line.substr(0, 5) == "HTTP/") {
    transfer.head = {};  // what came before was 1xx
    return line.size();
  }
  if (!Trimmed(line).empty()) {
    ReadHeader(line, &transfer.head);
    return line.size();
  }
  long code = 0;
  curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &code);
  // The empty line after trailers ends no head.
  if (code < 200 || transfer.head.code != 0) return line.size();
  transfer.head.code = static_cast<int>(code);
  transfer.last_byte = std::chrono::steady_clock::now();
  transfer.listener->OnHead(transfer.head);
  return line.size();
}

std::size_t OnBodyBytes(char* data, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::size_t bytes = size * count;
  transfer.last_byte = std::chrono::steady_clock::now();
  const HttpTake take = transfer.listener->OnBody({data, bytes});
  if (take == HttpTake::kTaken) return bytes;
  if (take == HttpTake::kStop) return bytes == 0 ? 1 : 0;
  transfer.paused = true;
  return CURL_WRITEFUNC_PAUSE;
}

int OnSocket(void* user, curl_socket_t socket, curlsocktype /*purpose*/) {
  // A watch whose server vanished without a word must not wait for its silence to be noticed, and
  // credential plugins must not inherit connections.
  const auto ms = static_cast<unsigned>(static_cast<Transfer*>(user)->dead_after_ms);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  return CURL_SOCKOPT_OK;
}

curl_blob BlobOf(const std::string& text) {
  curl_blob blob{};
  blob.data = const_cast<char*>(text.data());  // NOLINT: libcurl copies from it
  blob.len = text.size();
  blob.flags = CURL_BLOB_COPY;
  return blob;
}

class BodyCollector final : public HttpListener {
 public:
  explicit BodyCollector(std::size_t max_bytes) : max_bytes_(max_bytes) {}
  void OnHead(const HttpHead& head) override { answer_.head = head; }
  HttpTake OnBody(std::string_view bytes) override {
    too_long_ = answer_.body.size() + bytes.size() > max_bytes_;
    if (too_long_) return HttpTake::kStop;
    answer_.body.append(bytes);
    return HttpTake::kTaken;
  }
  void OnEnd(const HttpEnd& end) override {
    answer_.end = end;
    if (too_long_) {
      answer_.end = {HttpFault::kOther,
                     ResourceExhausted(end.status.message() + ": the answer is longer than " +
                                       std::to_string(max_bytes_) + " bytes")};
    }
    MutexLock lock(mu_);
    done_ = true;
    changed_.NotifyAll();
  }
  HttpAnswer Wait() {
    MutexLock lock(mu_);
    while (!done_) changed_.Wait(mu_);
    return std::move(answer_);
  }

 private:
  const std::size_t max_bytes_;
  HttpAnswer answer_;  // the loop's until done_
  bool too_long_ = false;
  Mutex mu_;
  CondVar changed_;
  bool done_ GUARDED_BY(mu_) = false;
};

}  // namespace

class HttpTransport::Loop {
 public:
  Loop(Options options, ServerUrl url, CURLM* multi)
      : options_(std::move(options)), url_(std::move(url)), multi_(multi) {
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, kMaxIdleConnections);
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "kube-http");
  }
  ~Loop() {
    Stop();
    curl_multi_cleanup(multi_);
  }
  Loop(const Loop&) = delete;  // owns a thread
  Loop& operator=(const Loop&) = delete;

  Result<std::uint64_t> Start(HttpRequest request, std::shared_ptr<HttpListener> listener)
      EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (stopping_) return ClosedStatus();
    Command command;
    command.id = next_id_++;
    command.request = std::move(request);
    command.listener = std::move(listener);
    const std::uint64_t id = command.id;
    Push(std::move(command));
    return id;
  }
  void Tell(std::uint64_t id, bool cancel) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (stopping_) return;
    Command command;
    command.id = id;
    command.cancel = cancel;
    Push(std::move(command));
  }
  void Stop() EXCLUDES(mu_, stop_mu_) {
    {
      MutexLock lock(mu_);
      stopping_ = true;
      curl_multi_wakeup(multi_);
    }
    MutexLock lock(stop_mu_);
    if (thread_.joinable()) thread_.join();
  }
  const Options& options() const { return options_; }

 private:
  struct Command {
    std::uint64_t id = 0;
    std::shared_ptr<HttpListener> listener;  // null: of a transfer that runs
    HttpRequest request;
    bool cancel = false;
  };
  using Transfers = std::map<std::uint64_t, std::unique_ptr<Transfer>>;

  void Push(Command command) REQUIRES(mu_) {
    commands_.push_back(std::move(command));
    curl_multi_wakeup(multi_);
  }
  void Run() EXCLUDES(mu_);
  bool Obey() EXCLUDES(mu_);
  void Begin(Command command);
  void SetUp(Transfer& transfer) const;
  void SetUpTls(Transfer& transfer) const;
  void SetUpProxy(Transfer& transfer) const;
  void Collect();
  std::chrono::milliseconds EndSilent();
  void End(Transfers::iterator it, const HttpEnd& end);
  Status Failed(const Transfer& transfer, StatusCode code, const std::string& why) const;

  const Options options_;
  const ServerUrl url_;
  CURLM* const multi_;
  Transfers transfers_;  // the thread's

  Mutex mu_;
  std::vector<Command> commands_ GUARDED_BY(mu_);
  std::uint64_t next_id_ GUARDED_BY(mu_) = 1;
  bool stopping_ GUARDED_BY(mu_) = false;

  Mutex stop_mu_;
  std::thread thread_ GUARDED_BY(stop_mu_);
};

Status HttpTransport::Loop::Failed(const Transfer& transfer, StatusCode code,
                                   const std::string& why) const {
  const std::string& target = transfer.request.target;
  return {code, "api " + options_.server + ": " + transfer.request.method + " " +
                    target.substr(0, target.find('?')) + ": " + why};
}

void HttpTransport::Loop::SetUpTls(Transfer& transfer) const {
  CURL* easy = transfer.easy;
  curl_easy_setopt(easy, CURLOPT_SSLVERSION, CURL_SSLVERSION_TLSv1_2);  // or newer
  if (options_.insecure) {
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
  }
  if (transfer.request.tls == nullptr) return;
  const TlsMaterial& tls = *transfer.request.tls;
  if (!tls.ca.empty()) {
    curl_blob ca = BlobOf(tls.ca);
    curl_easy_setopt(easy, CURLOPT_CAINFO_BLOB, &ca);
    // Without this the system's authorities would be trusted besides.
    curl_easy_setopt(easy, CURLOPT_CAPATH, nullptr);
  }
  if (tls.certificate.empty()) return;
  curl_blob certificate = BlobOf(tls.certificate);
  curl_blob key = BlobOf(tls.key);
  curl_easy_setopt(easy, CURLOPT_SSLCERT_BLOB, &certificate);
  curl_easy_setopt(easy, CURLOPT_SSLKEY_BLOB, &key);
}

void HttpTransport::Loop::SetUpProxy(Transfer& transfer) const {
  CURL* easy = transfer.easy;
  if (!options_.proxy.empty()) {
    curl_easy_setopt(easy, CURLOPT_PROXY, options_.proxy.c_str());
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "");  // named here, so the environment has no say
    curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  } else if (url_.loopback) {
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
  }
  if (options_.tls_server_name.empty()) return;
  // The URL carries the name to verify, this where it is.
  const std::string line = "::" + url_.host + ":" + url_.port;
  transfer.connect_to = curl_slist_append(nullptr, line.c_str());
  curl_easy_setopt(easy, CURLOPT_CONNECT_TO, transfer.connect_to);
}

void HttpTransport::Loop::SetUp(Transfer& transfer) const {
  CURL* easy = transfer.easy;
  const HttpRequest& request = transfer.request;
  const auto header = [&](const std::string& line) {
    transfer.headers = curl_slist_append(transfer.headers, line.c_str());
  };
  header("Accept: application/json");
  header("Expect:");
  if (!request.authorization.empty()) header("Authorization: " + request.authorization);
  if (!request.content_type.empty()) header("Content-Type: " + request.content_type);
  std::string url = url_.origin;
  if (!options_.tls_server_name.empty()) {
    url = url_.scheme + "://" + options_.tls_server_name + ":" + url_.port;
    header("Host: " + url_.host + ":" + url_.port);
  }
  url += url_.prefix + request.target;
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, url_.scheme.c_str());
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer.headers);
  curl_easy_setopt(easy, CURLOPT_USERAGENT, options_.user_agent.c_str());
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // never wait for a resolver that hangs
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer.error.data());
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, kKeepAliveEverySeconds);
  curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, kMaxIdleConnectionSeconds);
  curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, OnSocket);
  curl_easy_setopt(easy, CURLOPT_SOCKOPTDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(options_.connect_timeout.count()));
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(request.total.count()));
  if (!request.repeatable) curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
  if (!request.body.empty()) {
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.body.data());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
  }
  curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, OnHeaderLine);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, OnBodyBytes);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  SetUpTls(transfer);
  SetUpProxy(transfer);
}

void HttpTransport::Loop::Begin(Command command) {
  auto transfer = std::make_unique<Transfer>();
  transfer->request = std::move(command.request);
  transfer->listener = std::move(command.listener);
  transfer->last_byte = std::chrono::steady_clock::now();
  transfer->dead_after_ms = static_cast<int>(options_.dead_after.count());
  transfer->easy = curl_easy_init();
  Transfer& begun = *transfer;
  const auto it = transfers_.emplace(command.id, std::move(transfer)).first;
  if (begun.easy != nullptr) SetUp(begun);
  if (begun.easy == nullptr || curl_multi_add_handle(multi_, begun.easy) != CURLM_OK) {
    End(it, {HttpFault::kOther, Failed(begun, StatusCode::kInternal, "cannot start")});
  }
}

void HttpTransport::Loop::End(Transfers::iterator it, const HttpEnd& end) {
  const std::unique_ptr<Transfer> transfer = std::move(it->second);
  transfers_.erase(it);
  if (transfer->easy != nullptr) curl_multi_remove_handle(multi_, transfer->easy);
  transfer->listener->OnEnd(end);
}

bool HttpTransport::Loop::Obey() {
  std::vector<Command> commands;
  bool stopping = false;
  {
    MutexLock lock(mu_);
    commands.swap(commands_);
    stopping = stopping_;
  }
  for (Command& command : commands) {
    if (command.listener != nullptr) {
      Begin(std::move(command));
      continue;
    }
    const auto it = transfers_.find(command.id);
    if (it == transfers_.end()) continue;
    if (command.cancel) {
      curl_multi_remove_handle(multi_, it->second->easy);
      transfers_.erase(it);
    } else if (it->second->paused) {
      it->second->paused = false;
      it->second->last_byte = std::chrono::steady_clock::now();
      curl_easy_pause(it->second->easy, CURLPAUSE_CONT);
    }
  }
  return !stopping;
}

void HttpTransport::Loop::Collect() {
  int left = 0;
  while (CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;
    const auto it = std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& entry) {
      return entry.second->easy == message->easy_handle;
    });
    if (it == transfers_.end()) continue;
    const Transfer& transfer = *it->second;
    HttpEnd end;
    end.fault = transfer.head_too_long ? HttpFault::kOther : FaultOf(code);
    // libcurl takes the end of a connection for the end of a head.
    const bool half_head = end.fault == HttpFault::kNone && transfer.head.code == 0;
    if (half_head) end.fault = HttpFault::kBroken;
    if (end.fault != HttpFault::kNone) {
      std::string why =
          transfer.error[0] != '\0' ? transfer.error.data() : curl_easy_strerror(code);
      if (transfer.head_too_long) why = "the head of the answer is longer than 256 KiB";
      if (half_head) why = "the answer ended inside its head";
      if (end.fault == HttpFault::kStopped) why = "ended by the reader";
      const StatusCode status = end.fault == HttpFault::kTooLate ? StatusCode::kDeadlineExceeded
                                                                 : StatusCode::kUnavailable;
      end.status = Failed(transfer, status, why);
    }
    End(it, end);
  }
}

// How long until the next transfer has been silent for too long.
std::chrono::milliseconds HttpTransport::Loop::EndSilent() {
  const SteadyTime now = std::chrono::steady_clock::now();
  std::chrono::milliseconds next = kLongestPoll;
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const auto at = it++;
    const Transfer& transfer = *at->second;
    if (transfer.paused || transfer.request.silence.count() == 0) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        transfer.last_byte + transfer.request.silence - now);
    if (left.count() > 0) {
      next = std::min(next, left + std::chrono::milliseconds(1));
      continue;
    }
    End(at, {HttpFault::kTooLate,
             Failed(transfer, StatusCode::kDeadlineExceeded,
                    "no byte for " + std::to_string(transfer.request.silence.count()) + " ms")});
  }
  return next;
}

void HttpTransport::Loop::Run() {
  // OpenSSL writes to sockets without MSG_NOSIGNAL, and signals are the main thread's.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (Obey()) {
    int running = 0;
    curl_multi_perform(multi_, &running);
    Collect();
    const std::chrono::milliseconds wait = EndSilent();
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(wait.count()), nullptr);
  }
  while (!transfers_.empty()) End(transfers_.begin(), {HttpFault::kStopped, ClosedStatus()});
}

HttpTransport::HttpTransport(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
HttpTransport::~HttpTransport() = default;

Result<std::unique_ptr<HttpTransport>> HttpTransport::Create(Options options) {
  static const CURLcode global = curl_global_init(CURL_GLOBAL_DEFAULT);
  KVF_ASSIGN_OR_RETURN(ServerUrl url, ParseServerUrl(options.server));
  CURLM* multi = global == CURLE_OK ? curl_multi_init() : nullptr;
  if (multi == nullptr) return Internal("api client: libcurl cannot start");
  return std::unique_ptr<HttpTransport>(
      new HttpTransport(std::make_unique<Loop>(std::move(options), std::move(url), multi)));
}

Result<std::uint64_t> HttpTransport::Start(HttpRequest request,
                                           std::shared_ptr<HttpListener> listener) {
  return loop_->Start(std::move(request), std::move(listener));
}

HttpAnswer HttpTransport::Call(HttpRequest request) {
  auto collector = std::make_shared<BodyCollector>(loop_->options().max_body_bytes);
  const Result<std::uint64_t> started = loop_->Start(std::move(request), collector);
  if (!started.ok()) return {{}, {}, {HttpFault::kStopped, started.status()}};
  return collector->Wait();
}

void HttpTransport::Resume(std::uint64_t transfer) { loop_->Tell(transfer, false); }
void HttpTransport::Cancel(std::uint64_t transfer) { loop_->Tell(transfer, true); }
void HttpTransport::Stop() { loop_->Stop(); }

}  // namespace kvfabric::kube
