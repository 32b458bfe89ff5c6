#include "cli/terminal.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "common/clock.h"

namespace kvfabric::cli {
namespace {

// Set by the signal handler, read by any thread; nothing else is published through it.
std::atomic<bool> interrupted{false};
std::atomic<int> holds{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler uses them");

void OnInterrupt(int signal) {
  if (interrupted.exchange(true) && holds.load() == 0) ::_exit(128 + signal);
}

std::size_t TerminalColumns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             Clock::System().Now().time_since_epoch())
      .count();
}

bool StderrIsTerminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

}  // namespace

void CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;  // no SA_RESTART: a wait in progress ends
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

bool Interrupted() { return interrupted.load(); }

InterruptHold::InterruptHold() { holds.fetch_add(1); }
InterruptHold::~InterruptHold() { holds.fetch_sub(1); }

ProgressLine::ProgressLine() : on_terminal_(StderrIsTerminal()) {}
ProgressLine::~ProgressLine() { Clear(); }

void ProgressLine::Show(double fraction, std::string_view text) {
  if (!on_terminal_) return;
  const std::int64_t now = NowMs();
  if (drawn_ && now - last_drawn_ms_ < 100) return;
  last_drawn_ms_ = now;
  drawn_ = true;
  std::string line;
  if (fraction >= 0) {
    constexpr std::size_t kBar = 24;
    const auto full = static_cast<std::size_t>(std::clamp(fraction, 0.0, 1.0) * kBar);
    line.append("[").append(full, '#').append(kBar - full, '.').append("] ");
  }
  line.append(text);
  const std::size_t columns = TerminalColumns();
  if (line.size() >= columns) line.resize(columns - 1);
  std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  std::fflush(stderr);
}

void ProgressLine::Clear() {
  if (!drawn_) return;
  std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

void ProgressLine::Say(std::string_view text) {
  Clear();
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    if (row.size() > widths.size()) widths.resize(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line.append(row[i]);
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    out.append(line).append("\n");
  }
  return out;
}

std::string FormatNumber(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string FormatBytes(double bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return FormatNumber(bytes, unit == 0 ? 0 : 1) + " " + kUnits[unit];
}

std::string FormatMicros(double micros) {
  if (micros < 1000) return FormatNumber(micros, 0) + " us";
  if (micros < 1e6) return FormatNumber(micros / 1e3, 2) + " ms";
  return FormatNumber(micros / 1e6, 2) + " s";
}

}  // namespace kvfabric::cli
