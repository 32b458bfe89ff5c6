#include "tests/fakes/memory_peer_link.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "common/checksum.h"
#include "common/mutex.h"

namespace kvfabric {

// A call from when it is posted until nothing of it is left: its task may hold the sender's blocks.
struct MemoryNetwork::Flight {
  Flight(Core& c, std::string f, Task t) : core(c), from(std::move(f)), task(std::move(t)) {}
  ~Flight();
  Flight(const Flight&) = delete;  // counted
  Flight& operator=(const Flight&) = delete;

  Core& core;
  const std::string from;
  Task task;
};

struct MemoryNetwork::Node {
  PeerIdentity identity;
  PeerHandler* handler = nullptr;
  std::uint16_t port = 0;
  bool killed = false;
  bool stopped = false;
  Clock::TimePoint stopped_at{};
  std::size_t inside = 0;                     // calls in the handler
  std::vector<std::shared_ptr<Flight>> held;  // calls that wait for Resume
  std::vector<Task> late;                     // announcements to deliver after the next
  std::vector<std::weak_ptr<Link>> to_it;
};

struct MemoryNetwork::Core {
  explicit Core(const Clock& c) : clock(c), timer(c), pool("memory-net", 3, 1U << 20U) {}

  std::shared_ptr<Node> Find(const std::string& name) REQUIRES(mu) {
    const auto found = nodes.find(name);
    return found == nodes.end() ? nullptr : found->second;
  }
  void Leave(const std::shared_ptr<Node>& node) {
    MutexLock lock(mu);
    if (--node->inside == 0) left.NotifyAll();
  }
  // When `from` is killed, no task of its calls may outlive its memory.
  void Run(std::shared_ptr<Flight> flight) {
    static_cast<void>(pool.Submit([flight = std::move(flight)] { flight->task(); }));
  }
  void Count(const std::string& name) {
    MutexLock lock(mu);
    ++counts[name];
  }

  const Clock& clock;
  Mutex mu;
  CondVar left;
  std::map<std::string, std::size_t> flights GUARDED_BY(mu);  // by sender
  std::map<std::string, std::shared_ptr<Node>> nodes GUARDED_BY(mu);
  std::set<std::pair<std::string, std::uint64_t>> dead GUARDED_BY(mu);  // name, boot epoch
  std::map<std::string, std::uint64_t> counts GUARDED_BY(mu);
  std::map<std::string, std::unique_ptr<Connector>> connectors GUARDED_BY(mu);
  std::function<AnnounceFault()> fault GUARDED_BY(mu);
  Timer timer;
  WorkerPool pool;  // last: its threads end first
};

MemoryNetwork::Flight::~Flight() {
  task = nullptr;
  MutexLock lock(core.mu);
  if (--core.flights[from] == 0) core.left.NotifyAll();
}

// One link: a session at the peer's handler while both live.
class MemoryNetwork::Link : public std::enable_shared_from_this<Link> {
 public:
  Link(Core& core, PeerIdentity from) : core_(&core), from_(std::move(from)) {}

  void Open(const PeerAddress& address) {
    std::shared_ptr<Node> node;
    {
      MutexLock lock(core_->mu);
      node = core_->Find(address.node_name);
      const bool right = node != nullptr && !node->killed && node->port == address.grpc_port &&
                         node->identity.agent_uid == address.agent_uid;
      if (!right) return;
      ++node->inside;
      node->to_it.push_back(weak_from_this());
    }
    const auto session = node->handler->OnSessionOpen(from_);
    {
      MutexLock lock(mu_);
      node_ = node;
      session_ = session;
    }
    core_->Leave(node);
  }

  // Ends the session; every call under way fails.
  void Close(bool tell) {
    std::map<std::uint64_t, std::function<void(Status)>> pending;
    std::shared_ptr<Node> node;
    PeerHandler::SessionId session = 0;
    {
      MutexLock lock(mu_);
      pending.swap(pending_);
      node = std::exchange(node_, nullptr);
      session = session_;
    }
    for (auto& [id, fail] : pending) fail(Unavailable("memory link: closed"));
    if (node == nullptr || !tell) return;
    {
      MutexLock lock(core_->mu);  // the peer hears of it even if we were killed
      if (node->killed) return;
      ++node->inside;
    }
    node->handler->OnSessionClosed(session);
    core_->Leave(node);
  }

  bool up() const {
    const std::shared_ptr<Node> node = NodeNow();
    if (node == nullptr) return false;
    MutexLock lock(core_->mu);
    if (node->killed) return false;
    return !node->stopped || core_->clock.Now() - node->stopped_at < std::chrono::seconds(1);
  }
  PeerIdentity identity() const {
    const std::shared_ptr<Node> node = NodeNow();
    return node != nullptr ? node->identity : PeerIdentity{};
  }
  KeepaliveState peer_state() {
    const std::shared_ptr<Node> node = NodeNow();
    if (node == nullptr || !Enter(node)) return {};
    KeepaliveState state = node->handler->OnKeepalive(SessionNow());
    core_->Leave(node);
    return state;
  }

  // Runs `body` at the peer on a thread of the network; `done` runs once whatever happens.
  template <typename Reply>
  void Call(const char* name, Deadline deadline, Completion<Reply> done,
            std::function<void(PeerHandler&, PeerHandler::SessionId, Completion<Reply>)> body) {
    auto finish = Once<Reply>(deadline, std::move(done));
    if (finish == nullptr) return;
    Post([self = shared_from_this(), name, body = std::move(body), finish] {
      const std::shared_ptr<Node> node = self->NodeNow();
      if (node == nullptr || !self->Enter(node)) {
        finish(Unavailable("memory link: peer is gone"));
        return;
      }
      self->core_->Count(name);
      body(*node->handler, self->SessionNow(), finish);
      self->core_->Leave(node);
    });
  }

  void Announce(AnnounceRequest request, Deadline deadline, Completion<AnnounceReply> done) {
    AnnounceFault fault = AnnounceFault::kNone;
    {
      MutexLock lock(core_->mu);
      if (core_->fault) fault = core_->fault();
    }
    if (fault == AnnounceFault::kLate || fault == AnnounceFault::kLoseRequest) {
      if (const auto node = NodeNow(); node != nullptr && fault == AnnounceFault::kLate) {
        MutexLock lock(core_->mu);
        node->late.push_back([self = shared_from_this(), request] { self->Deliver(request); });
      }
      auto finish = Once<AnnounceReply>(deadline, std::move(done));
      Post([finish] {
        if (finish != nullptr) finish(Unavailable("memory link: message lost"));
      });
      return;
    }
    Call<AnnounceReply>("announce", deadline, std::move(done),
                        [self = shared_from_this(), request, fault](auto& h, auto s, auto reply) {
                          if (fault == AnnounceFault::kDuplicate) {
                            static_cast<void>(h.OnAnnounce(s, request));
                          }
                          Result<AnnounceReply> answer = h.OnAnnounce(s, request);
                          self->DeliverLate();
                          if (fault == AnnounceFault::kLoseReply) {
                            answer = Unavailable("memory link: reply lost");
                          }
                          reply(std::move(answer));
                        });
  }

  void Post(Task task) {
    auto flight = std::make_shared<Flight>(*core_, from_.node_name, std::move(task));
    const std::shared_ptr<Node> node = NodeNow();
    {
      MutexLock lock(core_->mu);
      ++core_->flights[from_.node_name];
      if (node != nullptr && node->stopped && !node->killed) {
        node->held.push_back(std::move(flight));
        return;
      }
    }
    core_->Run(std::move(flight));
  }

  const Clock& clock() const { return core_->clock; }

 private:
  std::shared_ptr<Node> NodeNow() const {
    MutexLock lock(mu_);
    return node_;
  }
  PeerHandler::SessionId SessionNow() const {
    MutexLock lock(mu_);
    return session_;
  }
  // Counts a call as inside the peer; false when the peer, or we, were killed.
  bool Enter(const std::shared_ptr<Node>& node) const {
    MutexLock lock(core_->mu);
    if (node->killed || core_->dead.contains({from_.node_name, from_.boot_epoch})) return false;
    ++node->inside;
    return true;
  }
  void Deliver(const AnnounceRequest& request) {
    const std::shared_ptr<Node> node = NodeNow();
    if (node == nullptr || !Enter(node)) return;
    static_cast<void>(node->handler->OnAnnounce(SessionNow(), request));
    core_->Leave(node);
  }
  void DeliverLate() {
    const std::shared_ptr<Node> node = NodeNow();
    if (node == nullptr) return;
    std::vector<Task> late;
    {
      MutexLock lock(core_->mu);
      late.swap(node->late);
    }
    for (const Task& task : late) task();
  }

  // Wraps `done` so that the first of answer, deadline and close counts. Null: refused already.
  template <typename Reply>
  Completion<Reply> Once(Deadline deadline, Completion<Reply> done) {
    struct State {
      std::atomic<bool> over{false};
      Completion<Reply> done;
      Timer::Id timer = 0;
    };
    auto state = std::make_shared<State>();
    state->done = std::move(done);
    std::uint64_t id = 0;
    {
      MutexLock lock(mu_);
      id = next_call_++;
      if (node_ != nullptr) {
        pending_[id] = [state](Status why) {
          if (!state->over.exchange(true)) std::exchange(state->done, nullptr)(std::move(why));
        };
      }
    }
    Completion<Reply> finish = [self = shared_from_this(), state, id](Result<Reply> reply) {
      if (state->over.exchange(true)) return;
      {
        MutexLock lock(self->mu_);
        self->pending_.erase(id);
      }
      std::exchange(state->done, nullptr)(std::move(reply));
    };
    if (NodeNow() == nullptr) {
      finish(Unavailable("memory link: down"));
      return nullptr;
    }
    core_->timer.At(deadline.at(), [finish] { finish(DeadlineExceeded("memory link")); });
    return finish;
  }

