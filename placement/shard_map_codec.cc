#include "placement/shard_map_codec.h"

#include <array>
#include <cstring>
#include <utility>

#include "common/checksum.h"

namespace kvfabric {
namespace {

constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kNotBase64 = 0xFF;

constexpr std::array<std::uint8_t, 256> MakeBase64Values() {
  std::array<std::uint8_t, 256> values{};
  for (auto& value : values) value = kNotBase64;
  for (std::size_t i = 0; i < kBase64Digits.size(); ++i) {
    values[static_cast<unsigned char>(kBase64Digits[i])] = static_cast<std::uint8_t>(i);
  }
  return values;
}

constexpr std::array<std::uint8_t, 256> kBase64Values = MakeBase64Values();

constexpr std::uint32_t kMapMagic = 0x4D46564BU;  // "KVFM"
constexpr std::uint16_t kMapVersion = 1;
constexpr std::size_t kMaxTextBytes = 512;

std::vector<std::uint8_t> BigEndian(std::span<const MemberIndex> table) {
  std::vector<std::uint8_t> bytes(table.size() * 2);
  for (std::size_t i = 0; i < table.size(); ++i) {
    bytes[2 * i] = static_cast<std::uint8_t>(table[i] >> 8U);
    bytes[2 * i + 1] = static_cast<std::uint8_t>(table[i] & 0xFFU);
  }
  return bytes;
}

std::string EncodeBase64(std::span<const std::uint8_t> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t have = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t group = std::uint32_t{bytes[at]} << 16U;
    if (have > 1) group |= std::uint32_t{bytes[at + 1]} << 8U;
    if (have > 2) group |= bytes[at + 2];
    text.push_back(kBase64Digits[group >> 18U]);
    text.push_back(kBase64Digits[(group >> 12U) & 63U]);
    text.push_back(have > 1 ? kBase64Digits[(group >> 6U) & 63U] : '=');
    text.push_back(have > 2 ? kBase64Digits[group & 63U] : '=');
  }
  return text;
}

Status TableFault(std::string cause) {
  return InvalidArgument("shard map table: decode: " + std::move(cause));
}

Result<std::vector<std::uint8_t>> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) {
    return TableFault("base64 text of " + std::to_string(text.size()) +
                      " characters is not a multiple of 4");
  }
  std::vector<std::uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::size_t padding = 0;
    if (at + 4 == text.size()) {
      if (text[at + 3] == '=') padding = text[at + 2] == '=' ? 2 : 1;
    }
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint8_t value =
          i + padding >= 4 ? 0 : kBase64Values[static_cast<unsigned char>(text[at + i])];
      if (value == kNotBase64) {
        return TableFault("character " + std::to_string(at + i) + " is not standard base64");
      }
      group = (group << 6U) | value;
    }
    if ((padding == 1 && (group & 0xFFU) != 0) || (padding == 2 && (group & 0xFFFFU) != 0)) {
      return TableFault("base64 padding hides bits");
    }
    bytes.push_back(static_cast<std::uint8_t>(group >> 16U));
    if (padding < 2) bytes.push_back(static_cast<std::uint8_t>((group >> 8U) & 0xFFU));
    if (padding < 1) bytes.push_back(static_cast<std::uint8_t>(group & 0xFFU));
  }
  return bytes;
}

