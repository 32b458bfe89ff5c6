#pragma once

// PeerDesk answers peers: the server side of every peer link calls it.
//
// Owned by FabricNode; any thread. Answers are short: only Locate may ask another node, and does so
// asynchronously. Keepalives are answered from a copy that a timer renews, so that they never wait
// behind other work. A peer's leases hang on its session and end with it.

#include <atomic>
#include <unordered_map>

#include "agent/cluster/node_context.h"
#include "agent/cluster/peer_link.h"
#include "agent/cluster/pool_table.h"
#include "common/mutex.h"

namespace kvfabric {

class PeerDesk final : public PeerHandler {
 public:
  // Both outlive this.
  PeerDesk(const NodeContext& context, const PoolTable& pools);
  PeerDesk(const PeerDesk&) = delete;  // sessions would be counted twice
  PeerDesk& operator=(const PeerDesk&) = delete;

  SessionId OnSessionOpen(const PeerIdentity& peer) override EXCLUDES(mu_);
  void OnSessionClosed(SessionId session) override EXCLUDES(mu_);
  KeepaliveState OnKeepalive(SessionId session) override EXCLUDES(state_mu_);
  std::uint64_t MapEpoch(const std::string& pool_uid) const override;
  Result<AnnounceReply> OnAnnounce(SessionId session, const AnnounceRequest& request) override;
  void OnLocate(SessionId session, LocateRequest request, Deadline deadline,
                Completion<LocateReply> done) override;
  Result<LeaseReply> OnLease(SessionId session, const LeaseRequest& request) override;
  void OnRelease(SessionId session, const std::vector<std::uint64_t>& lease_ids) override;
  Result<OfferReply> OnOffer(SessionId session, const OfferRequest& request) override;
  std::uint32_t OnDelete(SessionId session, const DeleteAtPeerRequest& request) override;
  std::string OnMapRequest(SessionId session, const std::string& pool_uid) override;
  std::optional<PinnedBlock> OnFetch(SessionId session, const std::string& pool_uid,
                                     std::uint64_t lease_id, const KeyId& id) override;
  Result<Reservation> OnPush(SessionId session, const std::string& pool_uid, OfferReason reason,
                             BlockHeader header) override;

  // Renews what keepalives are answered with. Every 250 ms, off the keepalive's thread.
  void RefreshState() EXCLUDES(state_mu_);
  void SetDraining(bool draining) { draining_.store(draining); }
  bool draining() const { return draining_.load(); }
  std::size_t session_count() const EXCLUDES(mu_);

 private:
  struct Session {
    PeerIdentity peer;
    NodeIndex node = kNoNode;
  };

  Result<Session> Find(SessionId session) const EXCLUDES(mu_);
  Result<PoolRef> FindPool(const std::string& pool_uid) const;
  // A peer but the sender said that all of the offer fits there.
  bool OthersHaveRoom(const PoolNode& pool, const OfferRequest& request, NodeIndex sender) const;
  // The peer's map is newer than ours: take it.
  void NoteEpoch(const PoolRef& pool, NodeIndex peer, std::uint64_t map_epoch) const;

  const NodeContext& context_;
  const PoolTable& pools_;
  std::atomic<bool> draining_{false};            // read by RefreshState only
  std::atomic<std::uint64_t> fetched_bytes_{0};  // since the last RefreshState: our load

  mutable Mutex mu_;
  std::unordered_map<SessionId, Session> sessions_ GUARDED_BY(mu_);

  Mutex state_mu_;
  KeepaliveState state_ GUARDED_BY(state_mu_);
};

}  // namespace kvfabric