  Core* const core_;  // outlives this
  const PeerIdentity from_;
  mutable Mutex mu_;
  std::shared_ptr<Node> node_ GUARDED_BY(mu_);  // null: no session
  PeerHandler::SessionId session_ GUARDED_BY(mu_) = 0;
  std::uint64_t next_call_ GUARDED_BY(mu_) = 1;
  std::map<std::uint64_t, std::function<void(Status)>> pending_ GUARDED_BY(mu_);
};

namespace {

// As a wire would carry it: nothing of the sender's objects.
BlockHeader OverTheWire(const PinnedBlock& block) {
  BlockHeader header = block.header();
  header.ns = std::make_shared<const Namespace>(*header.ns);
  return header;
}

std::optional<PinnedBlock> CopyInto(Reservation reservation, const PinnedBlock& block) {
  if (!reservation) return std::nullopt;
  const std::uint64_t computed = CopyAndChecksum(reservation.bytes(), block.bytes());
  Result<PinnedBlock> committed = std::move(reservation).Commit(computed);
  if (!committed.ok()) return std::nullopt;
  return std::move(committed).value();
}

}  // namespace

class MemoryNetwork::Connector final : public PeerConnector {
 public:
  Connector(Core& core, PeerIdentity from) : core_(core), from_(std::move(from)) {}
  std::unique_ptr<PeerLink> Connect(const PeerAddress& address) override;

