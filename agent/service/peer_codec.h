#pragma once

// Peer messages as protobuf to and from plain structs. Decoders check every packed length; what
// does not add up is INVALID_ARGUMENT. Any thread.

#include "agent/cluster/peer_link.h"
#include "agent/cluster/peer_messages.h"
#include "common/status.h"

namespace kvfabric::v1 {
class PeerAnnounce;
class PeerAnnounceReply;
class PeerDelete;
class PeerKeepaliveReply;
class PeerLease;
class PeerLeaseReply;
class PeerLocate;
class PeerLocateReply;
class PeerOffer;
class PeerOfferReply;
}  // namespace kvfabric::v1

namespace kvfabric {

void Encode(const KeepaliveState& from, v1::PeerKeepaliveReply& to);
KeepaliveState Decode(const v1::PeerKeepaliveReply& from);

void Encode(const AnnounceRequest& from, v1::PeerAnnounce& to);
Result<AnnounceRequest> Decode(const v1::PeerAnnounce& from);
void Encode(const AnnounceReply& from, v1::PeerAnnounceReply& to);
Result<AnnounceReply> Decode(const v1::PeerAnnounceReply& from);

void Encode(const LocateRequest& from, v1::PeerLocate& to);
Result<LocateRequest> Decode(const v1::PeerLocate& from);
void Encode(const LocateReply& from, v1::PeerLocateReply& to);
Result<LocateReply> Decode(const v1::PeerLocateReply& from);

void Encode(const LeaseRequest& from, v1::PeerLease& to);
Result<LeaseRequest> Decode(const v1::PeerLease& from);
void Encode(const LeaseReply& from, v1::PeerLeaseReply& to);
Result<LeaseReply> Decode(const v1::PeerLeaseReply& from);

void Encode(const OfferRequest& from, v1::PeerOffer& to);
Result<OfferRequest> Decode(const v1::PeerOffer& from);
void Encode(const OfferReply& from, v1::PeerOfferReply& to);
Result<OfferReply> Decode(const v1::PeerOfferReply& from);

void Encode(const DeleteAtPeerRequest& from, v1::PeerDelete& to);
Result<DeleteAtPeerRequest> Decode(const v1::PeerDelete& from);

}  // namespace kvfabric
