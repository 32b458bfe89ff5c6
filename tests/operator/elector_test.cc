#include "operator/kube/elector.h"

#include <gtest/gtest.h>

#include <random>

#include "operator/kube/api_error.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/kube/fenced_kube.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"
#include "tests/operator/forwarding_kube.h"
#include "tests/operator/test_objects.h"

namespace kvfabric::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Fails or delays every call while told to, and may lose answers of writes that were done.
class FlakyKube final : public ForwardingKube {
 public:
  FlakyKube(KubeApi& api, FakeClock& clock) : ForwardingKube(api), clock_(clock) {}
  bool down = false;
  bool lose_answers = false;
  milliseconds slow{0};

  Result<ObjectPtr> Get(Kind kind, const ObjectName& name) override {
    if (down) return Unavailable("down");
    return Answer(ForwardingKube::Get(kind, name), false);
  }
  Result<ObjectPtr> Create(Kind kind, const std::string& json) override {
    if (down) return Unavailable("down");
    return Answer(ForwardingKube::Create(kind, json), true);
  }
  Result<ObjectPtr> Update(Kind kind, const std::string& json) override {
    if (down) return Unavailable("down");
    return Answer(ForwardingKube::Update(kind, json), true);
  }

 private:
  Result<ObjectPtr> Answer(Result<ObjectPtr> result, bool write) {
    clock_.Advance(slow);
    if (write && lose_answers) return DeadlineExceeded("answer lost");
    return result;
  }
  FakeClock& clock_;
};

class ElectorTest : public ::testing::Test {
 protected:
  ElectorTest() {
    EmbeddedKubeApi::Options options;
    options.directory = dir_.path() / "api";
    options.sync = false;
    api_ = std::move(EmbeddedKubeApi::Open(std::move(options))).value();
  }
  Elector::Options OptionsOf(const std::string& identity) {
    Elector::Options options;
    options.lease = {"kvfabric-system", "kvfabric-operator"};
    options.identity = identity;
    return options;
  }

  TempDir dir_;
  FakeClock clock_;
  std::unique_ptr<EmbeddedKubeApi> api_;
};

TEST_F(ElectorTest, FirstTermIsOne) {
  Elector elector(*api_, clock_, OptionsOf("a"));
  EXPECT_FALSE(elector.leading());
  EXPECT_EQ(elector.Step(), seconds(1));
  EXPECT_TRUE(elector.leading());
  EXPECT_EQ(elector.term(), 1U);
}

TEST_F(ElectorTest, TermsGoOnWhenTheLeaseIsDeleted) {
  Elector elector(*api_, clock_, OptionsOf("a"));
  elector.Step();
  const std::string uid = elector.lease_uid();
  EXPECT_FALSE(uid.empty());
  ASSERT_TRUE(api_->Delete(Kind::kLease, OptionsOf("a").lease, {}).ok());
  elector.Step();  // the renewal fails
  elector.Step();
  EXPECT_TRUE(elector.leading());
  EXPECT_EQ(elector.term(), 2U);
  EXPECT_NE(elector.lease_uid(), uid);
}

// Somebody took the Lease from a leader that is alive: it must see that, and not write over it.
TEST_F(ElectorTest, LeaderWhoseLeaseIsTakenStepsDownAtOnce) {
  Elector a(*api_, clock_, OptionsOf("a"));
  a.Step();
  Elector::Options force = OptionsOf("b");
  force.previous_holder_is_gone = true;
  Elector b(*api_, clock_, force);
  b.Step();
  ASSERT_TRUE(b.leading());
  a.Step();  // the renewal fails
  for (int i = 0; i < 4; ++i) {
    a.Step();
    EXPECT_FALSE(a.leading());
    clock_.Advance(seconds(1));
    b.Step();
    EXPECT_TRUE(b.leading());
  }
  EXPECT_EQ(a.term(), 1U);
  EXPECT_EQ(b.term(), 2U);
}