 private:
  class Owner;  // the PeerLink; owns a Link, which calls under way share
  Core& core_;
  const PeerIdentity from_;
};

class MemoryNetwork::Connector::Owner final : public PeerLink {
 public:
  explicit Owner(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  ~Owner() override { link_->Close(true); }

  bool up() const override { return link_->up(); }
  PeerIdentity identity() const override { return link_->identity(); }
  KeepaliveState peer_state() const override { return link_->peer_state(); }
  void Announce(AnnounceRequest request, Deadline deadline,
                Completion<AnnounceReply> done) override {
    link_->Announce(std::move(request), deadline, std::move(done));
  }
  void Locate(LocateRequest request, Deadline deadline, Completion<LocateReply> done) override {
    link_->Call<LocateReply>("locate", deadline, std::move(done),
                             [request, deadline](auto& h, auto s, auto reply) {
                               h.OnLocate(s, request, deadline, std::move(reply));
                             });
  }
  void Lease(LeaseRequest request, Deadline deadline, Completion<LeaseReply> done) override {
    link_->Call<LeaseReply>(
        "lease", deadline, std::move(done),
        [request](auto& h, auto s, auto reply) { reply(h.OnLease(s, request)); });
  }
  void Release(std::vector<std::uint64_t> lease_ids) override {
    const Deadline soon = Deadline::After(link_->clock(), std::chrono::seconds(1));
    link_->Call<bool>(
        "release", soon, [](const Result<bool>&) {},
        [lease_ids](auto& h, auto s, auto reply) {
          h.OnRelease(s, lease_ids);
          reply(true);
        });
  }
  void Offer(OfferRequest request, Deadline deadline, Completion<OfferReply> done) override {
    link_->Call<OfferReply>(
        "offer", deadline, std::move(done),
        [request](auto& h, auto s, auto reply) { reply(h.OnOffer(s, request)); });
  }
  void Delete(DeleteAtPeerRequest request, Deadline deadline,
              Completion<std::uint32_t> done) override {
    link_->Call<std::uint32_t>(
        "delete", deadline, std::move(done),
        [request](auto& h, auto s, auto reply) { reply(h.OnDelete(s, request)); });
  }
  void FetchMap(std::string pool_uid, Deadline deadline, Completion<std::string> done) override {
    link_->Call<std::string>(
        "map", deadline, std::move(done),
        [pool_uid](auto& h, auto s, auto reply) { reply(h.OnMapRequest(s, pool_uid)); });
  }
  void Fetch(std::string pool_uid, std::uint64_t lease_id, std::vector<FetchItem> items,
             FetchSink sink, Deadline deadline, Completion<FetchResult> done) override {
    link_->Call<FetchResult>(
        "fetch", deadline, std::move(done),
        [pool_uid, lease_id, items, sink](auto& h, auto s, auto reply) {
          FetchResult result;
          for (const FetchItem& item : items) {
            const std::optional<PinnedBlock> block = h.OnFetch(s, pool_uid, lease_id, item.id);
            result.blocks.push_back(block ? CopyInto(sink(OverTheWire(*block)), *block)
                                          : std::nullopt);
          }
          reply(std::move(result));
        });
  }
  void Push(std::string pool_uid, OfferReason reason, std::vector<PinnedBlock> blocks,
            Deadline deadline, Completion<PushResult> done) override {
    link_->Call<PushResult>(
        "push", deadline, std::move(done), [pool_uid, reason, blocks](auto& h, auto s, auto reply) {
          PushResult result;
          for (const PinnedBlock& block : blocks) {
            Result<Reservation> place = h.OnPush(s, pool_uid, reason, OverTheWire(block));
            const bool has = place.status().code() == StatusCode::kAlreadyExists;
            result.stored.push_back(has ||
                                    (place.ok() && CopyInto(std::move(*place), block).has_value()));
          }
          reply(std::move(result));
        });
  }

 private:
  const std::shared_ptr<Link> link_;
};

std::unique_ptr<PeerLink> MemoryNetwork::Connector::Connect(const PeerAddress& address) {
  auto link = std::make_shared<Link>(core_, from_);
  link->Open(address);
  return std::make_unique<Owner>(std::move(link));
}

MemoryNetwork::MemoryNetwork(const Clock& clock) : core_(std::make_unique<Core>(clock)) {}

MemoryNetwork::~MemoryNetwork() { core_->pool.Shutdown(); }

void MemoryNetwork::Register(const PeerIdentity& identity, std::uint16_t port,
                             PeerHandler* handler) {
  auto node = std::make_shared<Node>();
  node->identity = identity;
  node->port = port;
  node->handler = handler;
  MutexLock lock(core_->mu);
  core_->nodes[identity.node_name] = std::move(node);
}

void MemoryNetwork::Kill(const std::string& name) {
  std::vector<std::weak_ptr<Link>> links;
  std::vector<std::shared_ptr<Flight>> held;
  {
    MutexLock lock(core_->mu);
    const std::shared_ptr<Node> node = core_->Find(name);
    if (node == nullptr) return;
    node->killed = true;
    core_->dead.emplace(name, node->identity.boot_epoch);
    held.swap(node->held);
    for (const auto& [other_name, other] : core_->nodes) {  // what it asked of stopped nodes
      const auto its = std::partition(
          other->held.begin(), other->held.end(),
          [&name](const std::shared_ptr<Flight>& flight) { return flight->from != name; });
      held.insert(held.end(), its, other->held.end());
      other->held.erase(its, other->held.end());
    }
    links.swap(node->to_it);
    node->late.clear();
    while (node->inside > 0) core_->left.Wait(core_->mu);
    core_->nodes.erase(name);
  }
  for (const auto& weak : links) {
    if (const auto link = weak.lock(); link != nullptr) link->Close(false);
  }
  for (std::shared_ptr<Flight>& flight : held) core_->Run(std::move(flight));
  held.clear();
  MutexLock lock(core_->mu);
  while (core_->flights[name] > 0) core_->left.Wait(core_->mu);
}

void MemoryNetwork::Stop(const std::string& name) {
  MutexLock lock(core_->mu);
  const std::shared_ptr<Node> node = core_->Find(name);
  node->stopped = true;
  node->stopped_at = core_->clock.Now();
}

void MemoryNetwork::Resume(const std::string& name) {
  std::vector<std::shared_ptr<Flight>> held;
  {
    MutexLock lock(core_->mu);
    const std::shared_ptr<Node> node = core_->Find(name);
    node->stopped = false;
    held.swap(node->held);
  }
  for (std::shared_ptr<Flight>& flight : held) core_->Run(std::move(flight));
}

void MemoryNetwork::SetAnnounceFault(std::function<AnnounceFault()> fault) {
  MutexLock lock(core_->mu);
  core_->fault = std::move(fault);
}

std::uint64_t MemoryNetwork::calls(const std::string& name) const {
  MutexLock lock(core_->mu);
  const auto found = core_->counts.find(name);
  return found == core_->counts.end() ? 0 : found->second;
}

PeerConnector* MemoryNetwork::ConnectorOf(const PeerIdentity& from) {
  MutexLock lock(core_->mu);
  auto& connector = core_->connectors[from.node_name + "/" + std::to_string(from.boot_epoch)];
  if (connector == nullptr) connector = std::make_unique<Connector>(*core_, from);
  return connector.get();
}

}  // namespace kvfabric
