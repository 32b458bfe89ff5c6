#include "agent/service/bulk_channel.h"

#include <utility>

#include "agent/service/bulk_messages.h"
#include "common/log.h"
#include "transport/connector.h"
#include "transport/plain_stream.h"

namespace kvfabric {

namespace {

Counter& Bytes(MetricsRegistry& metrics, const char* direction) {
  return metrics.GetCounter("kvfabric_agent_bulk_bytes_total", "Block bytes between agents",
                            {{"direction", direction}});
}

}  // namespace

BulkChannel::BulkChannel(Options options)
    : options_(std::move(options)),
      received_bytes_(Bytes(*options_.metrics, "received")),
      sent_bytes_(Bytes(*options_.metrics, "sent")),
      checksum_mismatches_(options_.metrics->GetCounter(
          "kvfabric_agent_bulk_checksum_mismatches_total",
          "Blocks that arrived from a peer with another checksum and were thrown away")) {}

void BulkChannel::Connect() {
  if (closed_) return;
  kvfabric::ConnectSocket(*options_.loop, options_.peer, options_.connect_timeout,
                          [self = shared_from_this()](Result<UniqueFd> socket) {
                            self->OnConnected(self->StreamOver(std::move(socket)));
                          });
}

Result<std::unique_ptr<Stream>> BulkChannel::StreamOver(Result<UniqueFd> socket) const {
  if (!socket.ok()) return socket.status();
  const std::string name = options_.peer.ToString();
  if (options_.tls == nullptr) {
    return std::unique_ptr<Stream>(std::make_unique<PlainStream>(std::move(*socket), name));
  }
  KVF_RETURN_IF_ERROR(ConfigureSocket(socket->get(), true));
  const std::shared_ptr<const TlsContext> context = options_.tls->Context();
  if (context == nullptr) return Unavailable("bulk connection: no TLS");
  return context->Connect(std::move(*socket), name, options_.peer_identity);
}

void BulkChannel::OnConnected(Result<std::unique_ptr<Stream>> stream) {
  if (closed_) return;
  if (!stream.ok()) {
    RetryLater();
    return;
  }
  auto connection = FrameConnection::Start(*options_.loop, std::move(*stream),
                                           FrameConnection::Options{}, shared_from_this());
  if (!connection.ok()) {
    RetryLater();
    return;
  }
  connection_ = std::move(*connection);
  OutgoingFrame join;
  join.header.op = FrameOp::kJoin;
  join.header.request_id = next_request_++;
  join.body = options_.token;
  Send(std::move(join));
}

void BulkChannel::Send(OutgoingFrame frame) {
  // A write that fails closes the connection, which OnClosed lets go: not while it is in use.
  const std::shared_ptr<FrameConnection> connection = connection_;
  if (connection != nullptr) connection->Send(std::move(frame));
}

void BulkChannel::RetryLater() {
  options_.loop->RunAfter(options_.retry_after, [self = shared_from_this()] { self->Connect(); });
}

void BulkChannel::OnJoined() {
  joined_.store(true, std::memory_order_relaxed);
  std::deque<Waiting> waiting = std::exchange(waiting_, {});
  for (Waiting& one : waiting) Start(std::move(one));
}

void BulkChannel::Fetch(std::shared_ptr<BulkFetchJob> job, std::vector<std::size_t> items) {
  Start({std::move(job), nullptr, std::move(items)});
}

void BulkChannel::Push(std::shared_ptr<BulkPushJob> job, std::vector<std::size_t> items) {
  Start({nullptr, std::move(job), std::move(items)});
}

void BulkChannel::Start(Waiting waiting) {
  if (closed_) {
    FailAll(waiting, Unavailable("bulk connection: closed"));
  } else if (!joined()) {
    if (waiting_.size() >= kMaxWaiting) {
      std::erase_if(waiting_, [](const Waiting& one) { return JobOf(one)->ended(); });
    }
    if (waiting_.size() >= kMaxWaiting) {
      FailAll(waiting, ResourceExhausted("bulk connection: too many requests wait for it"));
    } else {
      waiting_.push_back(std::move(waiting));
    }
  } else if (waiting.fetch != nullptr) {
    SendFetch(std::move(waiting.fetch), std::move(waiting.items));
  } else {
    SendPushes(waiting.push, waiting.items);
  }
}

BulkJob* BulkChannel::JobOf(const Waiting& waiting) {
  if (waiting.fetch != nullptr) return waiting.fetch.get();
  return waiting.push.get();
}

void BulkChannel::FailAll(const Waiting& waiting, const Status& why) {
  for (const std::size_t item : waiting.items) JobOf(waiting)->Fail(item, why);
}

void BulkChannel::SendFetch(std::shared_ptr<BulkFetchJob> job, std::vector<std::size_t> items) {
  BulkFetch fetch;
  fetch.pool_uid = job->pool_uid;
  fetch.lease_id = job->lease_id;
  for (const std::size_t item : items) fetch.ids.push_back(job->items[item].id);
  OutgoingFrame request;
  request.header.op = FrameOp::kPeerFetch;
  request.header.request_id = next_request_++;
  request.body = EncodeBulkFetch(fetch);
  fetches_.emplace(request.header.request_id, FetchPart{std::move(job), std::move(items), 0});
  Send(std::move(request));
}

void BulkChannel::SendPushes(const std::shared_ptr<BulkPushJob>& job,
                             const std::vector<std::size_t>& items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t item = items[i];
    const std::shared_ptr<const PinnedBlock> block = job->Block(item);
    if (block == nullptr || connection_ == nullptr) {
      job->Fail(item, Unavailable("bulk push: ended before it was sent"));
      continue;
    }
    OutgoingFrame push;
    push.header.op = FrameOp::kPeerPush;
    push.header.request_id = next_request_++;
    push.header.payload_checksum = block->header().checksum;
    push.body = EncodeBulkPush(job->pool_uid, job->reason, block->header(), options_.clock->Now());
    push.payload.push_back(block->bytes());
    push.payload_owner = block;
    sent_bytes_.Add(static_cast<double>(block->bytes().size()));
    pushes_.emplace(push.header.request_id, PushPart{job, item});
    Send(std::move(push));
  }
}