// And when that other one has given it back, what follows is a term after the other's.
TEST_F(ElectorTest, LeaseThatCameBackFromAnotherBeginsANewTerm) {
  Elector a(*api_, clock_, OptionsOf("a"));
  a.Step();
  Elector::Options force = OptionsOf("b");
  force.previous_holder_is_gone = true;
  Elector b(*api_, clock_, force);
  b.Step();
  b.Release();
  a.Step();  // the renewal fails
  a.Step();
  EXPECT_TRUE(a.leading());
  EXPECT_EQ(a.term(), 3U);
}

TEST_F(ElectorTest, RaisedTermIsABeginningOfANewOne) {
  int changes = 0;
  Elector::Options options = OptionsOf("a");
  options.on_change = [&] { ++changes; };
  Elector elector(*api_, clock_, options);
  elector.Step();
  const auto since = elector.leading_since();
  elector.RaiseTerm(7);
  clock_.Advance(seconds(1));
  elector.Step();
  EXPECT_EQ(elector.term(), 8U);
  EXPECT_GT(elector.leading_since(), since) << "nobody was heard in it yet";
  elector.RaiseTerm(7);  // old news
  elector.Step();
  EXPECT_EQ(elector.term(), 8U);
  EXPECT_EQ(changes, 2);
}

TEST_F(ElectorTest, SecondTakesOverOnlyAfterTheLeaseDuration) {
  Elector a(*api_, clock_, OptionsOf("a"));
  Elector b(*api_, clock_, OptionsOf("b"));
  a.Step();
  b.Step();
  clock_.Advance(milliseconds(7999));
  b.Step();
  EXPECT_FALSE(b.leading());
  EXPECT_FALSE(a.leading()) << "the renew deadline passed long before the lease ended";
  clock_.Advance(milliseconds(1));
  b.Step();
  EXPECT_TRUE(b.leading());
  EXPECT_EQ(b.term(), 2U);
}

TEST_F(ElectorTest, NothingIsWrittenThroughTheFenceAfterTheLeadership) {
  Elector elector(*api_, clock_, OptionsOf("a"));
  FencedKube fenced(*api_, elector);
  const std::string json = ConfigMapJson("x", "1");
  EXPECT_EQ(fenced.Create(Kind::kConfigMap, json).status().code(), StatusCode::kAborted);
  elector.Step();
  ASSERT_TRUE(fenced.Create(Kind::kConfigMap, json).ok());
  clock_.Advance(seconds(5));  // the renew deadline, and no Step noticed
  const std::uint64_t writes = api_->writes(Kind::kConfigMap);
  EXPECT_FALSE(fenced.Create(Kind::kConfigMap, ConfigMapJson("y", "1")).ok());
  EXPECT_FALSE(fenced.Update(Kind::kConfigMap, ConfigMapJson("x", "2")).ok());
  EXPECT_FALSE(fenced.UpdateStatus(Kind::kNode, NodeJson("n")).ok());
  EXPECT_FALSE(fenced.Apply(Kind::kConfigMap, json, {.field_manager = "m"}).ok());
  EXPECT_FALSE(
      fenced.Patch(Kind::kConfigMap, {"default", "x"}, PatchType::kMerge, "{}", false).ok());
  EXPECT_FALSE(fenced.Delete(Kind::kConfigMap, {"default", "x"}, {}).ok());
  EXPECT_EQ(api_->writes(Kind::kConfigMap), writes);
  EXPECT_TRUE(fenced.Get(Kind::kConfigMap, {"default", "x"}).ok());
  EXPECT_EQ(fenced.List(Kind::kConfigMap, "")->items.size(), 1U);
}

TEST_F(ElectorTest, RenewalKeepsTheTerm) {
  Elector a(*api_, clock_, OptionsOf("a"));
  Elector b(*api_, clock_, OptionsOf("b"));
  for (int i = 0; i < 60; ++i) {
    a.Step();
    b.Step();
    clock_.Advance(seconds(1));
    ASSERT_TRUE(a.leading());
    ASSERT_FALSE(b.leading());
  }
  EXPECT_EQ(a.term(), 1U);
}

