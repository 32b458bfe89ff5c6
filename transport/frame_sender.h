#pragma once

// FrameSender: frames waiting to go out on one stream, in order. Payload bytes are not copied:
// each frame shares ownership of them (a lease, a staging region) until its last byte is written
// or the sender is destroyed.
//
// One thread at a time. Not bounded by itself: who enqueues looks at queued_bytes().

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transport/frame_header.h"
#include "transport/stream.h"

namespace kvfabric {

struct OutgoingFrame {
  FrameHeader header{};  // lengths, descriptor count and hashes are filled in
  std::string body{};
  std::vector<ByteSpan> payload{};                             // sent one after the other
  std::shared_ptr<const void> payload_owner{};                 // keeps `payload` alive
  std::vector<std::shared_ptr<const UniqueFd>> descriptors{};  // at most kMaxDescriptorsPerWrite
};

class FrameSender {
 public:
  void Enqueue(OutgoingFrame frame);
  // kDone: all is written. kWantWrite, kWantRead: later. kClosed, kFailed: the stream ended.
  IoResult Flush(Stream& stream);

  bool empty() const { return queue_.empty(); }
  std::size_t queued_bytes() const { return queued_bytes_; }
  std::size_t queued_frames() const { return queue_.size(); }
  std::uint64_t frames() const { return frames_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Pending {
    std::array<std::byte, kFrameHeaderBytes> head;
    OutgoingFrame frame;
    std::size_t total = 0;
    std::size_t written = 0;
  };

  void Gather(std::vector<iovec>& into, std::vector<int>& descriptors) const;
  void Advance(std::size_t written);

  std::deque<Pending> queue_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t frames_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<iovec> vectors_;  // kept to save allocations
  std::vector<int> fds_;
};

}  // namespace kvfabric
