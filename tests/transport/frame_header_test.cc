#include "transport/frame_header.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/fakes/test_seed.h"

namespace kvfabric {
namespace {

FrameHeader Example() {
  FrameHeader header;
  header.op = FrameOp::kGet;
  header.flags = kFrameReply | kFrameMore;
  header.descriptors = 3;
  header.status = StatusCode::kNotFound;
  header.remaining_ms = 250;
  header.request_id = 0x0102030405060708;
  header.body_bytes = 40;
  header.payload_bytes = 65536;
  header.payload_checksum = 0x1112131415161718;
  header.boot_epoch = 0x2122232425262728;
  header.map_epoch = 0x3132333435363738;
  header.body_hash = 0x41424344;
  return header;
}

TEST(FrameHeader, SurvivesARoundTrip) {
  const auto bytes = EncodeFrameHeader(Example());
  const auto back = DecodeFrameHeader(bytes, {.max_descriptors = 3});
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->op, FrameOp::kGet);
  EXPECT_TRUE(back->reply());
  EXPECT_TRUE(back->more());
  EXPECT_EQ(back->descriptors, 3);
  EXPECT_EQ(back->status, StatusCode::kNotFound);
  EXPECT_EQ(back->remaining_ms, 250U);
  EXPECT_EQ(back->request_id, 0x0102030405060708U);
  EXPECT_EQ(back->body_bytes, 40U);
  EXPECT_EQ(back->payload_bytes, 65536U);
  EXPECT_EQ(back->payload_checksum, 0x1112131415161718U);
  EXPECT_EQ(back->boot_epoch, 0x2122232425262728U);
  EXPECT_EQ(back->map_epoch, 0x3132333435363738U);
  EXPECT_EQ(back->body_hash, 0x41424344U);
}

// The bytes of version 1 as docs/formats/frame.md lays them out; they never change.
TEST(FrameHeader, KeepsItsBytes) {
  const auto bytes = EncodeFrameHeader(Example());
  EXPECT_EQ(ToHex(ByteSpan(bytes).first(60)),
            "4b56464601000600030305"
            "00fa000000"
            "0807060504030201"
            "2800000000000100"
            "1817161514131211"
            "2827262524232221"
            "3837363534333231"
            "44434241");
}

TEST(FrameHeader, RefusesEveryFlippedBit) {
  const auto good = EncodeFrameHeader(Example());
  for (std::size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(DecodeFrameHeader(bytes, {.max_descriptors = 255}).ok()) << "bit " << bit;
  }
}

TEST(FrameHeader, NamesWhatIsWrong) {
  auto bytes = EncodeFrameHeader(Example());
  EXPECT_EQ(DecodeFrameHeader(bytes, {}).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(DecodeFrameHeader(bytes, {.max_body_bytes = 39, .max_descriptors = 3}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(
      DecodeFrameHeader(bytes, {.max_payload_bytes = 65535, .max_descriptors = 3}).status().code(),
      StatusCode::kResourceExhausted);
  bytes[4] = std::byte{2};
  EXPECT_EQ(DecodeFrameHeader(bytes, {}).status().code(), StatusCode::kUnimplemented);
  bytes[0] = std::byte{'G'};
  EXPECT_EQ(DecodeFrameHeader(bytes, {}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvfabric
