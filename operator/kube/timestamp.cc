#include "operator/kube/timestamp.h"

#include <array>
#include <chrono>
#include <cstdio>

namespace kvfabric::kube {
namespace {

constexpr std::int64_t kMicros = 1'000'000;

std::string Format(std::int64_t unix_us, bool micros) {
  using std::chrono::days;
  using std::chrono::floor;
  using std::chrono::microseconds;
  using std::chrono::sys_days;
  const std::chrono::sys_time<microseconds> at{microseconds(unix_us)};
  const sys_days day = floor<days>(at);
  const std::chrono::year_month_day date{day};
  const std::int64_t in_day_us = (at - day).count();
  const std::int64_t second = in_day_us / kMicros;
  std::array<char, 64> text{};
  const int year = static_cast<int>(date.year());
  const unsigned month = static_cast<unsigned>(date.month());
  const unsigned day_of_month = static_cast<unsigned>(date.day());
  int size = std::snprintf(text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02d", year, month,
                           day_of_month, static_cast<int>(second / 3600),
                           static_cast<int>(second / 60 % 60), static_cast<int>(second % 60));
  std::string out(text.data(), static_cast<std::size_t>(size));
  if (micros) {
    size = std::snprintf(text.data(), text.size(), ".%06d", static_cast<int>(in_day_us % kMicros));
    out.append(text.data(), static_cast<std::size_t>(size));
  }
  return out + "Z";
}

// Exactly `digits` digits at `at`.
bool ReadDigits(std::string_view text, std::size_t at, std::size_t digits, int* value) {
  if (text.size() < at + digits) return false;
  *value = 0;
  for (const char c : text.substr(at, digits)) {
    if (c < '0' || c > '9') return false;
    *value = *value * 10 + (c - '0');
  }
  return true;
}

// `.123Z` or `Z`: the microseconds.
std::optional<std::int64_t> ReadFraction(std::string_view rest) {
  if (rest.empty() || rest.back() != 'Z') return std::nullopt;
  rest.remove_suffix(1);
  if (rest.empty()) return 0;
  if (rest.front() != '.' || rest.size() < 2) return std::nullopt;
  std::int64_t micros = 0;
  std::int64_t unit = kMicros / 10;
  for (const char c : rest.substr(1)) {
    if (c < '0' || c > '9') return std::nullopt;
    micros += (c - '0') * unit;
    unit /= 10;
  }
  return micros;
}

}  // namespace

std::string FormatTime(std::int64_t unix_us) { return Format(unix_us, false); }
std::string FormatMicroTime(std::int64_t unix_us) { return Format(unix_us, true); }

std::optional<std::int64_t> ParseTime(std::string_view text) {
  int year = 0;
  int month = 0;
  int day = 0;
  int hour = 0;
  int minute = 0;
  int second = 0;
  if (!ReadDigits(text, 0, 4, &year) || !ReadDigits(text, 5, 2, &month) ||
      !ReadDigits(text, 8, 2, &day) || !ReadDigits(text, 11, 2, &hour) ||
      !ReadDigits(text, 14, 2, &minute) || !ReadDigits(text, 17, 2, &second)) {
    return std::nullopt;
  }
  if (text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' || text[16] != ':') {
    return std::nullopt;
  }
  const std::optional<std::int64_t> micros = ReadFraction(text.substr(19));
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!micros.has_value() || !date.ok() || hour > 23 || minute > 59 || second > 60) {
    return std::nullopt;
  }
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return (((days * 24 + hour) * 60 + minute) * 60 + second) * kMicros + *micros;
}

}  // namespace kvfabric::kube