TEST_F(ElectorTest, ReleaseLetsTheNextOneInAtOnce) {
  Elector a(*api_, clock_, OptionsOf("a"));
  a.Step();
  a.Release();
  EXPECT_FALSE(a.leading());
  Elector b(*api_, clock_, OptionsOf("b"));
  b.Step();
  EXPECT_TRUE(b.leading());
  EXPECT_EQ(b.term(), 2U);
}

TEST_F(ElectorTest, DeadPredecessorNeedNotBeWaitedFor) {
  Elector a(*api_, clock_, OptionsOf("a"));
  a.Step();
  Elector::Options options = OptionsOf("b");
  options.previous_holder_is_gone = true;
  Elector b(*api_, clock_, options);
  b.Step();
  EXPECT_TRUE(b.leading());
  EXPECT_EQ(b.term(), 2U);
}

TEST_F(ElectorTest, DeadlineCountsFromBeforeTheRequestWasSent) {
  FlakyKube flaky(*api_, clock_);
  Elector a(flaky, clock_, OptionsOf("a"));
  flaky.slow = milliseconds(2500);  // Get and Create take 5 s together
  a.Step();
  EXPECT_FALSE(a.leading()) << "the answer came when the leadership it gave was over";
}

TEST_F(ElectorTest, LeadershipThatEndedNeedsANewTerm) {
  FlakyKube flaky(*api_, clock_);
  int changes = 0;
  Elector::Options options = OptionsOf("a");
  options.on_change = [&] { ++changes; };
  Elector a(flaky, clock_, options);
  a.Step();
  flaky.down = true;
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(seconds(1));
    a.Step();
    EXPECT_TRUE(a.leading());
  }
  clock_.Advance(seconds(1));
  EXPECT_FALSE(a.leading());
  EXPECT_EQ(a.overdue(), seconds(0));
  clock_.Advance(seconds(2));
  EXPECT_EQ(a.overdue(), seconds(2));
  a.Step();
  EXPECT_EQ(changes, 2);
  EXPECT_EQ(a.overdue(), seconds(0));
  flaky.down = false;
  a.Step();
  EXPECT_TRUE(a.leading());
  EXPECT_EQ(a.term(), 2U);
}

TEST_F(ElectorTest, LostAnswerOfARenewalIsNoLoss) {
  FlakyKube flaky(*api_, clock_);
  Elector a(flaky, clock_, OptionsOf("a"));
  a.Step();
  flaky.lose_answers = true;
  clock_.Advance(seconds(1));
  a.Step();
  flaky.lose_answers = false;
  clock_.Advance(seconds(1));
  a.Step();
  EXPECT_TRUE(a.leading());
  EXPECT_EQ(a.term(), 1U);
}

// Random outages, slow calls and lost answers: never two at once, terms only grow.
TEST_F(ElectorTest, NeverTwoLeaders) {
  std::mt19937_64 random(TestSeed());
  FlakyKube flaky_a(*api_, clock_);
  FlakyKube flaky_b(*api_, clock_);
  Elector a(flaky_a, clock_, OptionsOf("a"));
  Elector b(flaky_b, clock_, OptionsOf("b"));
  std::uint64_t term = 0;
  int changes_of_leader = 0;
  for (int i = 0; i < 2000; ++i) {
    for (FlakyKube* flaky : {&flaky_a, &flaky_b}) {
      if (random() % 20 == 0) flaky->down = !flaky->down;
      if (random() % 10 == 0) flaky->lose_answers = !flaky->lose_answers;
      flaky->slow = milliseconds(random() % 8 == 0 ? random() % 3000 : 0);
    }
    if (random() % 3 != 0) a.Step();
    ASSERT_FALSE(a.leading() && b.leading()) << "step " << i;
    if (random() % 3 != 0) b.Step();
    ASSERT_FALSE(a.leading() && b.leading()) << "step " << i;
    for (const Elector* elector : {&a, &b}) {
      if (!elector->leading()) continue;
      ASSERT_GE(elector->term(), term);
      changes_of_leader += elector->term() != term ? 1 : 0;
      term = elector->term();
    }
    clock_.Advance(milliseconds(random() % 1500));
  }
  EXPECT_GT(changes_of_leader, 5) << "the faults were too mild to try anything";
}

}  // namespace
}  // namespace kvfabric::kube
