#pragma once

// Two connected non-blocking sockets, and blocking reads and writes on the raw end: a test plays
// the other side byte by byte.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/unique_fd.h"
#include "transport/frame_header.h"
#include "transport/plain_stream.h"

namespace kvfabric {

struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
};

inline SocketPair MakeSocketPair() {
  int fds[2] = {-1, -1};
  KVF_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0,
            "socketpair failed");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Waits at most `timeout_ms` for each byte range; false when the other end is gone.
inline bool WriteAll(int fd, std::string_view bytes, int timeout_ms = 10'000) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
      continue;
    }
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    pollfd ready{fd, POLLOUT, 0};
    if (::poll(&ready, 1, timeout_ms) == 0) return false;
  }
  return true;
}

// Reads exactly `count` bytes; fewer at the end of the stream or after `timeout_ms` of silence.
inline std::string ReadExactly(int fd, std::size_t count, int timeout_ms = 10'000) {
  std::string got(count, '\0');
  std::size_t at = 0;
  while (at < count) {
    const ssize_t n = ::recv(fd, got.data() + at, count - at, 0);
    if (n > 0) {
      at += static_cast<std::size_t>(n);
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) break;
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, timeout_ms) == 0) break;
  }
  got.resize(at);
  return got;
}

// True when the other end closes within `timeout_ms`, whatever it still sent.
inline bool ReadsEnd(int fd, int timeout_ms = 10'000) {
  char scratch[4096];
  for (;;) {
    const ssize_t n = ::recv(fd, scratch, sizeof(scratch), 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) return true;
    if (n > 0) continue;
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, timeout_ms) == 0) return false;
  }
}

inline std::string EncodeRawFrame(FrameHeader header, std::string_view body,
                                  std::string_view payload = {}) {
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.body_hash = FrameBodyHash(AsBytes(body));
  const auto head = EncodeFrameHeader(header);
  std::string bytes(AsText(head));
  bytes.append(body).append(payload);
  return bytes;
}

struct RawFrame {
  bool ok = false;
  FrameHeader header;
  std::string body;
  std::string payload;
};

inline RawFrame ReadRawFrame(int fd, int timeout_ms = 10'000) {
  RawFrame frame;
  const std::string head = ReadExactly(fd, kFrameHeaderBytes, timeout_ms);
  if (head.size() != kFrameHeaderBytes) return frame;
  const auto bytes = AsBytes(head);
  const auto header = DecodeFrameHeader(
      std::span<const std::byte, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes),
      {.max_descriptors = 255});
  if (!header.ok()) return frame;
  frame.header = *header;
  frame.body = ReadExactly(fd, header->body_bytes, timeout_ms);
  frame.payload = ReadExactly(fd, header->payload_bytes, timeout_ms);
  frame.ok = frame.body.size() == header->body_bytes &&
             frame.payload.size() == header->payload_bytes &&
             FrameBodyHash(AsBytes(frame.body)) == header->body_hash;
  return frame;
}

}  // namespace kvfabric