Status BulkChannel::OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) {
  if (!frame.header.reply()) {
    return InvalidArgument("bulk connection: a request from the side that answers");
  }
  switch (frame.header.op) {
    case FrameOp::kJoin:
      if (frame.header.status != StatusCode::kOk) {
        return Unauthenticated("bulk connection: join refused: " + std::string(AsText(frame.body)));
      }
      OnJoined();
      return Status::Ok();
    case FrameOp::kPeerFetch:
      return OnFetchReply(frame, parts);
    case FrameOp::kPeerPush:
      OnPushReply(frame);
      return Status::Ok();
    case FrameOp::kError:
      return Unavailable("bulk connection: the peer refuses: " + std::string(AsText(frame.body)));
    default:
      return InvalidArgument("bulk connection: unknown operation in a reply");
  }
}

Status BulkChannel::OnFetchReply(const ReceivedFrame& frame, std::vector<PayloadPart>& parts) {
  const auto found = fetches_.find(frame.header.request_id);
  if (found == fetches_.end()) return InvalidArgument("bulk fetch: a reply to no request");
  FetchPart& part = found->second;
  const std::shared_ptr<BulkFetchJob> job = part.job;
  const std::size_t item = part.items[part.next++];
  const bool last = part.next == part.items.size();
  if (last == frame.header.more()) {
    --part.next;  // OnClosed fails this item and those behind it
    return InvalidArgument("bulk fetch: not as many answers as blocks");
  }
  if (last) fetches_.erase(found);
  if (frame.header.status != StatusCode::kOk) {
    job->Fail(item, Status::Ok());  // gone: a miss
    return Status::Ok();
  }
  const Result<BlockHeader> header =
      DecodeBlockHeader(frame.body, job->pool_uid, options_.clock->Now());
  if (!header.ok() || header->id != job->items[item].id || frame.header.payload_bytes == 0 ||
      header->length_bytes != frame.header.payload_bytes ||
      header->checksum != frame.header.payload_checksum) {
    job->Fail(item, DataLoss("bulk fetch: the holder's header is not that of the block"));
    return header.ok() ? Status::Ok() : header.status();
  }
  Reservation to = job->Reserve(*header);
  if (!to || to.bytes().size() != frame.header.payload_bytes) {
    job->Fail(item, Status::Ok());
    return Status::Ok();
  }
  receiving_.emplace(Receiving{job, item, std::move(to)});
  parts.push_back({receiving_->to.bytes().data(), receiving_->to.bytes().size()});
  return Status::Ok();
}

Status BulkChannel::OnPayload(const std::vector<std::uint64_t>& checksums) {
  if (!receiving_) return Status::Ok();  // thrown away
  Receiving received = std::move(*receiving_);
  receiving_.reset();
  received_bytes_.Add(static_cast<double>(received.to.bytes().size()));
  Result<PinnedBlock> committed = std::move(received.to).Commit(checksums.at(0));
  if (committed.ok()) {
    received.job->Deliver(received.item, std::move(*committed));
    return Status::Ok();
  }
  if (committed.status().code() == StatusCode::kDataLoss) checksum_mismatches_.Add();
  received.job->Fail(received.item, committed.status());
  return Status::Ok();
}

void BulkChannel::OnPushReply(const ReceivedFrame& frame) {
  const auto found = pushes_.find(frame.header.request_id);
  if (found == pushes_.end()) return;  // answered already: refused before it was read
  const PushPart part = found->second;
  pushes_.erase(found);
  part.job->Answer(part.item, frame.header.status == StatusCode::kOk ||
                                  frame.header.status == StatusCode::kAlreadyExists);
}

void BulkChannel::OnClosed(const Status& why) {
  const bool was_joined = joined_.exchange(false, std::memory_order_relaxed);
  connection_.reset();
  const Status lost = Unavailable("bulk connection: lost: " + why.message());
  if (receiving_) {
    Receiving received = std::move(*receiving_);
    receiving_.reset();
    received.job->Fail(received.item, lost);
  }
  const auto fetches = std::exchange(fetches_, {});
  const auto pushes = std::exchange(pushes_, {});
  for (const auto& entry : fetches) {
    const FetchPart& part = entry.second;
    for (std::size_t i = part.next; i < part.items.size(); ++i) {
      part.job->Fail(part.items[i], lost);
    }
  }
  for (const auto& entry : pushes) entry.second.job->Fail(entry.second.item, lost);
  if (!closed_) {
    // Retries that fail say nothing new.
    Log(was_joined ? LogLevel::kWarn : LogLevel::kDebug, "bulk connection lost",
        {{"peer", options_.peer.ToString()}, {"reason", why.message()}});
    RetryLater();
  }
}

void BulkChannel::Close(const Status& why) {
  if (std::exchange(closed_, true)) return;
  for (const Waiting& waiting : std::exchange(waiting_, {})) FailAll(waiting, why);
  if (const std::shared_ptr<FrameConnection> connection = connection_) connection->Close(why);
}

}  // namespace kvfabric
