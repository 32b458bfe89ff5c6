#pragma once

// PeerLink: asks one peer; PeerHandler: answers peers. Two implementations of the link: gRPC plus
// framed TCP (agent/service/grpc_peer_link.h) and in-memory (tests/fakes/memory_peer_link.h).
//
// Calls never block; each completion runs exactly once, on any thread, also when the link is
// down, the peer is judged dead, the deadline passes (DEADLINE_EXCEEDED) or the link is destroyed
// (UNAVAILABLE). Completions must be short or post elsewhere.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/cluster/peer_messages.h"
#include "common/clock.h"
#include "common/status.h"

namespace kvfabric {

template <typename T>
using Completion = std::function<void(Result<T>)>;

// Called with the header a holder sends before the bytes: returns where to put them (as long as
// header.length_bytes), or an empty reservation to skip this block. Any thread.
using FetchSink = std::function<Reservation(const BlockHeader& header)>;
// Per item of a fetch, in order: the committed block, or nullopt (gone, key mismatch, checksum).
struct FetchResult {
  std::vector<std::optional<PinnedBlock>> blocks;
};
// Per block of a push, in order: true = the peer committed it or had it already.
struct PushResult {
  std::vector<bool> stored;
};

class PeerLink {
 public:
  virtual ~PeerLink() = default;

  // Up = session open and keepalives answered within 1 s. Operator states play no part.
  virtual bool up() const = 0;
  // Of the session that is open now; boot_epoch 0 while none is.
  virtual PeerIdentity identity() const = 0;
  // The last keepalive's contents.
  virtual KeepaliveState peer_state() const = 0;

  virtual void Announce(AnnounceRequest request, Deadline deadline,
                        Completion<AnnounceReply> done) = 0;
  virtual void Locate(LocateRequest request, Deadline deadline, Completion<LocateReply> done) = 0;
  virtual void Lease(LeaseRequest request, Deadline deadline, Completion<LeaseReply> done) = 0;
  // Fire and forget.
  virtual void Release(std::vector<std::uint64_t> lease_ids) = 0;
  virtual void Offer(OfferRequest request, Deadline deadline, Completion<OfferReply> done) = 0;
  virtual void Delete(DeleteAtPeerRequest request, Deadline deadline,
                      Completion<std::uint32_t> done) = 0;
  // The peer's shard map in binary form (placement/shard_map.h), empty when it has none.
  virtual void FetchMap(std::string pool_uid, Deadline deadline, Completion<std::string> done) = 0;

  // Bulk. Bytes are received straight into the reservation that `sink` gives, hashed piece by
  // piece as they arrive and committed if the checksum in the header matches.
  virtual void Fetch(std::string pool_uid, std::uint64_t lease_id, std::vector<FetchItem> items,
                     FetchSink sink, Deadline deadline, Completion<FetchResult> done) = 0;
  // The pins are held until the push is answered.
  virtual void Push(std::string pool_uid, OfferReason reason, std::vector<PinnedBlock> blocks,
                    Deadline deadline, Completion<PushResult> done) = 0;
};

// Our answers to one peer session. Implemented by the cluster node; the server side of a link
// calls it, any thread, with the session id that OnSessionOpen returned.
class PeerHandler {
 public:
  using SessionId = std::uint64_t;
  virtual ~PeerHandler() = default;

  virtual SessionId OnSessionOpen(const PeerIdentity& peer) = 0;
  // Ends all leases of the session.
  virtual void OnSessionClosed(SessionId session) = 0;
  virtual KeepaliveState OnKeepalive(SessionId session) = 0;
  // Of our map of that pool, for a peer whose map is older; 0 while there is none.
  virtual std::uint64_t MapEpoch(const std::string& pool_uid) const = 0;

  virtual Result<AnnounceReply> OnAnnounce(SessionId session, const AnnounceRequest& request) = 0;
  // Asynchronous: a new owner may ask the previous one (one hop).
  virtual void OnLocate(SessionId session, LocateRequest request, Deadline deadline,
                        Completion<LocateReply> done) = 0;
  virtual Result<LeaseReply> OnLease(SessionId session, const LeaseRequest& request) = 0;
  virtual void OnRelease(SessionId session, const std::vector<std::uint64_t>& lease_ids) = 0;
  virtual Result<OfferReply> OnOffer(SessionId session, const OfferRequest& request) = 0;
  virtual std::uint32_t OnDelete(SessionId session, const DeleteAtPeerRequest& request) = 0;
  virtual std::string OnMapRequest(SessionId session, const std::string& pool_uid) = 0;
  // Bulk: what to send for one leased block (nullopt = gone), and where to put a pushed one.
  virtual std::optional<PinnedBlock> OnFetch(SessionId session, const std::string& pool_uid,
                                             std::uint64_t lease_id, const KeyId& id) = 0;
  virtual Result<Reservation> OnPush(SessionId session, const std::string& pool_uid,
                                     OfferReason reason, BlockHeader header) = 0;
};

// Makes the link to a peer when a map names it; the agent gives gRPC links, tests in-memory ones.
struct PeerAddress {
  std::string node_name;
  std::string agent_uid;
  std::string host;
  std::uint16_t grpc_port = 0;
};
class PeerConnector {
 public:
  virtual ~PeerConnector() = default;
  virtual std::unique_ptr<PeerLink> Connect(const PeerAddress& address) = 0;
};

}  // namespace kvfabric
