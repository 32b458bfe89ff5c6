#pragma once

// Logging: a constant message plus `key=value` fields, to stderr, one line each.
//   LogInfo("peer down", {{"peer", name}, {"reason", status.message()}});
// error = an operator must act; warn = degraded but served; info = state change; debug = per
// request. Never on a per-block path. Any thread.

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

namespace kvfabric {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

struct LogField {
  LogField(std::string_view n, std::string_view v) : name(n), value(v) {}
  LogField(std::string_view n, const std::string& v) : name(n), value(v) {}
  LogField(std::string_view n, const char* v) : name(n), value(v) {}
  LogField(std::string_view n, bool v) : name(n), value(v ? "true" : "false") {}
  template <typename T>
  requires(std::integral<T> || std::floating_point<T>) LogField(std::string_view n, T v)
      : name(n), value(std::to_string(v)) {}

  std::string_view name;
  std::string value;
};

// Once, in main: the least level that is written. `process` stands in every line.
void InitLogging(std::string_view process, LogLevel least);
bool ParseLogLevel(std::string_view text, LogLevel* level);

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

inline void LogDebug(std::string_view m, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kDebug, m, f);
}
inline void LogInfo(std::string_view m, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kInfo, m, f);
}
inline void LogWarn(std::string_view m, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kWarn, m, f);
}
inline void LogError(std::string_view m, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kError, m, f);
}

}  // namespace kvfabric
