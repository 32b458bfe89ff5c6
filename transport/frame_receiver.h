#pragma once

// FrameReceiver: takes frames apart as they arrive. The handler sees header and body, says where
// the payload goes, and the payload is received straight there and hashed piece by piece while
// still in cache. Used by FrameConnection (on a loop) and by the client (in the calling thread).
//
// One thread at a time. Bytes held: one body of at most FrameLimits::max_body_bytes.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "transport/frame_header.h"
#include "transport/stream.h"

namespace kvfabric {

struct ReceivedFrame {
  FrameHeader header;
  ByteSpan body;  // until the call returns
  std::vector<UniqueFd> descriptors;
};

// Where one consecutive part of a payload goes; null = read and thrown away. Parts are what
// checksums are made of: one block each.
struct PayloadPart {
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

class FrameReader {
 public:
  virtual ~FrameReader() = default;
  // A frame's header and body are there. When the header announces a payload, fill `parts`: their
  // bytes must add up to it, and the memory must stay until OnPayload or the end of the
  // connection. An empty list throws the payload away. An error ends the connection with it.
  virtual Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) = 0;
  // The payload of the last frame is complete; one checksum per part, 0 for thrown-away ones.
  virtual Status OnPayload(const std::vector<std::uint64_t>& checksums) = 0;
};

class FrameReceiver {
 public:
  explicit FrameReceiver(FrameLimits limits);
  ~FrameReceiver();
  FrameReceiver(const FrameReceiver&) = delete;  // destinations would be written twice
  FrameReceiver& operator=(const FrameReceiver&) = delete;

  // Reads until the stream has no more, `max_bytes` were taken (kDone), the end (kClosed; kFailed
  // when in the middle of a frame) or a fault of the other side (kFailed, the status to answer).
  IoResult Pump(Stream& stream, FrameReader& reader, std::size_t max_bytes);

  // Stops Pump before the next frame; for back-pressure, also from inside OnFrame. Frames that
  // are here already are handled by the next Pump after it.
  void set_paused(bool paused) { paused_ = paused; }
  bool paused() const { return paused_; }
  // Pump returns (kFailed, CANCELLED) as soon as the handler it is in returns.
  void Abort() { aborted_ = true; }
  // True between the first byte of a frame and its last.
  bool mid_frame() const { return state_ != State::kHeader || filled_ > consumed_; }
  bool in_payload() const { return state_ == State::kPayload; }
  // Of the frame being received, for an error reply; 0 when none was understood.
  std::uint64_t request_id() const { return header_.request_id; }
  std::uint64_t frames() const { return frames_; }
  std::uint64_t bytes() const { return bytes_; }
  FrameLimits& limits() { return limits_; }

 private:
  enum class State : std::uint8_t { kHeader, kBody, kPayload };

  Status ConsumeBuffered(FrameReader& reader);
  Status TakeHeader(FrameReader& reader);
  Status DeliverFrame(ByteSpan body, FrameReader& reader);
  Status AdvancePayload(std::size_t bytes, FrameReader& reader);
  Status CheckDescriptors(Stream& stream);
  IoResult ReadPayload(Stream& stream, std::size_t max_bytes, std::size_t& direct);
  IoResult ReadBuffered(Stream& stream);
  std::size_t piece_left() const;
  std::size_t buffered() const { return filled_ - consumed_; }

  FrameLimits limits_;
  State state_ = State::kHeader;
  bool paused_ = false;
  bool aborted_ = false;
  FrameHeader header_;
  std::vector<UniqueFd> descriptors_;

  std::vector<std::byte> buffer_;  // headers, small bodies, what came behind them
  std::size_t consumed_ = 0;
  std::size_t filled_ = 0;

  std::string body_;
  std::size_t body_filled_ = 0;

  std::vector<PayloadPart> parts_;
  std::vector<std::uint64_t> checksums_;
  std::size_t part_ = 0;      // index of the part being filled
  std::size_t part_at_ = 0;   // bytes of it that are there
  std::size_t piece_at_ = 0;  // where its unhashed piece starts
  BlockHasher hasher_;

  std::uint64_t frames_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvfabric
