#pragma once

// RemoteLease: leases at peers that belong to one lease of a client here. It is the companion of
// that lease in the LeaseTable, so that it ends with it: released, expired or its session closed.
// RemoteLeaseBook finds it by the client's lease id.
//
// Any thread. The destructor tells each holder; a holder that is down needs no telling, as its
// session ended. PeerSet and book outlive every RemoteLease.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agent/cluster/node_names.h"
#include "agent/cluster/peer_set.h"
#include "common/block_key.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace kvfabric {

class RemoteLeaseBook;

class RemoteLease {
 public:
  struct Grant {
    KeyId id;
    std::uint64_t length_bytes = 0;
  };
  struct Part {
    NodeIndex holder = kNoNode;
    std::uint64_t lease_id = 0;
    std::vector<Grant> grants;
  };
  struct Place {
    NodeIndex holder = kNoNode;
    std::uint64_t lease_id = 0;
    std::uint64_t length_bytes = 0;
  };

  RemoteLease(const PeerSet& peers, std::string pool_uid)
      : peers_(peers), pool_uid_(std::move(pool_uid)) {}
  ~RemoteLease();
  RemoteLease(const RemoteLease&) = delete;  // would release twice
  RemoteLease& operator=(const RemoteLease&) = delete;

  const std::string& pool_uid() const { return pool_uid_; }
  void Add(Part part) EXCLUDES(mu_);
  std::optional<Place> Find(const KeyId& id) const EXCLUDES(mu_);
  // Releases the parts that hold none of the ids `keep` says yes to; false when none is left.
  bool Prune(const std::function<bool(const KeyId&)>& keep) EXCLUDES(mu_);
  std::vector<Part> Parts() const EXCLUDES(mu_);
  // True: the caller leases all parts anew. Not again within kRenewalPause: by so much at most a
  // holder's lease ends before the client's does.
  bool BeginRenewal(Clock::TimePoint now, Clock::Duration ttl) EXCLUDES(mu_);
  // A part leased anew at its holder: what `fresh` does not grant is gone. The old lease is
  // released at a renewal a quarter of `ttl` later, as reads that began under it may be under way.
  void Replace(std::uint64_t old_lease_id, Part fresh, Clock::TimePoint now) EXCLUDES(mu_);

 private:
  friend class RemoteLeaseBook;
  static constexpr std::chrono::milliseconds kRenewalPause{100};
  struct Superseded {
    Part part;
    Clock::TimePoint since{};
  };
  void ReleaseParts(const std::vector<Part>& parts) const;
  void IndexLocked() REQUIRES(mu_);

  const PeerSet& peers_;
  const std::string pool_uid_;
  mutable Mutex mu_;
  std::vector<Part> parts_ GUARDED_BY(mu_);
  std::deque<Superseded> superseded_ GUARDED_BY(mu_);  // oldest first
  Clock::TimePoint renewed_at_ GUARDED_BY(mu_){};
  std::unordered_map<KeyId, Place, KeyIdHash> places_ GUARDED_BY(mu_);
};

class RemoteLeaseBook {
 public:
  // Entries of leases that ended are dropped as new ones come.
  void Enter(std::uint64_t lease_id, const std::shared_ptr<RemoteLease>& lease) EXCLUDES(mu_);
  std::shared_ptr<RemoteLease> Find(std::uint64_t lease_id) const EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::unordered_map<std::uint64_t, std::weak_ptr<RemoteLease>> leases_ GUARDED_BY(mu_);
  std::size_t sweep_at_ GUARDED_BY(mu_) = 64;
};

}  // namespace kvfabric
