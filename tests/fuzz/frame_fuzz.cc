// Any bytes as a stream of frames, arriving in pieces of any size, and any bytes as the body of
// each message. Nothing may be read or written out of bounds; what is taken keeps its promises.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "transport/frame_receiver.h"
#include "transport/local_messages.h"

namespace kvfabric {
namespace {

// Gives `bytes` in pieces whose sizes the first bytes of the input decide.
class PiecewiseStream final : public Stream {
 public:
  PiecewiseStream(ByteSpan sizes, ByteSpan bytes) : sizes_(sizes), bytes_(bytes) {}
  IoResult Handshake() override { return {}; }
  IoResult Read(std::span<const iovec> into) override {
    if (bytes_.empty()) return {IoState::kClosed, 0, {}};
    std::size_t piece = 1 + static_cast<std::size_t>(sizes_[turn_++ % sizes_.size()]) * 97;
    IoResult result;
    for (const iovec& vector : into) {
      const std::size_t n = std::min({vector.iov_len, piece, bytes_.size()});
      if (n > 0) std::memcpy(vector.iov_base, bytes_.data(), n);
      bytes_ = bytes_.subspan(n);
      piece -= n;
      result.bytes += n;
    }
    return result;
  }
  IoResult Write(std::span<const iovec>, std::span<const int>) override { return {}; }
  int fd() const override { return -1; }
  const std::string& peer() const override { return peer_; }

 private:
  const ByteSpan sizes_;
  ByteSpan bytes_;
  std::size_t turn_ = 0;
  const std::string peer_ = "fuzz";
};

class CheckingReader final : public FrameReader {
 public:
  Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override {
    KVF_CHECK(expected_ == 0, "a frame inside a payload");
    KVF_CHECK(frame.body.size() == frame.header.body_bytes, "the whole body");
    expected_ = frame.header.payload_bytes;
    if (expected_ == 0) return Status::Ok();
    // Two parts and a hole, where it is long enough.
    memory_ = std::make_unique<std::byte[]>(expected_);
    const std::size_t half = expected_ / 2;
    parts.push_back({memory_.get(), half});
    parts.push_back(
        {frame.header.request_id % 2 == 0 ? nullptr : memory_.get() + half, expected_ - half});
    return Status::Ok();
  }
  Status OnPayload(const std::vector<std::uint64_t>& checksums) override {
    const std::size_t half = expected_ / 2;
    KVF_CHECK(expected_ > 0 && checksums.size() == 2, "a checksum a part");
    KVF_CHECK(checksums[0] == BlockChecksum(ByteSpan(memory_.get(), half)), "of its bytes");
    expected_ = 0;
    return Status::Ok();
  }

 private:
  std::size_t expected_ = 0;
  std::unique_ptr<std::byte[]> memory_;
};

void ReadAsStream(ByteSpan data) {
  if (data.size() < 8) return;
  PiecewiseStream stream(data.first(8), data.subspan(8));
  FrameReceiver receiver({.max_body_bytes = 4'096, .max_payload_bytes = 1U << 20U});
  CheckingReader reader;
  const IoResult end = receiver.Pump(stream, reader, SIZE_MAX);
  KVF_CHECK(end.state == IoState::kClosed || (end.state == IoState::kFailed && !end.status.ok()),
            "a stream of bytes ends");
}

// One whole frame around the input, so that bodies and payloads are reached at all.
void ReadWrapped(ByteSpan data) {
  if (data.size() < 10) return;
  const ByteSpan rest = data.subspan(10);
  const std::size_t body =
      std::min<std::size_t>(rest.size(), static_cast<std::size_t>(data[8]) * 8);
  FrameHeader header;
  header.request_id = static_cast<std::uint64_t>(data[9]);
  header.body_bytes = static_cast<std::uint32_t>(body);
  header.payload_bytes = static_cast<std::uint32_t>(rest.size() - body);
  header.body_hash = FrameBodyHash(rest.first(body));
  const auto head = EncodeFrameHeader(header);
  std::vector<std::byte> bytes(data.begin(), data.begin() + 8);
  for (int twice = 0; twice < 2; ++twice) {
    bytes.insert(bytes.end(), head.begin(), head.end());
    bytes.insert(bytes.end(), rest.begin(), rest.end());
  }
  ReadAsStream(bytes);
}

template <typename T>
void DecodeOne(ByteSpan body) {
  const auto message = wire::Decode<T>(body);
  KVF_CHECK(message.ok() || message.status().code() == StatusCode::kInvalidArgument, "says why");
}

void DecodeAll(ByteSpan body) {
  DecodeOne<wire::HelloRequest>(body);
  DecodeOne<wire::HelloReply>(body);
  DecodeOne<wire::NewMemfd>(body);
  DecodeOne<wire::CloseMemfd>(body);
  DecodeOne<wire::StagingRequest>(body);
  DecodeOne<wire::LookupRequest>(body);
  DecodeOne<wire::LookupReply>(body);
  DecodeOne<wire::GetRequest>(body);
  DecodeOne<wire::GetReply>(body);
  DecodeOne<wire::PutRequest>(body);
  DecodeOne<wire::PutInlineRequest>(body);
  DecodeOne<wire::PutReply>(body);
  DecodeOne<wire::ReleaseRequest>(body);
  DecodeOne<wire::RenewRequest>(body);
  DecodeOne<wire::RenewReply>(body);
  DecodeOne<wire::DeleteRequest>(body);
  DecodeOne<wire::DeleteReply>(body);
  DecodeOne<wire::StatReply>(body);
}

}  // namespace
}  // namespace kvfabric

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const kvfabric::ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  kvfabric::ReadAsStream(bytes);
  kvfabric::ReadWrapped(bytes);
  kvfabric::DecodeAll(bytes);
  return 0;
}
