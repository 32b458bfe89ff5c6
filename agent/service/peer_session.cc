#include "agent/service/peer_session.h"

#include <algorithm>
#include <utility>

#include "agent/service/peer_codec.h"
#include "common/log.h"
#include "kvfabric/v1/peer.pb.h"

namespace kvfabric {

namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kHelloId = ~std::uint64_t{0};  // no other request gets there

Status StatusOf(const v1::PeerReply& reply) {
  if (reply.code() == 0) return Status::Ok();
  const bool known = reply.code() <= static_cast<std::uint32_t>(StatusCode::kUnauthenticated);
  return {known ? static_cast<StatusCode>(reply.code()) : StatusCode::kUnknown, reply.message()};
}

}  // namespace

PeerSession::PeerSession(Options options, const Environment& environment)
    : options_(std::move(options)), environment_(environment) {}

void PeerSession::Start() {
  const std::weak_ptr<PeerSession> weak = weak_from_this();
  const Timer::Id timer = environment_.keepalive->Every(options_.keepalive, [weak] {
    if (const auto self = weak.lock()) self->SendKeepalive();
  });
  {
    MutexLock lock(mu_);
    keepalive_timer_ = timer;
  }
  OpenStream();
}

void PeerSession::OpenStream() {
  std::uint64_t generation = 0;
  const Clock::TimePoint now = environment_.clock->Now();
  {
    MutexLock lock(mu_);
    if (closed_) return;
    generation = ++generation_;
    last_answer_ = now;
  }
  std::shared_ptr<PeerStream> stream = options_.open_stream(shared_from_this(), generation);
  bool too_late = false;
  {
    MutexLock lock(mu_);
    too_late = closed_ || generation != generation_;
    if (!too_late) stream_ = stream;
  }
  if (too_late) {
    stream->Cancel();
    return;
  }
  v1::PeerRequest request;
  request.set_request_id(kHelloId);
  v1::PeerHello& hello = *request.mutable_hello();
  hello.set_version(kVersion);
  hello.set_node_name(options_.self.node_name);
  hello.set_agent_uid(options_.self.agent_uid);
  hello.set_boot_epoch(options_.self.boot_epoch);
  hello.set_expect_node_name(options_.peer.node_name);
  hello.set_expect_agent_uid(options_.peer.agent_uid);
  stream->Send(request, false);
  // The hello counts as a keepalive: no answer in time is a peer that is down.
  ScheduleJudgement(generation, now + options_.down_after);
}

void PeerSession::ScheduleJudgement(std::uint64_t generation, Clock::TimePoint at) {
  const std::weak_ptr<PeerSession> weak = weak_from_this();
  environment_.keepalive->At(at, [weak, generation] {
    if (const auto self = weak.lock()) self->Judge(generation);
  });
}

void PeerSession::Judge(std::uint64_t generation) {
  Clock::TimePoint due{};
  {
    MutexLock lock(mu_);
    if (closed_ || generation != generation_) return;
    due = last_answer_ + options_.down_after;
  }
  if (environment_.clock->Now() >= due) {
    GoDown(generation,
           Unavailable("peer " + options_.peer.node_name + ": no keepalive answer for " +
                       std::to_string(options_.down_after.count()) + " ms"));
  } else {
    ScheduleJudgement(generation, due);
  }
}

void PeerSession::SendKeepalive() {
  std::shared_ptr<PeerStream> stream;
  {
    MutexLock lock(mu_);
    if (!up_) return;
    stream = stream_;
  }
  v1::PeerRequest request;
  request.mutable_keepalive();
  stream->Send(request, true);
}

void PeerSession::OnReply(std::uint64_t generation, const v1::PeerReply& reply) {
  if (reply.request_id() == kHelloId) {
    OnHello(generation, reply);
    return;
  }
  Pending pending;
  {
    MutexLock lock(mu_);
    if (generation != generation_ || closed_) return;
    if (reply.has_keepalive()) {
      last_answer_ = environment_.clock->Now();
      peer_state_ = Decode(reply.keepalive());
      return;
    }
    const auto found = pending_.find(reply.request_id());
    if (found != pending_.end()) {
      pending = std::move(found->second);
      pending_.erase(found);
    }
  }
  if (pending.done == nullptr) {
    OnLateReply(reply);
    return;
  }
  environment_.timer->Cancel(pending.timer);
  const Status status = StatusOf(reply);
  pending.done(status.ok() ? Result<const v1::PeerReply*>(&reply) : status);
}

void PeerSession::OnHello(std::uint64_t generation, const v1::PeerReply& reply) {
  if (const Status status = StatusOf(reply); !status.ok()) {
    GoDown(generation, status);
    return;
  }
  const auto address =
      SocketAddress::Tcp(options_.peer.host, static_cast<std::uint16_t>(reply.hello().bulk_port()));
  if (!address.ok() || reply.hello().bulk_port() > 65'535) {
    GoDown(generation, InvalidArgument("peer hello: no address for bulk connections"));
    return;
  }
  // Open before the link is up, so that who finds it up can fetch.
  environment_.bulk->Open(generation, *address, reply.hello().bulk_token());
  bool lost = false;
  {
    MutexLock lock(mu_);
    lost = generation != generation_ || closed_;
    if (!lost) {
      up_ = true;
      retry_ = std::chrono::milliseconds(0);
      last_answer_ = environment_.clock->Now();
      identity_ = {options_.peer.node_name, options_.peer.agent_uid, reply.hello().boot_epoch()};
      peer_state_ = {};
    }
  }
  if (lost) {
    environment_.bulk->Close(generation, Unavailable("peer session: lost"));
    return;
  }
  LogInfo("peer up",
          {{"peer", options_.peer.node_name}, {"boot_epoch", reply.hello().boot_epoch()}});
}

