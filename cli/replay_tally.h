#pragma once

// What a replay counts. Each client thread has a Tally of its own; they are merged at the end, or
// copied under the thread's lock for the progress line. Definitions: docs/replay.md.
// Times are seconds since the replay started unless the name says otherwise.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvfabric::cli {

// Latencies of one operation. Kept whole: a trace has at most some ten thousand requests, and a
// percentile of few samples must be exact.
class LatencySamples {
 public:
  void Add(double micros) { micros_.push_back(static_cast<float>(micros)); }
  void Merge(const LatencySamples& other);
  std::size_t count() const { return micros_.size(); }
  double total_s() const;
  // The smallest sample that at least `share` of all do not exceed; 0 without samples.
  double PercentileMicros(double share) const;

 private:
  std::vector<float> micros_;
};

struct HitTokens {
  std::uint64_t prompt = 0, local = 0, peer = 0;
  std::uint64_t hits() const { return local + peer; }
  double percent() const {
    return prompt == 0 ? 0 : 100.0 * static_cast<double>(hits()) / static_cast<double>(prompt);
  }
  void Add(const HitTokens& other);
};

struct Tally {
  std::uint64_t requests = 0;
  std::uint64_t cut_short = 0;   // requests that found no agent at all
  std::uint64_t other_node = 0;  // requests answered by another node's agent than their own
  HitTokens tokens;
  std::uint64_t got_blocks = 0, got_bytes = 0;
  std::uint64_t put_ok = 0, put_exists = 0, put_no_space = 0, put_failed = 0;
  std::uint64_t put_bytes = 0;
  std::uint64_t wrong_blocks = 0, wrong_bytes = 0;  // passed as good, and were not
  std::uint64_t corrupt_blocks = 0;                 // the checksum told: a miss to an engine
  std::map<std::string, std::uint64_t> misses;      // look-ups that ended early, by reason
  std::vector<double> wrong_exists_at;              // a leased block that then missed
  std::vector<double> failed_put_at;
  LatencySamples lookup, get, put;
  std::map<std::uint32_t, HitTokens> windows;        // by number of the window
  std::map<std::string, std::uint64_t> requests_at;  // by node asked

  void Merge(const Tally& other);
};

}  // namespace kvfabric::cli
