#include "operator/kube/informer.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "operator/kube/api_error.h"
#include "operator/kube/embedded_kube_api.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"
#include "tests/operator/forwarding_kube.h"
#include "tests/operator/test_objects.h"

namespace kvfabric::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Scripts faults around an API: lists that fail or are old, watches that break or are too old.
class FaultyApi final : public ForwardingKube {
 public:
  explicit FaultyApi(KubeApi& api) : ForwardingKube(api) {}
  bool fail_list = false;
  bool fail_watch = false;
  bool break_watch = false;
  bool expire_watch = false;
  bool asked_of_store = false;             // by the last list
  const ObjectList* stale_list = nullptr;  // what a cache of the API answers

  Result<std::unique_ptr<ListStream>> StartList(Kind kind, const Scope& scope,
                                                std::optional<std::uint64_t> not_older_than,
                                                std::function<void()> on_ready) override {
    if (fail_list) return Unavailable("down");
    asked_of_store = !not_older_than.has_value();
    if (stale_list != nullptr && !asked_of_store)
      return std::unique_ptr<ListStream>(new Stale(*stale_list));
    return ForwardingKube::StartList(kind, scope, not_older_than, std::move(on_ready));
  }
  Result<std::unique_ptr<WatchStream>> Watch(Kind kind, const Scope& scope, const WatchFrom& from,
                                             std::function<void()> on_ready) override {
    if (fail_watch) return Unavailable("down");
    if (from.initial_events) return Unimplemented("not offered here");
    KVF_ASSIGN_OR_RETURN(auto stream,
                         ForwardingKube::Watch(kind, scope, from, std::move(on_ready)));
    return std::unique_ptr<WatchStream>(new Stream(*this, std::move(stream)));
  }

 private:
  class Stale final : public ListStream {
   public:
    explicit Stale(const ObjectList& list) : list_(list) {}
    Result<ListBatch> Poll() override {
      return ListBatch{list_.items, true, list_.resource_version};
    }

   private:
    const ObjectList& list_;
  };
  class Stream final : public WatchStream {
   public:
    Stream(FaultyApi& api, std::unique_ptr<WatchStream> inner)
        : api_(api), inner_(std::move(inner)) {}
    Result<WatchBatch> Poll() override {
      if (api_.break_watch) return Unavailable("connection reset");
      if (api_.expire_watch) return Status(StatusCode::kOutOfRange, "too old");
      return inner_->Poll();
    }

   private:
    FaultyApi& api_;
    std::unique_ptr<WatchStream> inner_;
  };
};

struct Value {
  std::string uid;
  std::string json;
};

class InformerTest : public ::testing::Test {
 protected:
  InformerTest() {
    EmbeddedKubeApi::Options options;
    options.directory = dir_.path() / "api";
    options.sync = false;
    options.ring.events = 16;
    api_ = std::move(EmbeddedKubeApi::Open(std::move(options))).value();
    faulty_ = std::make_unique<FaultyApi>(*api_);
    Reflector::Options reflector;
    reflector.kind = Kind::kConfigMap;
    informer_ = std::make_unique<Informer<Value>>(
        *faulty_, clock_, reflector, [](const Object& object) -> Result<Value> {
          if (object.json.find("unreadable") != std::string::npos) return Internal("cannot read");
          return Value{object.meta.uid, object.json};
        });
    informer_->AddHandler([this](const ObjectName& name, const auto& before, const auto& after) {
      log_ += (before == nullptr ? "+" : after == nullptr ? "-" : "~") + name.name + " ";
    });
  }
  std::string TakeLog() { return std::exchange(log_, ""); }
  void Put(const std::string& name, const std::string& value) {
    if (!api_->Create(Kind::kConfigMap, ConfigMapJson(name, value)).ok()) {
      ASSERT_TRUE(api_->Update(Kind::kConfigMap, ConfigMapJson(name, value)).ok());
    }
  }
  void Remove(const std::string& name) {
    ASSERT_TRUE(api_->Delete(Kind::kConfigMap, {"default", name}, {}).ok());
  }