// The caller has given up; what the peer pinned for it must not stay pinned until it expires.
void PeerSession::OnLateReply(const v1::PeerReply& reply) {
  if (!reply.has_lease() || reply.lease().lease_id() == 0) return;
  v1::PeerRequest release;
  release.mutable_release()->add_lease_ids(reply.lease().lease_id());
  Tell(release);
}

void PeerSession::OnStreamEnd(std::uint64_t generation, const Status& why) {
  GoDown(generation, Unavailable("peer " + options_.peer.node_name +
                                 ": session ended: " + (why.ok() ? "by the peer" : why.message())));
}

void PeerSession::GoDown(std::uint64_t generation, const Status& why) {
  PendingMap pending;
  std::shared_ptr<PeerStream> stream;
  std::chrono::milliseconds retry{0};
  bool was_up = false;
  {
    MutexLock lock(mu_);
    if (generation != generation_ || closed_) return;
    ++generation_;  // later events of this stream are not heard
    was_up = std::exchange(up_, false);
    pending = std::exchange(pending_, {});
    stream = std::exchange(stream_, nullptr);
    retry_ = std::clamp(retry_ * 2, options_.first_retry, options_.last_retry);
    retry = retry_;
    identity_.boot_epoch = 0;
  }
  if (was_up) {
    environment_.lost->Add();
    LogWarn("peer down", {{"peer", options_.peer.node_name}, {"reason", why.message()}});
  }
  if (stream != nullptr) stream->Cancel();
  environment_.bulk->Close(generation, Unavailable(why.message()));
  FailAll(std::move(pending), why);
  const std::weak_ptr<PeerSession> weak = weak_from_this();
  environment_.timer->After(retry, [weak] {
    if (const auto self = weak.lock()) self->OpenStream();
  });
}

void PeerSession::FailAll(PendingMap pending, const Status& why) {
  for (auto& entry : pending) {
    environment_.timer->Cancel(entry.second.timer);
    entry.second.done(Unavailable(why.message()));
  }
}

void PeerSession::Close() {
  PendingMap pending;
  std::shared_ptr<PeerStream> stream;
  Timer::Id timer = 0;
  {
    MutexLock lock(mu_);
    if (std::exchange(closed_, true)) return;
    up_ = false;
    pending = std::exchange(pending_, {});
    stream = std::exchange(stream_, nullptr);
    timer = keepalive_timer_;
  }
  environment_.keepalive->Cancel(timer);
  if (stream != nullptr) stream->Cancel();
  FailAll(std::move(pending), Unavailable("peer link: closed"));
}

bool PeerSession::up() const {
  MutexLock lock(mu_);
  return up_;
}

PeerIdentity PeerSession::identity() const {
  MutexLock lock(mu_);
  if (identity_.node_name.empty()) return {options_.peer.node_name, options_.peer.agent_uid, 0};
  return identity_;
}

KeepaliveState PeerSession::peer_state() const {
  MutexLock lock(mu_);
  return peer_state_;
}

void PeerSession::Ask(v1::PeerRequest& request, Deadline deadline, OnAnswer done) {
  Status refusal;
  std::shared_ptr<PeerStream> stream;
  std::uint64_t id = 0;
  {
    MutexLock lock(mu_);
    if (!up_) {
      refusal = Unavailable("peer " + options_.peer.node_name + ": down");
    } else if (deadline.Passed(*environment_.clock)) {
      refusal = DeadlineExceeded("peer request: no time left");
    } else if (pending_.size() >= options_.max_requests) {
      refusal = ResourceExhausted("peer " + options_.peer.node_name + ": more than " +
                                  std::to_string(options_.max_requests) + " requests under way");
    } else {
      id = next_request_++;
      stream = stream_;
      const std::weak_ptr<PeerSession> weak = weak_from_this();
      const Timer::Id timer = environment_.timer->At(deadline.at(), [weak, id] {
        if (const auto self = weak.lock()) self->Expire(id);
      });
      pending_.emplace(id, Pending{std::move(done), timer});
    }
  }
  if (!refusal.ok()) {
    done(refusal);
    return;
  }
  request.set_request_id(id);
  const auto left = deadline.Remaining(*environment_.clock).count();
  request.set_remaining_ms(static_cast<std::uint32_t>(std::clamp<std::int64_t>(left, 1, 60'000)));
  if (stream->Send(request, false)) return;
  Pending pending;
  {
    MutexLock lock(mu_);
    const auto found = pending_.find(id);
    if (found == pending_.end()) return;  // answered already, by deadline or loss
    pending = std::move(found->second);
    pending_.erase(found);
  }
  environment_.timer->Cancel(pending.timer);
  pending.done(ResourceExhausted("peer " + options_.peer.node_name + ": too many requests wait"));
}

void PeerSession::Expire(std::uint64_t request_id) {
  OnAnswer done;
  {
    MutexLock lock(mu_);
    const auto found = pending_.find(request_id);
    if (found == pending_.end()) return;
    done = std::move(found->second.done);
    pending_.erase(found);
  }
  done(DeadlineExceeded("peer " + options_.peer.node_name + ": no answer in time"));
}

void PeerSession::Tell(const v1::PeerRequest& request) {
  std::shared_ptr<PeerStream> stream;
  {
    MutexLock lock(mu_);
    if (!up_) return;
    stream = stream_;
  }
  stream->Send(request, false);
}

}  // namespace kvfabric