// Appends little-endian fields to the map bytes.
class FieldWriter {
 public:
  template <typename T>
  void Put(T value) {
    std::byte field[sizeof(T)];
    StoreLe<T>(field, value);
    bytes_.insert(bytes_.end(), field, field + sizeof(T));
  }
  Status PutText(std::string_view name, std::string_view text) {
    if (text.size() > kMaxTextBytes) {
      return InvalidArgument("shard map: serialize: " + std::string(name) + " of " +
                             std::to_string(text.size()) + " bytes (at most 512)");
    }
    Put(static_cast<std::uint16_t>(text.size()));
    const ByteSpan raw = AsBytes(text);
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    return Status::Ok();
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Reads little-endian fields; after the first short read every further one fails too.
class FieldReader {
 public:
  explicit FieldReader(ByteSpan bytes) : rest_(bytes) {}

  template <typename T>
  T Get() {
    if (rest_.size() < sizeof(T)) {
      Fail();
      return 0;
    }
    const T value = LoadLe<T>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  std::string GetText() {
    const auto size = Get<std::uint16_t>();
    if (size > kMaxTextBytes || rest_.size() < size) {
      Fail();
      return {};
    }
    std::string text(AsText(rest_.first(size)));
    rest_ = rest_.subspan(size);
    return text;
  }
  bool failed() const { return failed_; }
  std::size_t left() const { return rest_.size(); }

 private:
  void Fail() {
    failed_ = true;
    rest_ = {};
  }

  ByteSpan rest_;
  bool failed_ = false;
};

Status MapFault(std::string cause) {
  return InvalidArgument("shard map: parse: " + std::move(cause));
}

Member ReadMember(FieldReader& reader) {
  Member member;
  member.node_name = reader.GetText();
  member.agent_uid = reader.GetText();
  member.address = reader.GetText();
  member.grpc_port = reader.Get<std::uint16_t>();
  member.bulk_port = reader.Get<std::uint16_t>();
  member.zone = reader.GetText();
  member.weight = reader.Get<std::uint64_t>();
  member.state = static_cast<MemberState>(reader.Get<std::uint8_t>());  // Validate() checks it
  return member;
}

Result<ShardMap> ReadFields(FieldReader& reader) {
  ShardMap map;
  map.pool_uid = reader.GetText();
  map.term = reader.Get<std::uint64_t>();
  map.epoch = reader.Get<std::uint64_t>();
  map.slot_count = reader.Get<std::uint32_t>();
  map.replicas = reader.Get<std::uint8_t>();
  map.owners_per_slot = reader.Get<std::uint8_t>();
  const auto member_count = reader.Get<std::uint16_t>();
  if (reader.failed()) return MapFault("cut off in the header");
  if (member_count > kMaxMembers) {
    return MapFault(std::to_string(member_count) + " members (at most 1024)");
  }
  for (std::size_t i = 0; i < member_count && !reader.failed(); ++i) {
    map.members.push_back(ReadMember(reader));
  }
  if (reader.failed()) return MapFault("cut off or oversized text in the members");
  const std::size_t entries = std::size_t{map.slot_count} * map.owners_per_slot;
  if (!IsValidSlotCount(map.slot_count) || reader.left() != entries * sizeof(MemberIndex)) {
    return MapFault("table of " + std::to_string(reader.left()) + " bytes for " +
                    std::to_string(map.slot_count) + " slots x " +
                    std::to_string(map.owners_per_slot) + " owners");
  }
  map.table.resize(entries);
  for (MemberIndex& owner : map.table) owner = reader.Get<MemberIndex>();
  return map;
}

}  // namespace

std::string EncodeTable(std::span<const MemberIndex> table) {
  return EncodeBase64(BigEndian(table));
}

std::uint64_t TableChecksum(std::span<const MemberIndex> table) {
  const std::vector<std::uint8_t> bytes = BigEndian(table);
  return Hash64(std::as_bytes(std::span(bytes)));
}

std::string TableChecksumText(std::span<const MemberIndex> table) {
  std::uint64_t checksum = TableChecksum(table);
  std::array<std::byte, 8> big_endian{};
  for (std::size_t i = big_endian.size(); i > 0; --i, checksum >>= 8U) {
    big_endian[i - 1] = static_cast<std::byte>(checksum & 0xFFU);
  }
  return ToHex(big_endian);
}

Result<std::vector<MemberIndex>> DecodeTable(std::string_view text, const TableShape& shape) {
  if (!IsValidSlotCount(shape.slot_count) || shape.owners_per_slot < 2 ||
      shape.owners_per_slot > kMaxReplicas) {
    return TableFault("no table has " + std::to_string(shape.slot_count) + " slots x " +
                      std::to_string(shape.owners_per_slot) + " owners");
  }
  const std::size_t entries = std::size_t{shape.slot_count} * shape.owners_per_slot;
  const std::size_t characters = (entries * sizeof(MemberIndex) + 2) / 3 * 4;
  if (text.size() != characters) {
    return TableFault(std::to_string(text.size()) + " characters of base64 (need " +
                      std::to_string(characters) + ")");
  }
  KVF_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> bytes, DecodeBase64(text));
  if (bytes.size() != entries * sizeof(MemberIndex)) {
    return TableFault(std::to_string(bytes.size()) + " bytes (need " +
                      std::to_string(entries * sizeof(MemberIndex)) + ")");
  }
  std::vector<MemberIndex> table(entries);
  for (std::size_t i = 0; i < entries; ++i) {
    table[i] = static_cast<MemberIndex>((std::uint32_t{bytes[2 * i]} << 8U) | bytes[2 * i + 1]);
  }
  KVF_RETURN_IF_ERROR(ValidateTable(table, shape));
  return table;
}

Result<std::vector<std::byte>> SerializeShardMap(const ShardMap& map) {
  KVF_RETURN_IF_ERROR(map.Validate());
  FieldWriter writer;
  writer.bytes().reserve(64 + map.members.size() * 128 + map.table.size() * sizeof(MemberIndex));
  writer.Put(kMapMagic);
  writer.Put(kMapVersion);
  writer.Put(std::uint16_t{0});
  KVF_RETURN_IF_ERROR(writer.PutText("pool UID", map.pool_uid));
  writer.Put(map.term);
  writer.Put(map.epoch);
  writer.Put(map.slot_count);
  writer.Put(static_cast<std::uint8_t>(map.replicas));
  writer.Put(static_cast<std::uint8_t>(map.owners_per_slot));
  writer.Put(static_cast<std::uint16_t>(map.members.size()));
  for (const Member& member : map.members) {
    KVF_RETURN_IF_ERROR(writer.PutText("node name", member.node_name));
    KVF_RETURN_IF_ERROR(writer.PutText("agent UID", member.agent_uid));
    KVF_RETURN_IF_ERROR(writer.PutText("address", member.address));
    writer.Put(member.grpc_port);
    writer.Put(member.bulk_port);
    KVF_RETURN_IF_ERROR(writer.PutText("zone", member.zone));
    writer.Put(member.weight);
    writer.Put(static_cast<std::uint8_t>(member.state));
  }
  for (const MemberIndex owner : map.table) writer.Put(owner);
  writer.Put(Hash64(writer.bytes()));
  return std::move(writer.bytes());
}

Result<ShardMap> ParseShardMap(ByteSpan bytes) {
  constexpr std::size_t kFrameBytes = 8 + sizeof(std::uint64_t);
  if (bytes.size() < kFrameBytes) {
    return MapFault("cut off after " + std::to_string(bytes.size()) + " bytes");
  }
  const ByteSpan body = bytes.first(bytes.size() - sizeof(std::uint64_t));
  FieldReader reader(body);
  if (reader.Get<std::uint32_t>() != kMapMagic) return MapFault("no KVFM at the start");
  const auto version = reader.Get<std::uint16_t>();
  if (version != kMapVersion) {
    return MapFault("format version " + std::to_string(version) + " (this build reads 1)");
  }
  if (reader.Get<std::uint16_t>() != 0) return MapFault("reserved field is not zero");
  if (LoadLe<std::uint64_t>(body.data() + body.size()) != Hash64(body)) {
    return DataLoss("shard map: parse: checksum does not match the " +
                    std::to_string(bytes.size()) + " bytes");
  }
  KVF_ASSIGN_OR_RETURN(ShardMap map, ReadFields(reader));
  KVF_RETURN_IF_ERROR(map.Validate());
  return map;
}

}  // namespace kvfabric