  TempDir dir_;
  FakeClock clock_;
  std::unique_ptr<EmbeddedKubeApi> api_;
  std::unique_ptr<FaultyApi> faulty_;
  std::unique_ptr<Informer<Value>> informer_;
  std::string log_;
};

TEST_F(InformerTest, ListsThenWatches) {
  Put("a", "1");
  EXPECT_FALSE(informer_->synced());
  informer_->Step();
  EXPECT_TRUE(informer_->synced());
  EXPECT_EQ(TakeLog(), "+a ");
  Put("b", "1");
  Put("a", "2");
  Remove("b");
  informer_->Step();
  EXPECT_EQ(TakeLog(), "+b ~a -b ");
  EXPECT_EQ(informer_->counters().lists, 1U);
  EXPECT_EQ(informer_->snapshot()->size(), 1U);
}

TEST_F(InformerTest, SnapshotsDoNotChange) {
  Put("a", "1");
  informer_->Step();
  const auto snapshot = informer_->snapshot();
  Remove("a");
  informer_->Step();
  EXPECT_EQ(snapshot->size(), 1U);
  EXPECT_TRUE(informer_->snapshot()->empty());
}

TEST_F(InformerTest, VersionCoversWritesOfOtherKinds) {
  informer_->Step();
  const ObjectPtr other = *api_->Create(Kind::kNode, NodeJson("n"));
  informer_->Step();
  EXPECT_GE(informer_->resource_version(), other->meta.resource_version);
}

TEST_F(InformerTest, BrokenWatchGoesOnWithoutListing) {
  Put("a", "1");
  informer_->Step();
  faulty_->break_watch = true;
  informer_->Step();
  Put("b", "1");
  faulty_->break_watch = false;
  EXPECT_TRUE(informer_->NextDue().has_value());
  clock_.Advance(seconds(2));
  informer_->Step();
  EXPECT_EQ(TakeLog(), "+a +b ");
  EXPECT_EQ(informer_->counters().lists, 1U);
}

TEST_F(InformerTest, ExpiredWatchListsAgainAndFindsDeletions) {
  Put("a", "1");
  Put("b", "1");
  informer_->Step();
  TakeLog();
  Remove("a");
  for (int i = 0; i < 40; ++i) Put("b", std::to_string(i));  // more than the ring holds
  informer_->Step();
  clock_.Advance(seconds(2));
  informer_->Step();
  EXPECT_EQ(TakeLog(), "-a ~b ");
  EXPECT_EQ(informer_->counters().lists, 2U);
}

TEST_F(InformerTest, SameNameNewObjectIsDeletionAndAddition) {
  Put("a", "1");
  informer_->Step();
  TakeLog();
  Remove("a");
  Put("a", "1");
  for (int i = 0; i < 40; ++i) Put("b", std::to_string(i));
  informer_->Step();
  clock_.Advance(seconds(2));
  informer_->Step();
  EXPECT_EQ(TakeLog(), "-a +a +b ");
}

TEST_F(InformerTest, OlderListIsRefusedAndTheStoreAsked) {
  Put("a", "1");
  const ObjectList old = *api_->List(Kind::kConfigMap, "");
  Put("b", "1");
  informer_->Step();
  EXPECT_TRUE(faulty_->asked_of_store);  // the first list is as of now
  TakeLog();
  Remove("a");
  faulty_->stale_list = &old;
  faulty_->expire_watch = true;
  informer_->Step();  // lists at once, from a cache that lags behind
  EXPECT_FALSE(faulty_->asked_of_store);
  EXPECT_EQ(TakeLog(), "");
  EXPECT_EQ(informer_->snapshot()->size(), 2U);
  faulty_->expire_watch = false;
  clock_.Advance(seconds(60));
  informer_->Step();
  EXPECT_TRUE(faulty_->asked_of_store);
  EXPECT_EQ(TakeLog(), "-a ~b ");
}

