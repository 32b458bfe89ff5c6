#pragma once

// TLS under gRPC for both ends of our services: certificates that are renewed while connections
// live, who the other end is, and what was refused. Here, because agent and operator are the two
// ends of one connection and share no other room that may see gRPC.
//
// TLS 1.3 only. Any thread; sources must outlive servers and channels.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/certificate.h"
#include "common/metrics.h"

namespace grpc {
class ChannelCredentials;
class ServerContextBase;
class ServerCredentials;
}  // namespace grpc

namespace kvfabric {

// Asks the source at each connection. A client may come without a certificate (then it must bring a
// token); one that brings a certificate which is not trusted or is over is refused. Must outlive
// the server it is given to.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(TlsSource source);

// For one connection: the server must be one of `expected`, whatever its address.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    const TlsMaterial& material, std::vector<CertificateIdentity> expected);

// Who the caller proved to be in the TLS handshake; nullopt when it brought no certificate, or the
// connection is in clear.
std::optional<CertificateIdentity> CallerIdentity(const grpc::ServerContextBase& context);

// Counts refused handshakes as `PREFIX_tls_refused_total{reason}` and logs them, at most one a
// second for each reason. gRPC tells of them in its log only, which this reads for as long as it
// lives. Reasons: untrusted (nobody trusted signed it, or it is over), wrong_identity, not_tls,
// old_version, refused_by_peer, other.
class HandshakeWatch {
 public:
  HandshakeWatch(MetricsRegistry& metrics, const std::string& prefix);
  ~HandshakeWatch();
  HandshakeWatch(const HandshakeWatch&) = delete;  // registered by address
  HandshakeWatch& operator=(const HandshakeWatch&) = delete;

  class Counts;

 private:
  const std::shared_ptr<Counts> counts_;
};

}  // namespace kvfabric
