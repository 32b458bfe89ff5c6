#pragma once

// LocalConnection: one client of LocalService. LocalConnections: all of them, and what they share.
//
// A LocalConnection lives on its FrameConnection's loop; completions of Fabric come from any
// thread and are posted there. LocalConnections: any thread; outlives the service while a
// completion still holds it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "agent/service/byte_budget.h"
#include "agent/service/local_service.h"
#include "agent/service/rpc_metrics.h"
#include "agent/service/staging_map.h"
#include "common/leash.h"
#include "common/mutex.h"
#include "transport/local_messages.h"

namespace kvfabric {

struct LocalMetrics {
  explicit LocalMetrics(MetricsRegistry& registry);
  // What a connection ended for, when it was the client's fault.
  void CountFault(const Status& why);

  MetricsRegistry& registry;
  RpcMetrics hello, lookup, get, put, remove, stat;
  Gauge& connections;
  Counter& refused_connections;  // over the bound
  Counter& laggards;             // did not unmap within a second
  Counter& foreign_locations;    // blocks in memory that is not the tenant's: a bug of ours
  Counter& inline_no_space;      // blocks over TCP beyond max_inline_bytes
  Counter& checksum_mismatches;  // blocks over TCP that arrived broken
};

class LocalConnection;

class LocalConnections {
 public:
  LocalConnections(LocalService::Options options, LocalService::Environment environment);

  // A client-to-be on `loop`; nullptr at the bound or when closed. `self` is this.
  std::shared_ptr<LocalConnection> Make(EventLoop& loop, bool over_tcp,
                                        const std::shared_ptr<LocalConnections>& self)
      EXCLUDES(mu_);
  // Starts a client on the next loop.
  void Accept(UniqueFd fd, std::string peer, const std::shared_ptr<LocalConnections>& self);
  void Remove(std::uint64_t id) EXCLUDES(mu_);
  std::size_t size() const EXCLUDES(mu_);
  // Runs on the connection's loop, if it still lives.
  void Post(std::uint64_t id, std::function<void(LocalConnection&)> task) EXCLUDES(mu_);
  // Closes all and accepts none any more.
  void CloseAll() EXCLUDES(mu_);
  bool closed() const EXCLUDES(mu_);
  FrameConnection::Options FrameOptions() const;

  const LocalService::Options options;
  const LocalService::Environment environment;
  LocalMetrics metrics;
  const std::shared_ptr<ByteBudget> inline_budget;
  Leash leash;  // ties queued puts to the service

 private:
  struct Entry {
    EventLoop* loop = nullptr;
    std::weak_ptr<LocalConnection> connection;
  };
  std::atomic<std::size_t> next_loop_ = 0;
  mutable Mutex mu_;
  std::unordered_map<std::uint64_t, Entry> entries_ GUARDED_BY(mu_);
  std::uint64_t next_id_ GUARDED_BY(mu_) = 1;
  bool closed_ GUARDED_BY(mu_) = false;
};

class LocalConnection final : public FrameHandler,
                              public std::enable_shared_from_this<LocalConnection> {
 public:
  LocalConnection(std::uint64_t id, bool over_tcp, std::shared_ptr<LocalConnections> all);
  // Once, before the first frame.
  void Attach(std::shared_ptr<FrameConnection> frames) { frames_ = std::move(frames); }
  // The first frame.
  Status OnHello(const ReceivedFrame& frame);

  Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override;
  Status OnPayload(const std::vector<std::uint64_t>& checksums) override;
  void OnClosed(const Status& why) override;

  void AskToUnmap(std::uint64_t memfd_id);
  void Close(const Status& why);

 private:
  struct Request {
    FrameHeader header;
    Clock::TimePoint began;
    std::uint64_t lease_id = 0;  // of a GET
  };
  // A block on its way in over TCP.
  struct Incoming {
    Request request;
    wire::PutInlineRequest put;
    std::shared_ptr<std::byte[]> bytes;  // null: refused, thrown away
    std::shared_ptr<ByteBudget::Hold> hold;
  };

  void Welcome(const Request& request);
  Status OnRequest(ReceivedFrame& frame, std::vector<PayloadPart>& parts);
  Status OnReply(const ReceivedFrame& frame);
  Status OnStaging(ReceivedFrame& frame);
  Status OnLookup(const ReceivedFrame& frame);
  Status OnGet(const ReceivedFrame& frame);
  Status OnPut(const ReceivedFrame& frame);
  Status OnPutInline(const ReceivedFrame& frame, std::vector<PayloadPart>& parts);
  Status OnDelete(const ReceivedFrame& frame);
  Status OnRelease(const ReceivedFrame& frame);
  Status OnRenew(const ReceivedFrame& frame);

  void AnswerLookup(const Request& request, const Result<LookupAnswer>& answer);
  void AnswerGet(const Request& request, const Result<GetAnswer>& answer);
  void AnswerPut(const Request& request, const Result<PutAnswer>& answer);
  void AnswerDelete(const Request& request, const Result<std::uint32_t>& answer);
  void SendLocations(const Request& request, const GetAnswer& answer);
  void SendBlocks(const Request& request, const GetAnswer& answer);

  // An answer that other threads bring, for the loop's to give.
  using LateAnswer = std::function<void(LocalConnection&)>;
  void AnswerLater(EventLoop& loop, LateAnswer answer) EXCLUDES(late_mu_);
  void GiveLateAnswers() EXCLUDES(late_mu_);
  // `then` on this loop with what Fabric answers, unless the connection has ended.
  template <typename T>
  Completion<T> Then(Request request,
                     void (LocalConnection::*then)(const Request&, const Result<T>&));
  void SubmitPut(const Request& request, PutArgs args, std::shared_ptr<const void> bytes_owner);
  Request Begin(const FrameHeader& header);
  void End(const Request& request, const Status& status, RpcMetrics& metrics);
  void Reply(const FrameHeader& request, std::string body, std::uint8_t flags = 0);
  void ReplyError(const FrameHeader& request, const Status& status);
  FrameHeader ReplyHeader(const FrameHeader& request) const;
  // Tells the client about memfds it has not got; false = not the tenant's, or out of use.
  bool EnsureMapped(std::uint64_t memfd_id);
  std::vector<MemfdRef> MapNew(std::vector<MemfdRef> memfds);
  void SendMemfds(const std::vector<MemfdRef>& memfds, std::size_t from);

  const std::uint64_t id_;  // also the arena's session
  const std::shared_ptr<LocalConnections> all_;
  Fabric& fabric_;
  const bool over_tcp_;
  std::shared_ptr<FrameConnection> frames_;  // null before Attach and once closed

  bool greeted_ = false;
  std::string tenant_;
  NamespaceRef ns_;  // null: administration only
  SessionId session_ = 0;
  std::unordered_set<std::uint64_t> mapped_;
  std::shared_ptr<const StagingMap> staging_;
  std::optional<Incoming> incoming_;
  std::size_t in_flight_ = 0;
  bool paused_ = false;
  bool in_call_ = false;  // inside a call to Fabric: its completion may run right here

  // One task on the loop for all that wait: however many they are, its queue has room for it.
  Mutex late_mu_;
  std::vector<LateAnswer> late_ GUARDED_BY(late_mu_);
  bool late_posted_ GUARDED_BY(late_mu_) = false;
};

}  // namespace kvfabric
