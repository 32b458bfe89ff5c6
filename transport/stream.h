#pragma once

// Stream: a connected byte stream that never blocks. Two implementations: PlainStream (TCP and
// Unix sockets, the latter also carry descriptors) and TlsStream (transport/tls_stream.h).
//
// One owner, one thread at a time. After kClosed or kFailed only the destructor may be called.

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvfabric {

enum class IoState : std::uint8_t {
  kDone,       // some bytes moved: call again for more
  kWantRead,   // nothing moved: call again when the socket is readable
  kWantWrite,  // nothing moved: call again when the socket is writable
  kClosed,     // the other end closed in order
  kFailed,     // `status` says why
};

struct IoResult {
  IoState state = IoState::kDone;
  std::size_t bytes = 0;
  Status status;
};

// SCM_MAX_FD is 253 in Linux; a frame carries at most this many.
inline constexpr std::size_t kMaxDescriptorsPerWrite = 200;

class Stream {
 public:
  virtual ~Stream() = default;

  // Completes what must happen before bytes flow (TLS); kDone at once for plain streams.
  virtual IoResult Handshake() = 0;
  // Reads into the buffers, in order. At most IOV_MAX of them are looked at.
  virtual IoResult Read(std::span<const iovec> into) = 0;
  // Writes a prefix of the buffers. `descriptors` go with the first byte; INVALID_ARGUMENT when
  // the stream cannot carry any.
  virtual IoResult Write(std::span<const iovec> from, std::span<const int> descriptors) = 0;

  // Descriptors received so far, in order, ownership passes to the caller.
  virtual std::vector<UniqueFd> TakeDescriptors() { return {}; }
  // True when bytes wait inside the stream that the socket will not announce (TLS records).
  virtual bool HasBuffered() const { return false; }
  virtual int fd() const = 0;
  // Whom the other end proved to be in the hand-shake: the URI of its certificate. Empty for a
  // plain stream, and where there is none or more than one.
  virtual std::string peer_identity() const { return {}; }
  virtual bool encrypted() const { return false; }
  // For logs: address of the other end.
  virtual const std::string& peer() const = 0;
};

}  // namespace kvfabric