TEST_F(InformerTest, FailingApiIsAskedEverMoreRarely) {
  faulty_->fail_list = true;
  informer_->Step();
  std::vector<Clock::Duration> waits;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(informer_->NextDue().has_value());
    waits.push_back(*informer_->NextDue() - clock_.Now());
    clock_.Advance(waits.back() - milliseconds(1));
    informer_->Step();
    clock_.Advance(milliseconds(1));
    informer_->Step();
  }
  EXPECT_LE(waits.front(), milliseconds(1600));
  EXPECT_GE(waits.back(), seconds(30));
  EXPECT_LE(waits.back(), seconds(60));
}

TEST_F(InformerTest, UndecodableObjectIsLeftOutAlone) {
  Put("a", "1");
  Put("bad", "unreadable");
  informer_->Step();
  EXPECT_EQ(TakeLog(), "+a ");
  EXPECT_EQ(informer_->skipped(), 1U);
  Put("bad", "fine");
  Put("a", "unreadable");
  informer_->Step();
  EXPECT_EQ(TakeLog(), "+bad -a ");
}

// Random changes under random faults: in the end the cache equals the API.
TEST_F(InformerTest, ConvergesUnderFaults) {
  std::mt19937_64 random(TestSeed());
  for (int step = 0; step < 600; ++step) {
    const std::string name(1, static_cast<char>('a' + random() % 8));
    if (random() % 3 == 0) {
      const Status ignored = api_->Delete(Kind::kConfigMap, {"default", name}, {});
      EXPECT_TRUE(ignored.ok() || IsNotFound(ignored));
    } else {
      Put(name, std::to_string(step));
    }
    faulty_->fail_list = random() % 5 == 0;
    faulty_->fail_watch = random() % 5 == 0;
    faulty_->break_watch = random() % 5 == 0;
    faulty_->expire_watch = random() % 7 == 0;
    if (random() % 3 == 0) informer_->Step();
    clock_.Advance(milliseconds(random() % 4000));
  }
  faulty_->fail_list = faulty_->fail_watch = faulty_->break_watch = faulty_->expire_watch = false;
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(seconds(120));
    informer_->Step();
  }
  const ObjectList truth = *api_->List(Kind::kConfigMap, "");
  ASSERT_EQ(informer_->snapshot()->size(), truth.items.size());
  for (const ObjectPtr& object : truth.items) {
    const auto item = informer_->Find(object->meta.name);
    ASSERT_NE(item, nullptr);
    EXPECT_EQ(item->json, object->json);
  }
}

// An API that answers what a test wrote down, and writes down what it was asked.
class ScriptedApi final : public ForwardingKube {
 public:
  using ForwardingKube::ForwardingKube;
  std::deque<std::vector<Result<WatchBatch>>> watches;  // what Poll of each gives, then nothing
  std::deque<Result<ListBatch>> lists;
  std::string asked;

  Result<std::unique_ptr<ListStream>> StartList(Kind, const Scope&,
                                                std::optional<std::uint64_t> not_older_than,
                                                std::function<void()>) override {
    asked +=
        not_older_than.has_value() ? "list>=" + std::to_string(*not_older_than) + " " : "list ";
    if (lists.empty()) return Unavailable("no more lists");
    Result<ListBatch> next = std::move(lists.front());
    lists.pop_front();
    return std::unique_ptr<ListStream>(new OneList(std::move(next)));
  }
  Result<std::unique_ptr<WatchStream>> Watch(Kind, const Scope&, const WatchFrom& from,
                                             std::function<void()>) override {
    asked +=
        from.initial_events ? "initial " : "watch>" + std::to_string(from.resource_version) + " ";
    std::vector<Result<WatchBatch>> next;
    if (!watches.empty()) {
      next = std::move(watches.front());
      watches.pop_front();
    }
    return std::unique_ptr<WatchStream>(new OneWatch(std::move(next)));
  }

