#include "tests/fakes/scripted_agent.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/checksum.h"
#include "transport/frame_connection.h"
#include "transport/local_messages.h"
#include "transport/plain_stream.h"

namespace kvfabric {

namespace {

constexpr std::uint64_t kAlign = 256;

// Memory of the agent as its clients see it: sealed, mapped writable here only.
class AgentMemory {
 public:
  AgentMemory(std::uint64_t id, std::uint64_t bytes) : id_(id), bytes_(bytes) {
    UniqueFd fd(::memfd_create("scripted-agent", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    KVF_CHECK(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0, "size of a memfd");
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    KVF_CHECK(at != MAP_FAILED, "map of a memfd");
    KVF_CHECK(
        ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0,
        "seals of a memfd");
    base_ = static_cast<std::byte*>(at);
    fd_ = std::make_shared<const UniqueFd>(std::move(fd));
  }
  ~AgentMemory() { ::munmap(base_, bytes_); }
  AgentMemory(const AgentMemory&) = delete;
  AgentMemory& operator=(const AgentMemory&) = delete;

  std::uint64_t id() const { return id_; }
  std::uint64_t bytes() const { return bytes_; }
  std::byte* at(std::uint64_t offset) { return base_ + offset; }
  const std::shared_ptr<const UniqueFd>& fd() const { return fd_; }
  // nullopt when full.
  std::optional<std::uint64_t> Take(std::uint64_t bytes) {
    if (bytes_ - used_ < bytes) return std::nullopt;
    const std::uint64_t offset = used_;
    used_ = std::min(bytes_, (used_ + bytes + kAlign - 1) / kAlign * kAlign);
    return offset;
  }

 private:
  const std::uint64_t id_;
  const std::uint64_t bytes_;
  std::byte* base_ = nullptr;
  std::shared_ptr<const UniqueFd> fd_;
  std::uint64_t used_ = 0;
};

struct StoredBlock {
  std::shared_ptr<AgentMemory> memory;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t checksum = 0;
  std::string metadata;
  ByteSpan bytes() const { return {memory->at(offset), length}; }
};

std::string StoreKey(Lane lane, std::string_view key) {
  return std::to_string(lane.group) + "." + std::to_string(lane.rank) + "." + std::string(key);
}

}  // namespace

struct ScriptedAgent::State {
  std::uint64_t next_memfd = 1;
  std::vector<std::shared_ptr<AgentMemory>> memory;
  std::map<std::string, StoredBlock> blocks;
  std::string pool;
  std::map<FrameOp, Script> scripts;
  std::vector<std::shared_ptr<Exchange>> held;
  std::map<FrameOp, std::uint64_t> received;
  std::map<std::uint64_t, std::size_t> unmapped;
  std::map<std::uint64_t, const Connection*> leases;
  std::uint64_t next_lease = 1;
  std::set<std::shared_ptr<Connection>> connections;
};

// Lives on the agent's loop.
class ScriptedAgent::Connection final : public FrameHandler,
                                        public std::enable_shared_from_this<Connection> {
 public:
  Connection(ScriptedAgent& agent, bool local, UniqueFd raw)
      : agent_(agent), state_(*agent.state_), local_(local), raw_(std::move(raw)) {}
  ~Connection() override {
    if (staging_ != nullptr) ::munmap(staging_, staging_bytes_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Attach(std::shared_ptr<FrameConnection> frames) { frames_ = std::move(frames); }
  void Close() {
    if (frames_ != nullptr) frames_->Close(Cancelled("scripted agent: closes"));
  }

  Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override {
    ++state_.received[frame.header.op];
    broken_ = false;
    if (frame.header.reply()) {
      const auto closed = wire::Decode<wire::CloseMemfd>(frame.body);
      if (closed.ok()) ++state_.unmapped[closed->id];
      return Status::Ok();
    }
    if (!frame.descriptors.empty()) staging_fd_ = std::move(frame.descriptors.front());
    waiting_header_ = frame.header;
    waiting_body_.assign(AsText(frame.body));
    waiting_payload_.assign(frame.header.payload_bytes, '\0');
    if (frame.header.payload_bytes > 0) {
      parts.push_back(
          {reinterpret_cast<std::byte*>(waiting_payload_.data()), waiting_payload_.size()});
      return Status::Ok();
    }
    Handle();
    return Status::Ok();
  }
  Status OnPayload(const std::vector<std::uint64_t>& checksums) override {
    broken_ = checksums.at(0) != waiting_header_.payload_checksum;
    Handle();
    return Status::Ok();
  }
  void OnClosed(const Status& /*why*/) override {
    frames_ = nullptr;
    raw_.reset();  // or the socket would stay open
    std::erase_if(state_.leases, [this](const auto& lease) { return lease.second == this; });
    state_.connections.erase(shared_from_this());
  }

  void Answer(const Exchange& request);
  void Reply(const FrameHeader& request, std::string body, std::uint8_t flags,
             std::string payload) {
    if (frames_ == nullptr) return;
    OutgoingFrame frame;
    frame.header.op = request.op;
    frame.header.flags = static_cast<std::uint8_t>(kFrameReply | flags);
    frame.header.request_id = request.request_id;
    frame.header.boot_epoch = agent_.options_.boot_epoch;
    frame.header.map_epoch = agent_.options_.map_epoch;
    frame.body = std::move(body);
    if (!payload.empty()) {
      const auto owner = std::make_shared<const std::string>(std::move(payload));
      frame.payload.push_back(AsBytes(*owner));
      frame.payload_owner = owner;
    }
    frames_->Send(std::move(frame));
  }
  void Fail(const FrameHeader& request, const Status& status) {
    if (frames_ == nullptr) return;
    frames_->SendError(request, status, agent_.options_.boot_epoch);
    if (request.op == FrameOp::kHello) frames_->CloseAfterFlush(status);
  }
  void WriteRaw(const std::string& bytes) {
    static_cast<void>(!::send(raw_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  void SendMemfds(std::size_t from);
  void AskToUnmap(std::uint64_t id) {
    if (frames_ == nullptr) return;
    OutgoingFrame frame;
    frame.header.op = FrameOp::kCloseMemfd;
    frame.body = wire::Encode(wire::CloseMemfd{id});
    frames_->Send(std::move(frame));
  }

 private:
  void Handle() {
    const std::shared_ptr<Exchange> exchange(new Exchange(
        shared_from_this(), waiting_header_, waiting_body_, std::exchange(waiting_payload_, {})));
    const auto script = state_.scripts.find(waiting_header_.op);
    if (script != state_.scripts.end()) {
      const Script run = script->second;  // it may set another
      run(exchange);
    } else {
      Answer(*exchange);
    }
  }
  void Hello(const Exchange& request);
  void Stage(const Exchange& request);
  void Lookup(const Exchange& request);
  void Get(const Exchange& request);
  void Put(const Exchange& request);
  void PutInline(const Exchange& request);
  void Delete(const Exchange& request);
  void Release(const Exchange& request);
  void Renew(const Exchange& request);
  std::uint64_t Grant() {
    state_.leases[state_.next_lease] = this;
    return state_.next_lease++;
  }
  wire::PutOutcome Store(Lane lane, const std::string& key, ByteSpan from, std::string metadata);

  ScriptedAgent& agent_;
  State& state_;
  const bool local_;
  UniqueFd raw_;
  std::shared_ptr<FrameConnection> frames_;
  NamespaceKind kind_ = NamespaceKind::kChain;
  UniqueFd staging_fd_;
  std::byte* staging_ = nullptr;
  std::uint64_t staging_bytes_ = 0;
  FrameHeader waiting_header_;
  std::string waiting_body_;
  std::string waiting_payload_;
  bool broken_ = false;
};

void ScriptedAgent::Connection::Answer(const Exchange& request) {
  switch (request.header.op) {
    case FrameOp::kHello:
      return Hello(request);
    case FrameOp::kStaging:
      return Stage(request);
    case FrameOp::kLookup:
      return Lookup(request);
    case FrameOp::kGet:
      return Get(request);
    case FrameOp::kPut:
      return Put(request);
    case FrameOp::kPutInline:
      return PutInline(request);
    case FrameOp::kDelete:
      return Delete(request);
    case FrameOp::kRelease:
      return Release(request);
    case FrameOp::kRenew:
      return Renew(request);
    case FrameOp::kStat:
      return Reply(request.header,
                   wire::Encode(wire::StatReply{
                       {{state_.pool, 1U << 20U, 17, state_.blocks.size(), 3, 7, {{"puts", 5}}}}}),
                   0, {});
    default:
      return Reply(request.header, {}, 0, {});
  }
}

void ScriptedAgent::Connection::Hello(const Exchange& request) {
  const auto hello = wire::Decode<wire::HelloRequest>(AsBytes(request.body));
  if (!hello.ok()) return Fail(request.header, hello.status());
  if (hello->token != agent_.options_.token) {
    return Fail(request.header, Unauthenticated("HELLO: unknown token"));
  }
  if (!hello->pool.empty() && hello->pool != state_.pool) {
    return Fail(request.header, NotFound("pool " + hello->pool + ": not known here"));
  }
  kind_ = hello->kind;
  wire::HelloReply reply;
  reply.lease_ms = 10'000;
  reply.pool_uid = "uid";
  OutgoingFrame frame;
  const std::size_t first =
      local_ ? std::min(state_.memory.size(), kMaxDescriptorsPerWrite) : std::size_t{0};
  for (std::size_t i = 0; i < first; ++i) {
    reply.memfds.push_back({state_.memory[i]->id(), state_.memory[i]->bytes()});
    frame.descriptors.push_back(state_.memory[i]->fd());
  }
  frame.header.op = FrameOp::kHello;
  frame.header.flags = kFrameReply;
  frame.header.request_id = request.header.request_id;
  frame.header.boot_epoch = agent_.options_.boot_epoch;
  frame.header.map_epoch = agent_.options_.map_epoch;
  frame.body = wire::Encode(reply);
  if (frames_ != nullptr) frames_->Send(std::move(frame));
  if (local_) SendMemfds(first);
}

void ScriptedAgent::Connection::SendMemfds(std::size_t from) {
  while (frames_ != nullptr && local_ && from < state_.memory.size()) {
    const std::size_t end = std::min(from + kMaxDescriptorsPerWrite, state_.memory.size());
    wire::NewMemfd message;
    OutgoingFrame frame;
    frame.header.op = FrameOp::kNewMemfd;
    for (; from < end; ++from) {
      message.memfds.push_back({state_.memory[from]->id(), state_.memory[from]->bytes()});
      frame.descriptors.push_back(state_.memory[from]->fd());
    }
    frame.body = wire::Encode(message);
    frames_->Send(std::move(frame));
  }
}

void ScriptedAgent::Connection::Stage(const Exchange& request) {
  const auto message = wire::Decode<wire::StagingRequest>(AsBytes(request.body));
  const int seals = ::fcntl(staging_fd_.get(), F_GET_SEALS);
  if (!message.ok() || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Fail(request.header, InvalidArgument("STAGING: no sealed memory"));
  }
  staging_bytes_ = message->size_bytes;
  void* at = ::mmap(nullptr, staging_bytes_, PROT_READ, MAP_SHARED, staging_fd_.get(), 0);
  KVF_CHECK(at != MAP_FAILED, "map of staging memory");
  staging_ = static_cast<std::byte*>(at);
  Reply(request.header, {}, 0, {});
}

void ScriptedAgent::Connection::Lookup(const Exchange& request) {
  const auto message = wire::Decode<wire::LookupRequest>(AsBytes(request.body));
  if (!message.ok()) return Fail(request.header, message.status());
  wire::LookupReply reply;
  reply.lease_ms = 10'000;
  for (const std::string& key : message->range.keys) {
    const bool yes = std::all_of(message->lanes.begin(), message->lanes.end(), [&](Lane lane) {
      return state_.blocks.contains(StoreKey(lane, key));
    });
    if (kind_ == NamespaceKind::kSingle) {
      reply.found.push_back(yes);
    } else if (!yes) {
      break;
    }
    reply.hits += yes ? 1 : 0;
  }
  reply.local = reply.hits;
  if (reply.hits < message->range.keys.size()) reply.miss_reason = wire::LookupMiss::kNotFound;
  if (reply.hits > 0) reply.lease_id = Grant();
  Reply(request.header, wire::Encode(reply), 0, {});
}

void ScriptedAgent::Connection::Get(const Exchange& request) {
  const auto message = wire::Decode<wire::GetRequest>(AsBytes(request.body));
  if (!message.ok()) return Fail(request.header, message.status());
  wire::GetReply part;
  part.lease_id = message->lease_id != 0 || !local_ ? message->lease_id : Grant();
  const std::size_t count = message->range.keys.size();
  std::string payload;
  for (std::size_t i = 0; i < count; ++i) {
    wire::GetEntry entry;
    const auto found = state_.blocks.find(StoreKey(message->lane, message->range.keys[i]));
    if (found != state_.blocks.end()) {
      const StoredBlock& block = found->second;
      entry = {.place = local_ ? wire::GetPlace::kMemfd : wire::GetPlace::kInline,
               .from_peer = false,
               .memfd_id = block.memory->id(),
               .offset = block.offset,
               .length = block.length,
               .checksum = block.checksum,
               .metadata = block.metadata};
      if (!local_) payload.append(AsText(block.bytes()));
    }
    part.entries.push_back(std::move(entry));
    const bool last = i + 1 == count;
    if (!last && part.entries.size() < agent_.options_.entries_per_part) continue;
    Reply(request.header, wire::Encode(part), last ? std::uint8_t{0} : kFrameMore,
          std::exchange(payload, {}));
    part.first_index = static_cast<std::uint32_t>(i + 1);
    part.entries.clear();
  }
}

wire::PutOutcome ScriptedAgent::Connection::Store(Lane lane, const std::string& key, ByteSpan from,
                                                  std::string metadata) {
  const std::string name = StoreKey(lane, key);
  if (state_.blocks.contains(name)) return wire::PutOutcome::kAlreadyExists;
  for (auto memory = state_.memory.rbegin(); memory != state_.memory.rend(); ++memory) {
    const auto offset = (*memory)->Take(from.size());
    if (!offset) continue;
    StoredBlock block{*memory, *offset, from.size(), 0, std::move(metadata)};
    block.checksum = CopyAndChecksum({(*memory)->at(*offset), from.size()}, from);
    state_.blocks.emplace(name, std::move(block));
    return wire::PutOutcome::kOk;
  }
  return wire::PutOutcome::kNoSpace;
}

void ScriptedAgent::Connection::Put(const Exchange& request) {
  auto message = wire::Decode<wire::PutRequest>(AsBytes(request.body));
  if (!message.ok()) return Fail(request.header, message.status());
  wire::PutReply reply;
  for (std::size_t i = 0; i < message->entries.size(); ++i) {
    wire::PutEntry& entry = message->entries[i];
    if (staging_ == nullptr || entry.offset > staging_bytes_ ||
        entry.length > staging_bytes_ - entry.offset) {
      return Fail(request.header, InvalidArgument("PUT: outside the staging memory"));
    }
    reply.status.push_back(Store(message->lane, message->range.keys[i],
                                 {staging_ + entry.offset, entry.length},
                                 std::move(entry.metadata)));
    reply.copies.push_back(reply.status.back() == wire::PutOutcome::kOk ? 1 : 0);
  }
  Reply(request.header, wire::Encode(reply), 0, {});
}

void ScriptedAgent::Connection::PutInline(const Exchange& request) {
  auto message = wire::Decode<wire::PutInlineRequest>(AsBytes(request.body));
  if (!message.ok()) return Fail(request.header, message.status());
  const wire::PutOutcome status = broken_ ? wire::PutOutcome::kChecksumMismatch
                                          : Store(message->lane, message->range.keys.front(),
                                                  AsBytes(request.payload_), message->metadata);
  Reply(request.header, wire::Encode(wire::PutReply{{status}, {1}}), 0, {});
}

void ScriptedAgent::Connection::Delete(const Exchange& request) {
  const auto message = wire::Decode<wire::DeleteRequest>(AsBytes(request.body));
  if (!message.ok()) return Fail(request.header, message.status());
  wire::DeleteReply reply;
  for (const std::string& key : message->range.keys) {
    reply.deleted += static_cast<std::uint32_t>(state_.blocks.erase(StoreKey(message->lane, key)));
  }
  Reply(request.header, wire::Encode(reply), 0, {});
}

void ScriptedAgent::Connection::Release(const Exchange& request) {
  const auto message = wire::Decode<wire::ReleaseRequest>(AsBytes(request.body));
  if (!message.ok()) return;
  for (const std::uint64_t id : message->lease_ids) state_.leases.erase(id);
}

void ScriptedAgent::Connection::Renew(const Exchange& request) {
  const auto message = wire::Decode<wire::RenewRequest>(AsBytes(request.body));
  const bool known = message.ok() && state_.leases.contains(message->lease_id);
  Reply(request.header, wire::Encode(wire::RenewReply{known, known ? 10'000U : 0U}), 0, {});
}

void ScriptedAgent::Exchange::AnswerProperly() { connection_->Answer(*this); }
void ScriptedAgent::Exchange::Reply(std::string reply_body, std::uint8_t more_flags,
                                    std::string payload) {
  connection_->Reply(header, std::move(reply_body), more_flags, std::move(payload));
}
void ScriptedAgent::Exchange::Fail(const Status& status) { connection_->Fail(header, status); }
void ScriptedAgent::Exchange::WriteRaw(const std::string& bytes) { connection_->WriteRaw(bytes); }
void ScriptedAgent::Exchange::HangUp() { connection_->Close(); }

ScriptedAgent::ScriptedAgent(Options options)
    : options_(std::move(options)), state_(std::make_unique<State>()) {
  auto loop = EventLoop::Create({.name = "scripted-agent"});
  KVF_CHECK(loop.ok(), "cannot make a loop");
  loop_ = std::move(*loop);
  state_->pool = options_.pool;
  AddMemfds(options_.memfds);
  const auto listen = [this](const SocketAddress& address) {
    auto listener = Listener::Listen(
        *loop_, {.address = address}, [this, local = address.is_unix()](UniqueFd fd, std::string) {
          UniqueFd raw(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
          auto connection = std::make_shared<Connection>(*this, local, std::move(raw));
          FrameConnection::Options frame_options;
          frame_options.limits.max_descriptors = local ? 1 : 0;
          state_->connections.insert(connection);
          auto frames = FrameConnection::Start(
              *loop_, std::make_unique<PlainStream>(std::move(fd), "client", local), frame_options,
              connection);
          if (frames.ok()) connection->Attach(std::move(*frames));
        });
    KVF_CHECK(listener.ok(), "cannot listen");
    return std::move(*listener);
  };
  if (!options_.socket_path.empty()) {
    auto address = SocketAddress::Unix(options_.socket_path);
    KVF_CHECK(address.ok(), "bad path");
    unix_ = listen(*address);
  }
  if (options_.tcp) {
    auto address = SocketAddress::Tcp("127.0.0.1", options_.tcp_port);
    KVF_CHECK(address.ok(), "bad port");
    tcp_ = listen(*address);
  }
}

ScriptedAgent::~ScriptedAgent() {
  Thaw();
  unix_.reset();
  tcp_.reset();
  loop_->Stop();
  state_->held.clear();
}

std::string ScriptedAgent::tcp_endpoint() const { return tcp_->address().ToString(); }
std::uint16_t ScriptedAgent::tcp_port() const { return tcp_->address().port(); }

void ScriptedAgent::Ask(const std::function<void()>& task) {
  KVF_CHECK(loop_->RunSync(task), "the agent's loop has stopped");
}

void ScriptedAgent::On(FrameOp op, Script script) {
  Ask([&] {
    if (script) {
      state_->scripts[op] = std::move(script);
    } else {
      state_->scripts.erase(op);
    }
  });
}

void ScriptedAgent::Hold(FrameOp op) {
  On(op, [this](const std::shared_ptr<Exchange>& exchange) { state_->held.push_back(exchange); });
}

void ScriptedAgent::AnswerHeld() {
  Ask([&] {
    for (const auto& exchange : std::exchange(state_->held, {})) {
      state_->scripts.erase(exchange->header.op);
      exchange->AnswerProperly();
    }
  });
}

void ScriptedAgent::Delay(FrameOp op, std::function<std::chrono::milliseconds()> by) {
  On(op, [this, by = std::move(by)](const std::shared_ptr<Exchange>& exchange) {
    loop_->RunAfter(by(), [exchange] { exchange->AnswerProperly(); });
  });
}

void ScriptedAgent::SetPool(std::string pool) {
  Ask([&] { state_->pool = std::move(pool); });
}

void ScriptedAgent::Freeze() {
  {
    MutexLock lock(mu_);
    frozen_ = true;
  }
  KVF_CHECK(loop_->Submit([this] {
    MutexLock lock(mu_);
    while (frozen_) thawed_.Wait(mu_);
  }),
            "the agent's loop has stopped");
}

void ScriptedAgent::Thaw() {
  MutexLock lock(mu_);
  frozen_ = false;
  thawed_.NotifyAll();
}

void ScriptedAgent::CloseConnections() {
  Ask([&] {
    const auto all = state_->connections;
    for (const auto& connection : all) connection->Close();
  });
}

std::uint64_t ScriptedAgent::Count(const std::function<std::uint64_t()>& of) {
  std::uint64_t count = 0;
  Ask([&] { count = of(); });
  return count;
}

std::uint64_t ScriptedAgent::held() {
  return Count([&] { return state_->held.size(); });
}
std::uint64_t ScriptedAgent::connections() {
  return Count([&] { return state_->connections.size(); });
}
std::uint64_t ScriptedAgent::leases() {
  return Count([&] { return state_->leases.size(); });
}
std::uint64_t ScriptedAgent::blocks() {
  return Count([&] { return state_->blocks.size(); });
}
std::uint64_t ScriptedAgent::received(FrameOp op) {
  return Count([&] { return state_->received[op]; });
}
std::uint64_t ScriptedAgent::unmapped(std::uint64_t id) {
  return Count([&] { return state_->unmapped[id]; });
}

void ScriptedAgent::CorruptBlocks() {
  Ask([&] {
    for (auto& [name, block] : state_->blocks) {
      *block.memory->at(block.offset + block.length / 2) ^= std::byte{1};
    }
  });
}

void ScriptedAgent::AddMemfds(std::size_t count) {
  Ask([&] {
    const std::size_t before = state_->memory.size();
    for (std::size_t i = 0; i < count; ++i) {
      state_->memory.push_back(
          std::make_shared<AgentMemory>(state_->next_memfd++, options_.memfd_bytes));
    }
    for (const auto& connection : state_->connections) connection->SendMemfds(before);
  });
}

std::vector<std::uint64_t> ScriptedAgent::memfd_ids() {
  std::vector<std::uint64_t> ids;
  Ask([&] {
    for (const auto& memory : state_->memory) ids.push_back(memory->id());
  });
  return ids;
}

void ScriptedAgent::CloseMemfd(std::uint64_t id) {
  Ask([&] {
    for (const auto& connection : state_->connections) connection->AskToUnmap(id);
  });
}

}  // namespace kvfabric
