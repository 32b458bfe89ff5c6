#pragma once

// TlsStream: TLS 1.3 over a socket, both ends proving themselves by certificate. A library of its
// own (kvfabric::transport_tls), because the engine library must not load OpenSSL.
//
// TlsContext: keys and trust, immutable and shared; a new one is made when certificates rotate,
// and streams keep theirs. Any thread. TlsStream: as Stream.

#include <memory>
#include <string>

#include "common/status.h"
#include "transport/stream.h"

namespace kvfabric {

class TlsContext : public std::enable_shared_from_this<TlsContext> {
 public:
  struct Options {
    std::string certificate_pem;  // own chain, leaf first
    std::string private_key_pem;
    std::string trusted_pem;  // whoever signed the other end's; may hold old and new at once
  };
  // INVALID_ARGUMENT names the part that cannot be read, never its contents.
  static Result<std::shared_ptr<const TlsContext>> Create(const Options& options);
  virtual ~TlsContext() = default;
  TlsContext(const TlsContext&) = delete;  // shared, never copied
  TlsContext& operator=(const TlsContext&) = delete;

  // The server's end. The handshake fails without a trusted client certificate.
  virtual Result<std::unique_ptr<Stream>> Accept(UniqueFd fd, std::string peer) const = 0;
  // The same for a port that also serves those who speak in clear: the first byte tells.
  std::unique_ptr<Stream> AcceptEither(UniqueFd fd, std::string peer) const;
  // The client's end. `expected_name`: DNS name, address or URI that the certificate must carry.
  virtual Result<std::unique_ptr<Stream>> Connect(UniqueFd fd, std::string peer,
                                                  const std::string& expected_name) const = 0;

 protected:
  TlsContext() = default;
};

}  // namespace kvfabric
