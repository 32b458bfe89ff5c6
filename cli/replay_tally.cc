#include "cli/replay_tally.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvfabric::cli {

void LatencySamples::Merge(const LatencySamples& other) {
  micros_.insert(micros_.end(), other.micros_.begin(), other.micros_.end());
}

double LatencySamples::total_s() const {
  return std::accumulate(micros_.begin(), micros_.end(), 0.0) / 1e6;
}

double LatencySamples::PercentileMicros(double share) const {
  if (micros_.empty()) return 0;
  std::vector<float> sorted = micros_;
  const auto rank = static_cast<std::size_t>(
      std::max(1.0, std::ceil(share * static_cast<double>(sorted.size()))));
  const auto at = static_cast<std::ptrdiff_t>(std::min(rank, sorted.size()) - 1);
  std::nth_element(sorted.begin(), sorted.begin() + at, sorted.end());
  return static_cast<double>(sorted[static_cast<std::size_t>(at)]);
}

void HitTokens::Add(const HitTokens& other) {
  prompt += other.prompt;
  local += other.local;
  peer += other.peer;
}

void Tally::Merge(const Tally& other) {
  requests += other.requests;
  cut_short += other.cut_short;
  other_node += other.other_node;
  tokens.Add(other.tokens);
  got_blocks += other.got_blocks;
  got_bytes += other.got_bytes;
  put_ok += other.put_ok;
  put_exists += other.put_exists;
  put_no_space += other.put_no_space;
  put_failed += other.put_failed;
  put_bytes += other.put_bytes;
  wrong_blocks += other.wrong_blocks;
  wrong_bytes += other.wrong_bytes;
  corrupt_blocks += other.corrupt_blocks;
  for (const auto& [reason, count] : other.misses) misses[reason] += count;
  const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
    std::sort(to.begin(), to.end());
  };
  append(wrong_exists_at, other.wrong_exists_at);
  append(failed_put_at, other.failed_put_at);
  lookup.Merge(other.lookup);
  get.Merge(other.get);
  put.Merge(other.put);
  for (const auto& [window, tokens_in] : other.windows) windows[window].Add(tokens_in);
  for (const auto& [node, count] : other.requests_at) requests_at[node] += count;
}

}  // namespace kvfabric::cli