 private:
  class OneList final : public ListStream {
   public:
    explicit OneList(Result<ListBatch> batch) : batch_(std::move(batch)) {}
    Result<ListBatch> Poll() override { return batch_; }

   private:
    Result<ListBatch> batch_;
  };
  class OneWatch final : public WatchStream {
   public:
    explicit OneWatch(std::vector<Result<WatchBatch>> batches) : batches_(std::move(batches)) {}
    Result<WatchBatch> Poll() override {
      if (next_ == batches_.size()) return WatchBatch{};
      return batches_[next_++];
    }

   private:
    std::vector<Result<WatchBatch>> batches_;
    std::size_t next_ = 0;
  };
};

class ReflectorTest : public ::testing::Test {
 protected:
  ReflectorTest() {
    EmbeddedKubeApi::Options options;
    options.directory = dir_.path() / "api";
    options.sync = false;
    unused_ = std::move(EmbeddedKubeApi::Open(std::move(options))).value();
    api_ = std::make_unique<ScriptedApi>(*unused_);
    Reflector::Options reflector;
    reflector.kind = Kind::kConfigMap;
    informer_ = std::make_unique<Informer<Value>>(*api_, clock_, reflector,
                                                  [](const Object& object) -> Result<Value> {
                                                    return Value{object.meta.uid, object.json};
                                                  });
  }
  static WatchEvent Event(EventType type, const std::string& name, std::uint64_t version) {
    auto object = std::make_shared<Object>(
        *ParseObject(Kind::kConfigMap, ConfigMapJson(name, std::to_string(version))));
    object->meta.resource_version = version;
    return {type, std::move(object)};
  }
  static WatchEvent Added(const std::string& name, std::uint64_t version) {
    return Event(EventType::kAdded, name, version);
  }
  static Status TooLarge() {
    auto detail = std::make_shared<ApiDetail>();
    detail->cause_reasons = {"ResourceVersionTooLarge"};
    return {StatusCode::kDeadlineExceeded, "too large resource version", std::move(detail)};
  }
  static ListBatch ListOf(std::vector<WatchEvent> events, std::uint64_t version) {
    ListBatch out;
    for (WatchEvent& event : events) out.items.push_back(std::move(event.object));
    out.done = true;
    out.resource_version = version;
    return out;
  }
  std::string Names() const {
    std::string out;
    for (const auto& [name, item] : *informer_->snapshot()) out += name.name;
    return out;
  }
  std::string Asked() { return std::exchange(api_->asked, ""); }

  TempDir dir_;
  FakeClock clock_;
  std::unique_ptr<EmbeddedKubeApi> unused_;
  std::unique_ptr<ScriptedApi> api_;
  std::unique_ptr<Informer<Value>> informer_;
};

TEST_F(ReflectorTest, InitialEventsFillTheCacheAndTheSameStreamGoesOn) {
  api_->watches.push_back({WatchBatch{{Added("a", 3), Added("b", 1)}, 0, false}, WatchBatch{},
                           WatchBatch{{Event(EventType::kDeleted, "b", 4)}, 5, true},
                           WatchBatch{{Added("c", 6)}, 6, false}, WatchBatch{{}, 9, false}});
  informer_->Step();
  EXPECT_FALSE(informer_->synced());
  EXPECT_EQ(Names(), "") << "nothing is shown before all of it is there";
  informer_->Step();
  EXPECT_TRUE(informer_->synced());
  EXPECT_EQ(Names(), "ac");
  EXPECT_EQ(informer_->resource_version(), 9U) << "a bookmark moves the version";
  EXPECT_EQ(Asked(), "initial ");
}

