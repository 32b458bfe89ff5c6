#include "tests/operator/scripted_api_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include "common/check.h"

namespace kvfabric::kube {
namespace {

constexpr std::chrono::seconds kPatience{10};

template <typename T, typename Read>
T* ReadPem(const std::string& pem, Read read) {
  BIO* bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  T* out = read(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  KVF_CHECK(out != nullptr, "a test's PEM text cannot be read");
  return out;
}

SSL_CTX* MakeContext(const ScriptedApiServer::Tls& tls) {
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  X509* certificate = ReadPem<X509>(tls.certificate, PEM_read_bio_X509);
  EVP_PKEY* key = ReadPem<EVP_PKEY>(tls.key, PEM_read_bio_PrivateKey);
  SSL_CTX_use_certificate(context, certificate);
  SSL_CTX_use_PrivateKey(context, key);
  X509_free(certificate);
  EVP_PKEY_free(key);
  if (!tls.client_ca.empty()) {
    X509* authority = ReadPem<X509>(tls.client_ca, PEM_read_bio_X509);
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority);
    X509_free(authority);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return context;
}

std::string Lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return text;
}

}  // namespace

void ScriptedApiServer::Connection::Answer(int code, std::string_view body,
                                           std::string_view headers) {
  std::string text = "HTTP/1.1 " + std::to_string(code) + " Said\r\n";
  if (headers.find("Content-Type") == std::string_view::npos) {
    text += "Content-Type: application/json\r\n";
  }
  text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  Write(text.append(headers).append("\r\n").append(body));
}

void ScriptedApiServer::Connection::StartChunks(int code, std::string_view headers) {
  std::string text = "HTTP/1.1 " + std::to_string(code) + " Said\r\n";
  text += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n";
  Write(text.append(headers).append("\r\n"));
}

void ScriptedApiServer::Connection::Chunk(std::string_view bytes) {
  std::array<char, 32> size{};
  std::snprintf(size.data(), size.size(), "%zx\r\n", bytes.size());
  Write(std::string(size.data()).append(bytes).append("\r\n"));
}

class ScriptedApiServer::Peer final : public Connection {
 public:
  Peer(int fd, SSL_CTX* context) : fd_(fd) {
    const int on = 1;  // pieces are to arrive as pieces
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (context == nullptr) return;
    ssl_ = SSL_new(context);
    SSL_set_fd(ssl_, fd);
    alive_ = SSL_accept(ssl_) == 1;
  }
  ~Peer() override { SSL_free(ssl_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void Write(std::string_view bytes) override {
    while (alive_ && !bytes.empty()) {
      const ssize_t size = ssl_ != nullptr
                               ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
                               : ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      alive_ = size > 0;
      if (alive_) bytes.remove_prefix(static_cast<std::size_t>(size));
    }
  }
  void Stall() override {
    while (alive_ && Fill()) {
    }
    alive_ = false;
  }
  void HangUp() override {
    ::shutdown(fd_, SHUT_RDWR);
    alive_ = false;
  }
  void Reset() override {
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    reset_ = true;
    alive_ = false;
  }
  bool alive() const { return alive_; }
  bool reset() const { return reset_; }

  bool Read(Request* request) {
    std::size_t end = std::string::npos;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill()) return false;
    }
    const std::string head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    std::size_t line = head.find("\r\n");
    const std::string first = head.substr(0, line);
    request->method = first.substr(0, first.find(' '));
    const std::size_t target = first.find(' ') + 1;
    request->target = first.substr(target, first.find(' ', target) - target);
    while (line + 2 < head.size()) {
      const std::size_t next = head.find("\r\n", line + 2);
      const std::string text = head.substr(line + 2, next - line - 2);
      const std::size_t colon = text.find(": ");
      if (colon != std::string::npos) {
        request->headers[Lower(text.substr(0, colon))] = text.substr(colon + 2);
      }
      line = next;
    }
    const auto length = request->headers.find("content-length");
    const std::size_t size = length == request->headers.end() ? 0 : std::stoul(length->second);
    while (buffer_.size() < size) {
      if (!Fill()) return false;
    }
    request->body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return true;
  }

 private:
  bool Fill() {
    std::array<char, 4096> bytes{};
    const ssize_t size = ssl_ != nullptr ? SSL_read(ssl_, bytes.data(), bytes.size())
                                         : ::recv(fd_, bytes.data(), bytes.size(), 0);
    if (size <= 0) return false;
    buffer_.append(bytes.data(), static_cast<std::size_t>(size));
    return true;
  }

  const int fd_;
  SSL* ssl_ = nullptr;
  bool alive_ = true;
  bool reset_ = false;
  std::string buffer_;
};

ScriptedApiServer::ScriptedApiServer(Script script, Tls tls)
    : script_(std::move(script)), tls_(std::move(tls)) {
  if (!tls_.certificate.empty()) context_ = MakeContext(tls_);
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  KVF_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                ::listen(listener_, 64) == 0 &&
                ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0,
            "cannot listen on loopback");
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

ScriptedApiServer::~ScriptedApiServer() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    for (const auto& [number, fd] : open_) ::shutdown(fd, SHUT_RDWR);
  }
  acceptor_.join();
  {
    MutexLock lock(mu_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  ::close(listener_);
  SSL_CTX_free(static_cast<SSL_CTX*>(context_));
}

std::string ScriptedApiServer::url() const {
  return (context_ != nullptr ? "https://127.0.0.1:" : "http://127.0.0.1:") + std::to_string(port_);
}

void ScriptedApiServer::Accept() {
  for (;;) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    MutexLock lock(mu_);
    if (stopping_) {
      ::close(fd);
      return;
    }
    const std::uint64_t number = ++connections_;
    open_[number] = fd;
    threads_.emplace_back([this, fd, number] { Serve(fd, number); });
  }
}

void ScriptedApiServer::Serve(int fd, std::uint64_t number) {
  sigset_t pipe;  // OpenSSL writes without MSG_NOSIGNAL
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  {
    Peer peer(fd, static_cast<SSL_CTX*>(context_));
    Request request;
    request.connection = number;
    while (peer.alive() && peer.Read(&request)) {
      {
        MutexLock lock(mu_);
        request.number = requests_.size() + 1;
        requests_.push_back(request);
        changed_.NotifyAll();
      }
      script_(request, peer);
      request.headers.clear();
    }
  }
  MutexLock lock(mu_);
  open_.erase(number);
  ::close(fd);
  ++ended_;
  changed_.NotifyAll();
}

std::vector<ScriptedApiServer::Request> ScriptedApiServer::requests() const {
  MutexLock lock(mu_);
  return requests_;
}

bool ScriptedApiServer::WaitForRequests(std::size_t count) const {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(mu_);
  while (requests_.size() < count) {
    if (!changed_.WaitUntil(mu_, deadline)) return false;
  }
  return true;
}

bool ScriptedApiServer::WaitForEnds(std::size_t count) const {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(mu_);
  while (ended_ < count) {
    if (!changed_.WaitUntil(mu_, deadline)) return false;
  }
  return true;
}

}  // namespace kvfabric::kube
