#pragma once

// WireWriter and WireReader: little-endian fields of our binary messages. The reader checks every
// bound; the first fault sticks and everything after it reads as zero or empty, so that decoders
// read straight through and ask once at the end. Values; one thread.

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "common/bytes.h"
#include "common/check.h"
#include "common/status.h"

namespace kvfabric {

class WireWriter {
 public:
  void U8(std::uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void U16(std::uint16_t value) { Number(value); }
  void U32(std::uint32_t value) { Number(value); }
  void U64(std::uint64_t value) { Number(value); }
  void Raw(std::string_view bytes) { out_.append(bytes); }
  // Length in 16 bits, then the bytes. Longer than 65,535 is the caller's fault.
  void Text16(std::string_view text) {
    KVF_CHECK(text.size() <= 0xFFFF, "text too long for its length field");
    U16(static_cast<std::uint16_t>(text.size()));
    Raw(text);
  }
  std::size_t size() const { return out_.size(); }
  std::string Take() { return std::move(out_); }

 private:
  template <std::unsigned_integral T>
  void Number(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));  // every supported host is little-endian
    out_.append(bytes, sizeof(T));
  }

  std::string out_;
};

class WireReader {
 public:
  explicit WireReader(ByteSpan bytes) : rest_(bytes) {}

  std::uint8_t U8() { return Number<std::uint8_t>(); }
  std::uint16_t U16() { return Number<std::uint16_t>(); }
  std::uint32_t U32() { return Number<std::uint32_t>(); }
  std::uint64_t U64() { return Number<std::uint64_t>(); }
  // Views into the message.
  std::string_view Text16(std::size_t max = 0xFFFF) {
    const std::size_t length = U16();
    if (length > max) Fail();
    return Raw(length);
  }
  std::string_view Raw(std::size_t length) {
    if (length > rest_.size()) Fail();
    if (!ok_) return {};
    const std::string_view text = AsText(rest_.first(length));
    rest_ = rest_.subspan(length);
    return text;
  }
  // A count of elements of at least `min_bytes` each: one that the rest cannot hold is a fault,
  // so that no decoder reserves memory for what was never sent.
  std::size_t Count32(std::size_t max, std::size_t min_bytes) {
    const std::size_t count = U32();
    if (count > max || count * min_bytes > rest_.size()) Fail();
    return ok_ ? count : 0;
  }
  void Fail() { ok_ = false; }
  bool ok() const { return ok_; }
  std::size_t remaining() const { return rest_.size(); }
  // OK when everything was there and nothing is left over.
  Status Finish(std::string_view message_name) const {
    if (ok_ && rest_.empty()) return Status::Ok();
    std::string text(message_name);
    text.append(ok_ ? ": decode: bytes left over" : ": decode: truncated or a field out of range");
    return InvalidArgument(std::move(text));
  }

 private:
  template <std::unsigned_integral T>
  T Number() {
    if (sizeof(T) > rest_.size()) Fail();
    if (!ok_) return 0;
    const T value = LoadLe<T>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }

  ByteSpan rest_;
  bool ok_ = true;
};

}  // namespace kvfabric
