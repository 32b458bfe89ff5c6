#include "transport/frame_receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace kvfabric {

namespace {
constexpr std::size_t kBufferBytes = std::size_t{16} << 10U;
// A body buffer that grew beyond this is given back after its frame.
constexpr std::size_t kKeptBodyBytes = std::size_t{64} << 10U;

Status DescriptorFault(std::size_t have, std::size_t announced) {
  return InvalidArgument("frame: receive: " + std::to_string(have) + " descriptors where " +
                         std::to_string(announced) + " were announced");
}
}  // namespace

FrameReceiver::FrameReceiver(FrameLimits limits) : limits_(limits), buffer_(kBufferBytes) {}

FrameReceiver::~FrameReceiver() = default;

IoResult FrameReceiver::Pump(Stream& stream, FrameReader& reader, std::size_t max_bytes) {
  std::size_t taken = 0;
  for (;;) {
    Status status = ConsumeBuffered(reader);
    if (status.ok() && aborted_) status = Cancelled("frame: receive: aborted");
    if (!status.ok()) return {IoState::kFailed, taken, std::move(status)};
    if (taken >= max_bytes || (paused_ && state_ == State::kHeader)) {
      return {IoState::kDone, taken, {}};
    }
    std::size_t direct = 0;
    IoResult read = state_ == State::kPayload ? ReadPayload(stream, max_bytes - taken, direct)
                                              : ReadBuffered(stream);
    if (read.state == IoState::kClosed && mid_frame()) {
      return {IoState::kFailed, taken, Unavailable(stream.peer() + ": closed inside a frame")};
    }
    if (read.state != IoState::kDone) return {read.state, taken, std::move(read.status)};
    taken += read.bytes;
    bytes_ += read.bytes;
    status = CheckDescriptors(stream);
    if (status.ok() && direct > 0) status = AdvancePayload(direct, reader);
    if (!status.ok()) return {IoState::kFailed, taken, std::move(status)};
  }
}

// Small frames come many in one system call; large bodies are received into place.
IoResult FrameReceiver::ReadBuffered(Stream& stream) {
  if (state_ == State::kBody && header_.body_bytes - body_filled_ >= buffer_.size()) {
    const iovec into{body_.data() + body_filled_, header_.body_bytes - body_filled_};
    IoResult read = stream.Read({&into, 1});
    body_filled_ += read.bytes;
    return read;
  }
  if (consumed_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + consumed_, buffered());
    filled_ -= consumed_;
    consumed_ = 0;
  }
  const iovec into{buffer_.data() + filled_, buffer_.size() - filled_};
  IoResult read = stream.Read({&into, 1});
  filled_ += read.bytes;
  return read;
}

// `direct` = bytes that went into the payload; what came behind its last byte is in the buffer.
IoResult FrameReceiver::ReadPayload(Stream& stream, std::size_t max_bytes, std::size_t& direct) {
  KVF_DCHECK(buffered() == 0, "payload bytes left in the buffer");
  consumed_ = filled_ = 0;
  const PayloadPart& part = parts_[part_];
  const std::size_t wanted = std::max<std::size_t>(std::min(piece_left(), max_bytes), 1);
  if (part.to == nullptr) {
    const iovec scratch{buffer_.data(), std::min(wanted, buffer_.size())};
    IoResult read = stream.Read({&scratch, 1});
    direct = read.bytes;
    return read;
  }
  const iovec into[2] = {{part.to + part_at_, wanted}, {buffer_.data(), buffer_.size()}};
  const bool last = part_ + 1 == parts_.size() && part_at_ + wanted == part.bytes;
  IoResult read = stream.Read({into, last ? 2U : 1U});
  direct = std::min(read.bytes, wanted);
  filled_ = read.bytes - direct;
  return read;
}

Status FrameReceiver::CheckDescriptors(Stream& stream) {
  for (UniqueFd& fd : stream.TakeDescriptors()) descriptors_.push_back(std::move(fd));
  if (descriptors_.size() > 2 * kMaxDescriptorsPerWrite ||
      (!descriptors_.empty() && limits_.max_descriptors == 0)) {
    return DescriptorFault(descriptors_.size(), limits_.max_descriptors);
  }
  return Status::Ok();
}

Status FrameReceiver::ConsumeBuffered(FrameReader& reader) {
  while (!aborted_) {
    switch (state_) {
      case State::kHeader: {
        // Descriptors come with the first byte of their frame.
        if (buffered() == 0 && !descriptors_.empty()) {
          return DescriptorFault(descriptors_.size(), 0);
        }
        if (paused_ || buffered() < kFrameHeaderBytes) return Status::Ok();
        KVF_RETURN_IF_ERROR(TakeHeader(reader));
        break;
      }
      case State::kBody: {
        const std::size_t n = std::min<std::size_t>(buffered(), header_.body_bytes - body_filled_);
        std::memcpy(body_.data() + body_filled_, buffer_.data() + consumed_, n);
        consumed_ += n;
        body_filled_ += n;
        if (body_filled_ < header_.body_bytes) return Status::Ok();
        KVF_RETURN_IF_ERROR(DeliverFrame(AsBytes(body_), reader));
        if (body_.capacity() > kKeptBodyBytes) body_ = std::string();
        break;
      }
      case State::kPayload: {
        const std::size_t n = std::min(buffered(), piece_left());
        if (n == 0) return Status::Ok();
        const PayloadPart& part = parts_[part_];
        if (part.to != nullptr) std::memcpy(part.to + part_at_, buffer_.data() + consumed_, n);
        consumed_ += n;
        KVF_RETURN_IF_ERROR(AdvancePayload(n, reader));
        break;
      }
    }
  }
  return Status::Ok();
}

Status FrameReceiver::TakeHeader(FrameReader& reader) {
  header_ = FrameHeader{};  // an error reply to this frame must not carry the last one's id
  const std::span<const std::byte, kFrameHeaderBytes> bytes(buffer_.data() + consumed_,
                                                            kFrameHeaderBytes);
  KVF_ASSIGN_OR_RETURN(header_, DecodeFrameHeader(bytes, limits_));
  consumed_ += kFrameHeaderBytes;
  if (descriptors_.size() < header_.descriptors) {
    return DescriptorFault(descriptors_.size(), header_.descriptors);
  }
  if (buffered() >= header_.body_bytes) {
    const ByteSpan body(buffer_.data() + consumed_, header_.body_bytes);
    consumed_ += header_.body_bytes;
    return DeliverFrame(body, reader);
  }
  state_ = State::kBody;
  body_.resize(header_.body_bytes);
  body_filled_ = 0;
  return Status::Ok();
}

Status FrameReceiver::DeliverFrame(ByteSpan body, FrameReader& reader) {
  if (FrameBodyHash(body) != header_.body_hash) {
    return InvalidArgument("frame: receive: body hash differs");
  }
  ReceivedFrame frame{header_, body, {}};
  const auto split = descriptors_.begin() + header_.descriptors;
  frame.descriptors.assign(std::make_move_iterator(descriptors_.begin()),
                           std::make_move_iterator(split));
  descriptors_.erase(descriptors_.begin(), split);
  parts_.clear();
  ++frames_;
  state_ = State::kHeader;
  KVF_RETURN_IF_ERROR(reader.OnFrame(std::move(frame), parts_));
  if (header_.payload_bytes == 0) return Status::Ok();
  if (parts_.empty()) parts_.push_back({nullptr, header_.payload_bytes});
  std::size_t total = 0;
  for (const PayloadPart& part : parts_) total += part.bytes;
  KVF_CHECK(total == header_.payload_bytes, "destinations do not add up to the payload");
  state_ = State::kPayload;
  checksums_.clear();
  part_ = part_at_ = piece_at_ = 0;
  hasher_.Reset();
  return AdvancePayload(0, reader);  // passes parts of no bytes
}

std::size_t FrameReceiver::piece_left() const {
  return std::min(parts_[part_].bytes, piece_at_ + kPieceBytes) - part_at_;
}

Status FrameReceiver::AdvancePayload(std::size_t bytes, FrameReader& reader) {
  part_at_ += bytes;
  while (part_ < parts_.size()) {
    const PayloadPart& part = parts_[part_];
    if (piece_left() > 0) return Status::Ok();
    if (part.to != nullptr) {
      hasher_.AddPiece(ByteSpan(part.to, part.bytes).subspan(piece_at_, part_at_ - piece_at_));
    }
    piece_at_ = part_at_;
    if (part_at_ < part.bytes) return Status::Ok();
    checksums_.push_back(part.to != nullptr ? hasher_.Finish() : 0);
    hasher_.Reset();
    part_at_ = piece_at_ = 0;
    ++part_;
  }
  state_ = State::kHeader;
  return reader.OnPayload(checksums_);
}

}  // namespace kvfabric
