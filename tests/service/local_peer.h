#pragma once

// LocalPeer: a client of the local protocol at the level of frames, for tests that must be able to
// behave badly. Blocking; one thread.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/frame_receiver.h"
#include "transport/frame_sender.h"
#include "transport/local_messages.h"
#include "transport/plain_stream.h"

namespace kvfabric {

class LocalPeer final : public FrameReader {
 public:
  struct Frame {
    FrameHeader header;
    std::string body;
    std::string payload;
    std::vector<UniqueFd> descriptors;
  };

  explicit LocalPeer(const SocketAddress& address)
      : receiver_({.max_descriptors = static_cast<std::uint8_t>(kMaxDescriptorsPerWrite)}) {
    auto fd = ConnectBlocking(address, Deadline::After(Clock::System(), std::chrono::seconds(5)));
    KVF_CHECK(fd.ok(), "cannot connect");
    stream_ = std::make_unique<PlainStream>(std::move(*fd), "service", address.is_unix());
  }

  // The answer's last frame; earlier parts and the agent's own frames stay in `others`. Its `op`
  // is kError with `lost` set when the connection ended first.
  Frame Call(FrameOp op, std::string body, std::string payload = {}, int fd = -1,
             std::uint32_t remaining_ms = 10'000) {
    return Await(Send(op, std::move(body), std::move(payload), fd, remaining_ms));
  }
  std::uint64_t Send(FrameOp op, std::string body, std::string payload = {}, int fd = -1,
                     std::uint32_t remaining_ms = 10'000) {
    OutgoingFrame frame;
    frame.header.op = op;
    frame.header.request_id = ++last_id_;
    frame.header.remaining_ms = remaining_ms;
    frame.body = std::move(body);
    if (!payload.empty()) {
      const auto owner = std::make_shared<std::string>(std::move(payload));
      frame.header.payload_checksum =
          claimed_checksum.value_or(BlockChecksum(AsBytes(std::string_view(*owner))));
      frame.payload.push_back(AsBytes(std::string_view(*owner)));
      frame.payload_owner = owner;
    }
    if (fd >= 0) frame.descriptors.push_back(std::make_shared<const UniqueFd>(::dup(fd)));
    SendFrame(std::move(frame));
    return last_id_;
  }
  void SendFrame(OutgoingFrame frame) {
    sender_.Enqueue(std::move(frame));
    for (;;) {
      const IoResult written = sender_.Flush(*stream_);
      if (written.state != IoState::kWantWrite) return;
      pollfd ready{stream_->fd(), POLLOUT, 0};
      if (::poll(&ready, 1, 10'000) == 0) return;
    }
  }
  Frame Await(std::uint64_t id) {
    for (;;) {
      Frame frame = Next();
      if (lost) return frame;
      if (frame.header.reply() && frame.header.request_id == id && !frame.header.more()) {
        return frame;
      }
      others.push_back(std::move(frame));
    }
  }
  // The next frame, whatever it is; at the end of the connection `lost` is set.
  Frame Next(int timeout_ms = 10'000) {
    while (arrived_.empty() || (arrived_.size() == 1 && incomplete_)) {
      pollfd ready{stream_->fd(), POLLIN, 0};
      if (::poll(&ready, 1, timeout_ms) == 0) {
        timed_out = true;
        lost = true;
        return {};
      }
      const IoResult read = receiver_.Pump(*stream_, *this, 1U << 20U);
      const bool whole = !arrived_.empty() && (arrived_.size() > 1 || !incomplete_);
      if (!whole && (read.state == IoState::kClosed || read.state == IoState::kFailed)) {
        lost = true;
        return {};
      }
    }
    Frame frame = std::move(arrived_.front());
    arrived_.pop_front();
    return frame;
  }

  Frame Hello(const std::string& token, const std::string& pool,
              NamespaceKind kind = NamespaceKind::kChain) {
    wire::HelloRequest hello;
    hello.token = token;
    hello.pool = pool;
    hello.fingerprint = "model=m\n";
    hello.kind = kind;
    return Call(FrameOp::kHello, wire::Encode(hello));
  }

  int fd() const { return stream_->fd(); }

  std::deque<Frame> others;
  bool lost = false;
  bool timed_out = false;
  std::optional<std::uint64_t> claimed_checksum;  // instead of the payload's

  Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override {
    Frame kept{frame.header, std::string(AsText(frame.body)),
               std::string(frame.header.payload_bytes, '\0'), std::move(frame.descriptors)};
    arrived_.push_back(std::move(kept));
    std::string& payload = arrived_.back().payload;
    incomplete_ = !payload.empty();
    if (incomplete_) {
      parts.push_back({reinterpret_cast<std::byte*>(payload.data()), payload.size()});
    }
    return Status::Ok();
  }
  Status OnPayload(const std::vector<std::uint64_t>& /*checksums*/) override {
    incomplete_ = false;
    return Status::Ok();
  }

 private:
  std::unique_ptr<PlainStream> stream_;
  FrameReceiver receiver_;
  FrameSender sender_;
  std::deque<Frame> arrived_;
  bool incomplete_ = false;  // of the last one, the payload
  std::uint64_t last_id_ = 0;
};

// A staging memfd as a client makes it; the seals can be left out.
class TestStaging {
 public:
  explicit TestStaging(std::size_t bytes, int seals = F_SEAL_SHRINK | F_SEAL_GROW) : bytes_(bytes) {
    fd_.reset(::memfd_create("staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    KVF_CHECK(::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0, "ftruncate");
    KVF_CHECK(seals == 0 || ::fcntl(fd_.get(), F_ADD_SEALS, seals) == 0, "seal");
    at_ = static_cast<char*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
  }
  ~TestStaging() { ::munmap(at_, bytes_); }
  TestStaging(const TestStaging&) = delete;  // owns a mapping
  TestStaging& operator=(const TestStaging&) = delete;
  int fd() const { return fd_.get(); }
  char* at() const { return at_; }
  std::size_t bytes() const { return bytes_; }

 private:
  const std::size_t bytes_;
  UniqueFd fd_;
  char* at_ = nullptr;
};

}  // namespace kvfabric
