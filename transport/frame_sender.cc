#include "transport/frame_sender.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace kvfabric {

namespace {
constexpr std::size_t kMaxVectors = 64;
// Enough for one system call to pay off; a socket buffer rarely takes more at once.
constexpr std::size_t kGatherBytes = std::size_t{4} << 20U;
}  // namespace

void FrameSender::Enqueue(OutgoingFrame frame) {
  std::size_t payload_bytes = 0;
  for (const ByteSpan& part : frame.payload) payload_bytes += part.size();
  KVF_CHECK(payload_bytes <= 0xFFFFFFFFU && frame.body.size() <= 0xFFFFFFFFU &&
                frame.descriptors.size() <= kMaxDescriptorsPerWrite,
            "a frame too large for its header");
  frame.header.body_bytes = static_cast<std::uint32_t>(frame.body.size());
  frame.header.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
  frame.header.descriptors = static_cast<std::uint8_t>(frame.descriptors.size());
  frame.header.body_hash = FrameBodyHash(AsBytes(frame.body));
  Pending pending;
  pending.head = EncodeFrameHeader(frame.header);
  pending.total = kFrameHeaderBytes + frame.body.size() + payload_bytes;
  pending.frame = std::move(frame);
  queued_bytes_ += pending.total;
  queue_.push_back(std::move(pending));
}

IoResult FrameSender::Flush(Stream& stream) {
  while (!queue_.empty()) {
    vectors_.clear();
    fds_.clear();
    Gather(vectors_, fds_);
    IoResult written = stream.Write(vectors_, fds_);
    if (written.state != IoState::kDone) return written;
    Advance(written.bytes);
  }
  return {};
}

// Descriptors travel with the first byte of their own frame, so a frame that has some starts a
// system call of its own.
void FrameSender::Gather(std::vector<iovec>& into, std::vector<int>& descriptors) const {
  std::size_t gathered = 0;
  for (const Pending& pending : queue_) {
    const bool first = into.empty();
    if (into.size() + 2 > kMaxVectors || gathered >= kGatherBytes) return;
    if (!pending.frame.descriptors.empty() && pending.written == 0) {
      if (!first) return;
      for (const auto& fd : pending.frame.descriptors) descriptors.push_back(fd->get());
    }
    std::size_t skip = pending.written;
    const auto add = [&](ByteSpan bytes) {
      const std::size_t skipped = std::min(skip, bytes.size());
      skip -= skipped;
      bytes = bytes.subspan(skipped);
      if (bytes.empty() || into.size() >= kMaxVectors) return;
      into.push_back({const_cast<std::byte*>(bytes.data()), bytes.size()});
      gathered += bytes.size();
    };
    add(pending.head);
    add(AsBytes(pending.frame.body));
    for (const ByteSpan& part : pending.frame.payload) add(part);
    if (into.size() >= kMaxVectors) return;  // this frame may not be whole: nothing may follow
  }
}

void FrameSender::Advance(std::size_t written) {
  bytes_ += written;
  queued_bytes_ -= written;
  while (written > 0) {
    Pending& front = queue_.front();
    const std::size_t n = std::min(written, front.total - front.written);
    front.written += n;
    written -= n;
    if (front.written == front.total) {
      ++frames_;
      queue_.pop_front();
    }
  }
}

}  // namespace kvfabric
