#include "transport/frame_connection.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <future>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "common/mutex.h"
#include "tests/fakes/test_seed.h"
#include "tests/transport/stream_pair.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;

std::string RandomBytes(std::mt19937_64& random, std::size_t count) {
  std::string bytes(count, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// Keeps what arrives; payloads go to memory of its own, split as `split_` says.
class Recorder final : public FrameHandler {
 public:
  struct Got {
    FrameHeader header;
    std::string body;
    std::vector<std::string> parts;
    std::vector<std::uint64_t> checksums;
    std::size_t descriptors = 0;
  };

  Status OnFrame(ReceivedFrame frame, std::vector<PayloadPart>& parts) override {
    Got got;
    got.header = frame.header;
    got.body = AsText(frame.body);
    got.descriptors = frame.descriptors.size();
    std::size_t left = frame.header.payload_bytes;
    for (const std::size_t size : split_) {
      got.parts.emplace_back(std::min(size, left), '\0');
      left -= got.parts.back().size();
    }
    if (left > 0 && !discard_) got.parts.emplace_back(left, '\0');
    {
      MutexLock lock(mu_);
      frames_.push_back(std::move(got));
      if (frame.header.payload_bytes > 0) {
        for (std::string& part : frames_.back().parts) {
          parts.push_back({reinterpret_cast<std::byte*>(part.data()), part.size()});
        }
        pending_ = true;
      }
      changed_.NotifyAll();
    }
    if (on_frame) on_frame();
    return answer_;
  }
  Status OnPayload(const std::vector<std::uint64_t>& checksums) override {
    MutexLock lock(mu_);
    frames_.back().checksums = checksums;
    pending_ = false;
    changed_.NotifyAll();
    return Status::Ok();
  }
  void OnClosed(const Status& why) override {
    MutexLock lock(mu_);
    closed_ = std::make_unique<Status>(why);
    changed_.NotifyAll();
  }

  // Waits for `count` whole frames, at most 10 s.
  std::vector<Got> WaitFrames(std::size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    MutexLock lock(mu_);
    while (frames_.size() < count || pending_) {
      if (!changed_.WaitUntil(mu_, deadline)) break;
    }
    return frames_;
  }
  std::unique_ptr<Status> WaitClosed() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock lock(mu_);
    while (closed_ == nullptr) {
      if (!changed_.WaitUntil(mu_, deadline)) return nullptr;
    }
    return std::make_unique<Status>(*closed_);
  }
  bool closed() {
    MutexLock lock(mu_);
    return closed_ != nullptr;
  }

  std::vector<std::size_t> split_;
  bool discard_ = false;
  Status answer_;
  std::function<void()> on_frame;

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<Got> frames_ GUARDED_BY(mu_);
  bool pending_ GUARDED_BY(mu_) = false;
  std::unique_ptr<Status> closed_ GUARDED_BY(mu_);
};

class FrameConnectionTest : public ::testing::Test {
 protected:
  void Open(FrameConnection::Options options = {}, bool descriptors = false) {
    auto loop = EventLoop::Create({.name = "frames"});
    ASSERT_TRUE(loop.ok());
    loop_ = std::move(loop).value();
    SocketPair pair = MakeSocketPair();
    raw_ = std::move(pair.theirs);
    auto stream = std::make_unique<PlainStream>(std::move(pair.ours), "test", descriptors);
    loop_->RunSync([&] {
      auto started = FrameConnection::Start(*loop_, std::move(stream), options, recorder_);
      ASSERT_TRUE(started.ok());
      connection_ = *started;
    });
  }
  void Send(OutgoingFrame frame) {
    loop_->RunSync([&] { connection_->Send(std::move(frame)); });
  }
  void TearDown() override {
    if (loop_) loop_->Stop();
  }

  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
  std::unique_ptr<EventLoop> loop_;
  UniqueFd raw_;
  std::shared_ptr<FrameConnection> connection_;
};

TEST_F(FrameConnectionTest, ReceivesPayloadsIntoPlaceAndHashesEachPart) {
  std::mt19937_64 random(TestSeed());
  const std::vector<std::size_t> sizes = {1, kPieceBytes, kPieceBytes + 1, 3 * kPieceBytes - 7,
                                          4096};
  recorder_->split_ = sizes;
  Open();
  std::string payload;
  std::vector<std::string> blocks;
  for (const std::size_t size : sizes) {
    blocks.push_back(RandomBytes(random, size));
    payload += blocks.back();
  }
  // Cut at random places: every way of arriving gives the same.
  std::string bytes =
      EncodeRawFrame({.op = FrameOp::kPeerFetch, .request_id = 7}, "body", payload) +
      EncodeRawFrame({.op = FrameOp::kPing, .request_id = 8}, std::string(70'000, 'b'));
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = std::min<std::size_t>(1 + random() % 200'000, bytes.size() - at);
    ASSERT_TRUE(WriteAll(raw_.get(), std::string_view(bytes).substr(at, n)));
    at += n;
  }
  const auto frames = recorder_->WaitFrames(2);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].body, "body");
  EXPECT_EQ(frames[0].header.request_id, 7U);
  ASSERT_EQ(frames[0].parts, blocks);
  ASSERT_EQ(frames[0].checksums.size(), blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(frames[0].checksums[i], BlockChecksum(AsBytes(blocks[i]))) << i;
  }
  EXPECT_EQ(frames[1].body, std::string(70'000, 'b'));
}

TEST_F(FrameConnectionTest, ThrowsAwayAPayloadNobodyWants) {
  recorder_->discard_ = true;
  Open();
  ASSERT_TRUE(WriteAll(
      raw_.get(),
      EncodeRawFrame({.op = FrameOp::kPutInline, .request_id = 1}, "x", std::string(300'000, 'p')) +
          EncodeRawFrame({.op = FrameOp::kPing, .request_id = 2}, "")));
  const auto frames = recorder_->WaitFrames(2);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].checksums, std::vector<std::uint64_t>{0});
  EXPECT_EQ(frames[1].header.request_id, 2U);
}

TEST_F(FrameConnectionTest, SendsPayloadsOfManyPartsAndHoldsTheirOwnerUntilThen) {
  Open();
  auto owner = std::make_shared<std::vector<std::string>>();
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 100; ++i) owner->push_back(RandomBytes(random, 1 + random() % 50'000));
  OutgoingFrame frame;
  frame.header.op = FrameOp::kPeerPush;
  frame.header.request_id = 5;
  frame.body = "hello";
  std::string expected;
  for (const std::string& part : *owner) {
    frame.payload.push_back(AsBytes(part));
    expected += part;
  }
  frame.payload_owner = owner;
  const std::weak_ptr<void> watched = owner;
  owner.reset();
  Send(std::move(frame));
  EXPECT_FALSE(watched.expired()) << "more than a socket buffer: not all of it can be sent";
  const RawFrame got = ReadRawFrame(raw_.get());
  ASSERT_TRUE(got.ok);
  EXPECT_EQ(got.body, "hello");
  EXPECT_EQ(got.payload, expected);
  loop_->RunSync([] {});
  EXPECT_TRUE(watched.expired());
}

TEST_F(FrameConnectionTest, LetsOwnersGoWhenItCloses) {
  Open();
  auto owner = std::make_shared<std::string>(8U << 20U, 'x');
  OutgoingFrame frame;
  frame.payload.push_back(AsBytes(*owner));
  frame.payload_owner = owner;
  const std::weak_ptr<void> watched = owner;
  owner.reset();
  Send(std::move(frame));
  EXPECT_FALSE(watched.expired());
  raw_.reset();
  const auto why = recorder_->WaitClosed();
  ASSERT_NE(why, nullptr);
  loop_->RunSync([] {});
  EXPECT_TRUE(watched.expired());
}

struct Fault {
  const char* name;
  std::string bytes;
  StatusCode code;
};

std::vector<Fault> Faults() {
  std::string version = EncodeRawFrame({.op = FrameOp::kPing, .request_id = 1}, "");
  version[4] = 9;
  std::string body_hash = EncodeRawFrame({.op = FrameOp::kPing, .request_id = 1}, "body");
  body_hash.back() = 'Y';
  FrameHeader large;
  large.body_bytes = (1U << 20U) + 1;
  FrameHeader huge;
  huge.payload_bytes = (64U << 20U) + 1;
  FrameHeader descriptors;
  descriptors.descriptors = 1;
  const auto raw = [](const FrameHeader& h) { return std::string(AsText(EncodeFrameHeader(h))); };
  return {{"garbage", std::string(64, 'G'), StatusCode::kInvalidArgument},
          {"http", "GET / HTTP/1.1\r\nHost: somewhere.example\r\nAccept: */*\r\nX: 1234567890\r\n",
           StatusCode::kInvalidArgument},
          {"version", version, StatusCode::kUnimplemented},
          {"body hash", body_hash, StatusCode::kInvalidArgument},
          {"oversized body", raw(large), StatusCode::kResourceExhausted},
          {"oversized payload", raw(huge), StatusCode::kResourceExhausted},
          {"descriptors", raw(descriptors), StatusCode::kResourceExhausted}};
}

TEST_F(FrameConnectionTest, AnswersFaultsWithATypedErrorAndCloses) {
  for (const Fault& fault : Faults()) {
    recorder_ = std::make_shared<Recorder>();
    Open();
    ASSERT_TRUE(WriteAll(raw_.get(), fault.bytes)) << fault.name;
    const RawFrame error = ReadRawFrame(raw_.get());
    ASSERT_TRUE(error.ok) << fault.name;
    EXPECT_EQ(error.header.op, FrameOp::kError) << fault.name;
    EXPECT_TRUE(error.header.reply()) << fault.name;
    EXPECT_EQ(error.header.status, fault.code) << fault.name << ": " << error.body;
    EXPECT_FALSE(error.body.empty()) << fault.name;
    EXPECT_TRUE(ReadsEnd(raw_.get())) << fault.name;
    raw_.reset();
    const auto why = recorder_->WaitClosed();
    ASSERT_NE(why, nullptr) << fault.name;
    EXPECT_EQ(why->code(), fault.code) << fault.name;
    EXPECT_TRUE(recorder_->WaitFrames(0).empty()) << fault.name;
  }
}

TEST_F(FrameConnectionTest, SaysWhenAFrameIsCutShort) {
  const std::string whole =
      EncodeRawFrame({.op = FrameOp::kPutInline, .request_id = 3}, "body", std::string(1000, 'p'));
  for (const std::size_t cut :
       {std::size_t{1}, std::size_t{63}, std::size_t{66}, std::size_t{500}}) {
    recorder_ = std::make_shared<Recorder>();
    Open();
    ASSERT_TRUE(WriteAll(raw_.get(), std::string_view(whole).substr(0, cut)));
    raw_.reset();
    const auto why = recorder_->WaitClosed();
    ASSERT_NE(why, nullptr) << cut;
    EXPECT_EQ(why->code(), StatusCode::kUnavailable) << cut;
  }
}

TEST_F(FrameConnectionTest, ClosesInOrderAtAFrameBoundary) {
  Open();
  ASSERT_TRUE(WriteAll(raw_.get(), EncodeRawFrame({.op = FrameOp::kPing}, "")));
  raw_.reset();
  const auto why = recorder_->WaitClosed();
  ASSERT_NE(why, nullptr);
  EXPECT_TRUE(why->ok()) << why->ToString();
}

TEST_F(FrameConnectionTest, EndsASlowFrameButNotASilentConnection) {
  Open({.slow_frame_timeout = milliseconds(150)});
  // Silence before any frame is no fault, however long.
  ASSERT_TRUE(WriteAll(raw_.get(), EncodeRawFrame({.op = FrameOp::kPing}, "")));
  EXPECT_FALSE(ReadsEnd(raw_.get(), 400));
  EXPECT_FALSE(recorder_->closed());
  ASSERT_TRUE(WriteAll(raw_.get(), "KVFF"));
  const RawFrame error = ReadRawFrame(raw_.get());
  ASSERT_TRUE(error.ok);
  EXPECT_EQ(error.header.status, StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(ReadsEnd(raw_.get()));
}

TEST_F(FrameConnectionTest, EndsAPayloadWithoutProgressButNotASlowOne) {
  Open({.slow_frame_timeout = milliseconds(100), .stall_timeout = milliseconds(600)});
  const std::string frame =
      EncodeRawFrame({.op = FrameOp::kPutInline, .request_id = 3}, "b", std::string(10, 'p'));
  ASSERT_TRUE(WriteAll(raw_.get(), std::string_view(frame).substr(0, frame.size() - 10)));
  for (int i = 0; i < 9; ++i) {  // slower in all than slow_frame_timeout, but going on
    ASSERT_FALSE(ReadsEnd(raw_.get(), 50));
    ASSERT_TRUE(WriteAll(raw_.get(), "p"));
  }
  EXPECT_FALSE(recorder_->closed());
  EXPECT_EQ(ReadRawFrame(raw_.get()).header.status, StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(ReadsEnd(raw_.get()));
}

TEST_F(FrameConnectionTest, EndsAnIdleConnectionWhenAsked) {
  Open({.idle_timeout = milliseconds(100)});
  EXPECT_EQ(ReadRawFrame(raw_.get()).header.status, StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(ReadsEnd(raw_.get()));
}

TEST_F(FrameConnectionTest, StopsReadingWhileNobodyTakesItsOutput) {
  Open({.max_output_bytes = 1U << 20U, .stall_timeout = milliseconds(60'000)});
  auto block = std::make_shared<std::string>(1U << 20U, 'x');
  recorder_->on_frame = [&] {  // each request asks for a megabyte
    OutgoingFrame answer;
    answer.payload.push_back(AsBytes(*block));
    answer.payload_owner = block;
    connection_->Send(std::move(answer));
  };
  constexpr int kRequests = 200;
  std::string requests;
  for (int i = 0; i < kRequests; ++i) requests += EncodeRawFrame({.op = FrameOp::kGet}, "");
  ASSERT_TRUE(WriteAll(raw_.get(), requests));
  // Some turns of the loop, in which an unbounded one would take all requests.
  std::size_t queued = 0;
  for (int turn = 0; turn < 100; ++turn) {
    loop_->RunSync([&] { queued = std::max(queued, connection_->queued_bytes()); });
  }
  EXPECT_GT(queued, 0U);
  EXPECT_LT(queued, std::size_t{4} << 20U);
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_EQ(ReadRawFrame(raw_.get()).payload.size(), block->size()) << i;
  }
}

TEST_F(FrameConnectionTest, GivesUpWhenOutputIsNeverTaken) {
  Open({.stall_timeout = milliseconds(150)});
  auto block = std::make_shared<std::string>(16U << 20U, 'x');
  OutgoingFrame frame;
  frame.payload.push_back(AsBytes(*block));
  frame.payload_owner = block;
  Send(std::move(frame));
  const auto why = recorder_->WaitClosed();
  ASSERT_NE(why, nullptr);
  EXPECT_EQ(why->code(), StatusCode::kDeadlineExceeded);
}

TEST_F(FrameConnectionTest, HandsOverDescriptorsWithTheirFrameOnly) {
  Open({.limits = {.max_descriptors = 2}}, true);
  PlainStream sender(std::move(raw_), "sender", true);
  FrameSender frames;
  frames.Enqueue({.header = {.op = FrameOp::kPing}, .body = "before"});
  OutgoingFrame with;
  with.header.op = FrameOp::kStaging;
  const auto fd = std::make_shared<const UniqueFd>(::memfd_create("t", MFD_CLOEXEC));
  with.descriptors = {fd, fd};
  frames.Enqueue(std::move(with));
  frames.Enqueue({.header = {.op = FrameOp::kPing}, .body = "after"});
  ASSERT_EQ(frames.Flush(sender).state, IoState::kDone);
  const auto got = recorder_->WaitFrames(3);
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(got[0].descriptors, 0U);
  EXPECT_EQ(got[1].descriptors, 2U);
  EXPECT_EQ(got[2].descriptors, 0U);
}

TEST_F(FrameConnectionTest, RefusesDescriptorsNobodyAnnounced) {
  Open({.limits = {.max_descriptors = 1}}, true);
  PlainStream sender(std::move(raw_), "sender", true);
  const UniqueFd fd(::memfd_create("t", MFD_CLOEXEC));
  const std::string frame = EncodeRawFrame({.op = FrameOp::kPing}, "");
  const iovec vector{const_cast<char*>(frame.data()), frame.size()};
  const int raw_fd = fd.get();
  ASSERT_EQ(sender.Write({&vector, 1}, {&raw_fd, 1}).state, IoState::kDone);
  const auto why = recorder_->WaitClosed();
  ASSERT_NE(why, nullptr);
  EXPECT_EQ(why->code(), StatusCode::kInvalidArgument);
}

TEST_F(FrameConnectionTest, HandsNoFrameOverWhilePausedAndAllAfterwards) {
  Open();
  loop_->RunSync([&] { connection_->Pause(); });
  std::string frames;
  for (std::uint64_t i = 1; i <= 50; ++i) {
    frames += EncodeRawFrame({.op = FrameOp::kPing, .request_id = i}, "x");
  }
  ASSERT_TRUE(WriteAll(raw_.get(), frames));
  loop_->RunSync([] {});
  EXPECT_TRUE(recorder_->WaitFrames(0).empty());
  loop_->RunSync([&] { connection_->Resume(); });
  EXPECT_EQ(recorder_->WaitFrames(50).size(), 50U);
}

TEST_F(FrameConnectionTest, MayBeClosedAndHandedOnInsideAFrame) {
  Open();
  const auto next = std::make_shared<Recorder>();
  recorder_->on_frame = [&] { connection_->SetHandler(next, {}); };
  next->on_frame = [&] { connection_->Close(Cancelled("enough")); };
  ASSERT_TRUE(WriteAll(raw_.get(), EncodeRawFrame({.op = FrameOp::kJoin}, "token") +
                                       EncodeRawFrame({.op = FrameOp::kPing}, "two") +
                                       EncodeRawFrame({.op = FrameOp::kPing}, "three")));
  const auto why = next->WaitClosed();
  ASSERT_NE(why, nullptr);
  EXPECT_EQ(why->code(), StatusCode::kCancelled);
  EXPECT_EQ(recorder_->WaitFrames(1).size(), 1U);
  EXPECT_EQ(next->WaitFrames(1).size(), 1U);
  EXPECT_FALSE(recorder_->closed());
  EXPECT_TRUE(ReadsEnd(raw_.get()));
}

}  // namespace
}  // namespace kvfabric
