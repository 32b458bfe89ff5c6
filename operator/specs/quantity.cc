#include "operator/specs/quantity.h"

#include <array>

namespace kvfabric {
namespace {

__extension__ typedef unsigned __int128 Wide;

// A number with up to nine decimals, in billionths, and what follows it.
struct Decimal {
  Wide billionths = 0;
  std::string_view rest;
};

constexpr std::size_t kMaxDigits = 19;  // 10^19 billionth-scaled fits 128 bits with room

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::optional<Decimal> ReadDecimal(std::string_view text) {
  Decimal out;
  std::size_t at = 0;
  while (at < text.size() && IsDigit(text[at])) {
    out.billionths = out.billionths * 10 + static_cast<unsigned>(text[at] - '0');
    if (++at > kMaxDigits) return std::nullopt;
  }
  if (at == 0) return std::nullopt;
  std::size_t decimals = 0;
  if (at < text.size() && text[at] == '.') {
    ++at;
    while (at < text.size() && IsDigit(text[at])) {
      if (++decimals > 9) return std::nullopt;
      out.billionths = out.billionths * 10 + static_cast<unsigned>(text[at] - '0');
      ++at;
    }
    if (decimals == 0) return std::nullopt;
  }
  for (; decimals < 9; ++decimals) out.billionths *= 10;
  out.rest = text.substr(at);
  return out;
}

constexpr Wide kBillion = 1'000'000'000;

struct Unit {
  std::string_view suffix;
  std::uint64_t factor;
};
constexpr std::array<Unit, 13> kByteUnits = {{{"", 1},
                                              {"Ki", 1ULL << 10U},
                                              {"Mi", 1ULL << 20U},
                                              {"Gi", 1ULL << 30U},
                                              {"Ti", 1ULL << 40U},
                                              {"Pi", 1ULL << 50U},
                                              {"Ei", 1ULL << 60U},
                                              {"k", 1'000},
                                              {"M", 1'000'000},
                                              {"G", 1'000'000'000},
                                              {"T", 1'000'000'000'000},
                                              {"P", 1'000'000'000'000'000},
                                              {"E", 1'000'000'000'000'000'000}}};
// Longer suffixes first: "ms" is not "m".
constexpr std::array<Unit, 4> kTimeUnits = {
    {{"ms", 1'000}, {"h", 3'600'000'000}, {"m", 60'000'000}, {"s", 1'000'000}}};
constexpr std::int64_t kMaxMicros = 100LL * 366 * 24 * 3600 * 1'000'000;

}  // namespace

std::optional<std::uint64_t> ParseQuantity(std::string_view text) {
  const std::optional<Decimal> number = ReadDecimal(text);
  if (!number.has_value()) return std::nullopt;
  for (const Unit& unit : kByteUnits) {
    if (unit.suffix != number->rest) continue;
    // At most 10^28 x 2^60 < 2^154 would not fit: bound the number first.
    if (number->billionths / kBillion >= (1ULL << 63U)) return std::nullopt;
    const Wide whole = number->billionths / kBillion * unit.factor;
    const Wide part = number->billionths % kBillion * unit.factor;
    const Wide bytes = whole + (part + kBillion - 1) / kBillion;
    if (bytes >= (1ULL << 63U)) return std::nullopt;
    return static_cast<std::uint64_t>(bytes);
  }
  return std::nullopt;
}

std::string FormatQuantity(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 7> kSuffixes = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kSuffixes.size()) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes).append(kSuffixes.at(unit));
}

std::optional<std::chrono::microseconds> ParseDuration(std::string_view text) {
  if (text.empty()) return std::nullopt;
  std::int64_t total = 0;
  while (!text.empty()) {
    const std::optional<Decimal> number = ReadDecimal(text);
    if (!number.has_value()) return std::nullopt;
    bool found = false;
    for (const Unit& unit : kTimeUnits) {
      if (number->rest.substr(0, unit.suffix.size()) != unit.suffix) continue;
      if (number->billionths / kBillion > static_cast<Wide>(kMaxMicros)) {
        return std::nullopt;
      }
      const Wide scaled = number->billionths * unit.factor;
      if (scaled % kBillion != 0) return std::nullopt;
      const Wide micros = scaled / kBillion;
      if (micros > static_cast<Wide>(kMaxMicros - total)) return std::nullopt;
      total += static_cast<std::int64_t>(micros);
      text = number->rest.substr(unit.suffix.size());
      found = true;
      break;
    }
    if (!found) return std::nullopt;
  }
  return std::chrono::microseconds(total);
}

std::string FormatDuration(std::chrono::microseconds duration) {
  std::int64_t left = duration.count();
  std::string out;
  for (const auto& [suffix, micros] : {std::pair<const char*, std::int64_t>{"h", 3'600'000'000},
                                       {"m", 60'000'000},
                                       {"s", 1'000'000},
                                       {"ms", 1'000}}) {
    if (left / micros == 0) continue;
    out += std::to_string(left / micros) + suffix;
    left %= micros;
  }
  return out.empty() ? "0s" : out;
}

}  // namespace kvfabric
