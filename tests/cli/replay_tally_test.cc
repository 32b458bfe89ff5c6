#include "cli/replay_tally.h"

#include <gtest/gtest.h>

namespace kvfabric::cli {
namespace {

TEST(LatencySamples, AnswersExactPercentiles) {
  LatencySamples samples;
  EXPECT_EQ(samples.PercentileMicros(0.5), 0);
  for (int i = 100; i >= 1; --i) samples.Add(i);
  EXPECT_EQ(samples.PercentileMicros(0.50), 50);
  EXPECT_EQ(samples.PercentileMicros(0.99), 99);
  EXPECT_EQ(samples.PercentileMicros(1.0), 100);
  LatencySamples other;
  other.Add(1000);
  samples.Merge(other);
  EXPECT_EQ(samples.PercentileMicros(1.0), 1000);
  EXPECT_EQ(samples.count(), 101U);
}

TEST(Tally, MergesEveryCount) {
  Tally a;
  a.requests = 1;
  a.tokens = {.prompt = 100, .local = 20, .peer = 5};
  a.failed_put_at = {3.0};
  a.windows[0] = {.prompt = 100, .local = 20, .peer = 5};
  a.requests_at["node-1"] = 1;
  Tally b;
  b.requests = 2;
  b.wrong_bytes = 7;
  b.put_failed = 1;
  b.tokens = {.prompt = 100, .local = 0, .peer = 25};
  b.failed_put_at = {1.0};
  b.windows[0] = {.prompt = 50, .local = 0, .peer = 0};
  b.windows[1] = {.prompt = 50, .local = 0, .peer = 25};
  b.requests_at["node-1"] = 2;
  a.Merge(b);
  EXPECT_EQ(a.requests, 3U);
  EXPECT_EQ(a.wrong_bytes, 7U);
  EXPECT_EQ(a.put_failed, 1U);
  EXPECT_EQ(a.tokens.hits(), 50U);
  EXPECT_DOUBLE_EQ(a.tokens.percent(), 25.0);
  EXPECT_EQ(a.failed_put_at, (std::vector<double>{1.0, 3.0}));
  EXPECT_EQ(a.windows[0].prompt, 150U);
  EXPECT_EQ(a.windows[1].peer, 25U);
  EXPECT_EQ(a.requests_at["node-1"], 3U);
}

}  // namespace
}  // namespace kvfabric::cli