TEST_F(ReflectorTest, RefusedInitialEventsFallBackToAListForGood) {
  api_->watches.push_back({InvalidArgument("sendInitialEvents: forbidden")});
  api_->lists.emplace_back(ListOf({Added("a", 1)}, 7));
  api_->watches.push_back({Status(StatusCode::kOutOfRange, "too old")});
  api_->lists.emplace_back(ListOf({Added("b", 8)}, 9));
  informer_->Step();
  // One that fell behind for the first time lists again at once; a cache will do.
  EXPECT_EQ(Asked(), "initial list watch>7 list>=7 watch>9 ");
  EXPECT_EQ(Names(), "b");
}

TEST_F(ReflectorTest, InitialEventsCutOffLeaveWhatWasKnown) {
  api_->watches.push_back({WatchBatch{{Added("a", 1), Added("b", 2)}, 2, true},
                           Status(StatusCode::kOutOfRange, "old")});
  api_->watches.push_back({WatchBatch{{Added("a", 1)}, 0, false}, Unavailable("reset")});
  informer_->Step();
  EXPECT_EQ(Names(), "ab");
  EXPECT_TRUE(informer_->NextDue().has_value());
  api_->watches.push_back({WatchBatch{{Added("b", 2)}, 3, true}});
  clock_.Advance(seconds(4));
  informer_->Step();
  EXPECT_EQ(Names(), "b");
}

TEST_F(ReflectorTest, WatchThatEndsInGoodOrderIsOpenedAgainWithoutAList) {
  const Status ended(StatusCode::kCancelled, "ended");
  api_->watches.push_back(
      {WatchBatch{{Added("a", 1)}, 1, true}, WatchBatch{{Added("b", 2)}, 2, false}, ended});
  api_->watches.push_back({ended});
  api_->watches.push_back({WatchBatch{{Added("c", 6)}, 6, false}, ended});
  informer_->Step();
  EXPECT_EQ(Asked(), "initial watch>2 ");
  ASSERT_TRUE(informer_->NextDue().has_value()) << "one that ends at once is not hammered";
  clock_.Advance(seconds(2));
  informer_->Step();
  EXPECT_EQ(Asked(), "watch>2 watch>6 ");
  EXPECT_EQ(informer_->counters().lists, 1U);
}

TEST_F(ReflectorTest, LaggingReplicaIsWaitedForAndThenTheStoreAsked) {
  api_->watches.push_back({Unimplemented("no initial events")});
  api_->lists.emplace_back(ListOf({Added("a", 5)}, 5));
  api_->watches.push_back({TooLarge()});
  informer_->Step();
  EXPECT_EQ(Asked(), "initial list watch>5 ");
  api_->lists.emplace_back(ListOf({Added("b", 6)}, 6));
  clock_.Advance(seconds(2));
  informer_->Step();
  EXPECT_EQ(Asked(), "list watch>6 ");
  EXPECT_EQ(Names(), "b");
}

TEST_F(ReflectorTest, StoreRestoredToAnOlderStateIsTakenWhenItSaysSoTwice) {
  api_->watches.push_back({Unimplemented("no initial events")});
  api_->lists.emplace_back(ListOf({Added("a", 50)}, 50));
  api_->watches.push_back({TooLarge()});
  informer_->Step();
  api_->lists.emplace_back(ListOf({Added("b", 7)}, 7));
  clock_.Advance(seconds(4));
  informer_->Step();
  EXPECT_EQ(Names(), "a") << "one answer from the past is no proof";
  api_->lists.emplace_back(ListOf({Added("b", 7)}, 7));
  clock_.Advance(seconds(60));
  informer_->Step();
  EXPECT_EQ(Names(), "b");
  EXPECT_EQ(informer_->resource_version(), 7U);
}

TEST_F(ReflectorTest, WaitsAsLongAsTheApiAsks) {
  auto detail = std::make_shared<ApiDetail>();
  detail->retry_after = seconds(20);
  api_->watches.push_back({Status(StatusCode::kUnavailable, "too many requests", detail)});
  informer_->Step();
  ASSERT_TRUE(informer_->NextDue().has_value());
  EXPECT_GE(*informer_->NextDue() - clock_.Now(), seconds(20));
}

}  // namespace
}  // namespace kvfabric::kube
