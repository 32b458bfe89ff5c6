#include "operator/kube/work_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric::kube {
namespace {

using std::chrono::milliseconds;

TEST(WorkQueue, HoldsAKeyOnce) {
  FakeClock clock;
  WorkQueue queue(clock, {});
  queue.Add("a");
  queue.Add("a");
  EXPECT_EQ(queue.TryGet(), "a");
  EXPECT_EQ(queue.TryGet(), std::nullopt);
}

TEST(WorkQueue, KeyInWorkComesAgainAfterDone) {
  FakeClock clock;
  int ready = 0;
  WorkQueue::Options options;
  options.on_ready = [&] { ++ready; };
  WorkQueue queue(clock, options);
  queue.Add("a");
  ASSERT_EQ(queue.TryGet(), "a");
  queue.Add("a");
  EXPECT_EQ(queue.TryGet(), std::nullopt) << "one key never runs twice at once";
  EXPECT_EQ(queue.NextDue(), std::nullopt);
  const int before = ready;
  queue.Done("a");
  EXPECT_EQ(ready, before + 1);
  EXPECT_EQ(queue.TryGet(), "a");
}

TEST(WorkQueue, OrdersByPriorityThenAge) {
  FakeClock clock;
  WorkQueue queue(clock, {});
  queue.Add("low", -1);
  queue.Add("first");
  queue.Add("second");
  queue.Add("high", 5);
  queue.Add("low", -1);
  EXPECT_EQ(queue.TryGet(), "high");
  EXPECT_EQ(queue.TryGet(), "first");
  EXPECT_EQ(queue.TryGet(), "second");
  EXPECT_EQ(queue.TryGet(), "low");
}

TEST(WorkQueue, DelayedAddKeepsTheEarliestTime) {
  FakeClock clock;
  WorkQueue queue(clock, {});
  queue.AddAfter("a", milliseconds(100));
  queue.AddAfter("a", milliseconds(50));
  queue.AddAfter("a", milliseconds(200));
  EXPECT_EQ(queue.NextDue(), clock.Now() + milliseconds(50));
  clock.Advance(milliseconds(49));
  EXPECT_EQ(queue.TryGet(), std::nullopt);
  clock.Advance(milliseconds(1));
  EXPECT_EQ(queue.TryGet(), "a");
  queue.Done("a");
  clock.Advance(milliseconds(1000));
  EXPECT_EQ(queue.TryGet(), std::nullopt);
}

TEST(WorkQueue, FailuresWaitTwiceAsLongEachTimeUntilForget) {
  FakeClock clock;
  WorkQueue queue(clock, {});
  EXPECT_EQ(queue.Retry("a"), milliseconds(5));
  EXPECT_EQ(queue.Retry("a"), milliseconds(10));
  EXPECT_EQ(queue.Retry("b"), milliseconds(5));
  for (int i = 0; i < 40; ++i) queue.Retry("a");
  EXPECT_EQ(queue.Retry("a"), milliseconds(1'000'000));
  queue.Forget("a");
  EXPECT_EQ(queue.Retry("a"), milliseconds(5));
}

TEST(WorkQueue, RefusesKeysBeyondItsBound) {
  FakeClock clock;
  WorkQueue::Options options;
  options.max_keys = 2;
  WorkQueue queue(clock, options);
  EXPECT_TRUE(queue.Add("a"));
  EXPECT_TRUE(queue.AddAfter("b", milliseconds(5)));
  EXPECT_FALSE(queue.Add("c"));
  EXPECT_TRUE(queue.Add("a")) << "a key that is there already costs nothing";
}

// Against the plainest model: a key added since its last TryGet will be handed out, and never
// while it is in work.
TEST(WorkQueue, AgreesWithANaiveModel) {
  std::mt19937_64 random(TestSeed());
  FakeClock clock;
  WorkQueue queue(clock, {});
  std::map<std::string, bool> wanted;
  std::map<std::string, Clock::TimePoint> delayed;
  std::set<std::string> working;
  for (int step = 0; step < 20'000; ++step) {
    const std::string key(1, static_cast<char>('a' + random() % 6));
    switch (random() % 5) {
      case 0:
        queue.Add(key, static_cast<int>(random() % 3));
        wanted[key] = true;
        break;
      case 1: {
        const auto delay = milliseconds(1 + random() % 20);
        queue.AddAfter(key, delay);
        const auto when = clock.Now() + delay;
        delayed[key] = delayed.count(key) != 0 ? std::min(delayed[key], when) : when;
        break;
      }
      case 2:
        clock.Advance(milliseconds(random() % 10));
        break;
      case 3:
        if (working.erase(key) != 0) queue.Done(key);
        break;
      default: {
        for (auto it = delayed.begin(); it != delayed.end();) {
          if (it->second <= clock.Now()) {
            wanted[it->first] = true;
            it = delayed.erase(it);
          } else {
            ++it;
          }
        }
        const auto got = queue.TryGet();
        const bool expected = std::any_of(wanted.begin(), wanted.end(), [&](const auto& entry) {
          return entry.second && working.count(entry.first) == 0;
        });
        ASSERT_EQ(got.has_value(), expected) << "step " << step;
        if (got.has_value()) {
          ASSERT_TRUE(wanted[*got] && working.count(*got) == 0) << "step " << step;
          wanted[*got] = false;
          working.insert(*got);
        }
        break;
      }
    }
  }
}

}  // namespace
}  // namespace kvfabric::kube
