#pragma once

// What kvctl shows people: a progress line, tables, human units; and Ctrl-C as a flag that loops
// look at, so that a verb leaves nothing half done. Main's thread, but for Interrupted().

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvfabric::cli {

// Takes SIGINT and SIGTERM from now on: the first sets a flag, the second ends the process.
void CatchInterrupts();
bool Interrupted();

// While one lives a second signal does not end the process: what was begun is being taken back.
class InterruptHold {
 public:
  InterruptHold();
  ~InterruptHold();
  InterruptHold(const InterruptHold&) = delete;  // counted
  InterruptHold& operator=(const InterruptHold&) = delete;
};

// A line on stderr that is redrawn in place on a terminal and absent elsewhere. The destructor
// clears it, so that what is printed next starts on a clean line.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;  // one owner of the line
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool on_terminal() const { return on_terminal_; }
  // `fraction` in [0, 1] draws a bar; negative draws none. At most 10 redraws a second.
  void Show(double fraction, std::string_view text);
  void Clear();
  // A line of text that stays, above the progress line; printed without a terminal too.
  void Say(std::string_view text);

 private:
  const bool on_terminal_;
  bool drawn_ = false;
  std::int64_t last_drawn_ms_ = 0;
};

// Columns aligned by their widest cell; the first row is the head.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// `1.5 GiB`, `320 B`.
std::string FormatBytes(double bytes);
// `12.3`, with `decimals` digits.
std::string FormatNumber(double value, int decimals);
// `850 us`, `1.25 ms`, `3.1 s`.
std::string FormatMicros(double micros);

}  // namespace kvfabric::cli
