#include "operator/kube/embedded_kube_api.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "operator/kube/api_error.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"
#include "tests/operator/test_objects.h"

namespace kvfabric::kube {
namespace {

class EmbeddedKubeApiTest : public ::testing::Test {
 protected:
  std::unique_ptr<EmbeddedKubeApi> Open(EmbeddedKubeApi::Options options = {}) {
    options.directory = dir_.path() / "api";
    options.clock = &clock_;
    auto api = EmbeddedKubeApi::Open(std::move(options));
    EXPECT_TRUE(api.ok()) << api.status().ToString();
    return api.ok() ? std::move(api).value() : nullptr;
  }

  TempDir dir_;
  FakeClock clock_;
};

TEST_F(EmbeddedKubeApiTest, CreateGivesWhatTheApiOwns) {
  auto api = Open();
  const auto made = api->Create(Kind::kConfigMap, ConfigMapJson("a", "1", R"(,"uid":"mine")"));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const ObjectMeta& meta = (*made)->meta;
  EXPECT_EQ(meta.uid.size(), 36U);
  EXPECT_GT(meta.resource_version, 0U);
  EXPECT_EQ(meta.generation, 1);
  EXPECT_EQ(meta.creation_timestamp, "2023-11-14T22:30:00Z");
  EXPECT_TRUE(IsAlreadyExists(api->Create(Kind::kConfigMap, ConfigMapJson("a", "2")).status()));
}

TEST_F(EmbeddedKubeApiTest, RefusesBadNames) {
  auto api = Open();
  for (const char* name : {"", "A", "a_b", "-a", "a-", "a..b", "../x", "a/b"}) {
    EXPECT_EQ(api->Create(Kind::kNode, NodeJson(name)).status().code(),
              StatusCode::kInvalidArgument)
        << name;
  }
  EXPECT_TRUE(api->Create(Kind::kNode, NodeJson("ip-10-0-0-1.ec2.internal")).ok());
}

TEST_F(EmbeddedKubeApiTest, UpdateNeedsTheVersionThatWasRead) {
  auto api = Open();
  const ObjectPtr first = *api->Create(Kind::kPool, BarePoolJson("p", R"({"a":1})"));
  const std::uint64_t version = first->meta.resource_version;
  EXPECT_TRUE(IsInvalid(api->Update(Kind::kPool, BarePoolJson("p", R"({"a":2})")).status()));
  const auto second =
      api->Update(Kind::kPool, BarePoolJson("p", R"({"a":2})", VersionField(version)));
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_GT((*second)->meta.resource_version, version);
  EXPECT_TRUE(IsConflict(
      api->Update(Kind::kPool, BarePoolJson("p", R"({"a":3})", VersionField(version))).status()));
  EXPECT_TRUE(IsNotFound(
      api->Update(Kind::kPool, BarePoolJson("q", R"({"a":3})", VersionField(version))).status()));
}

TEST_F(EmbeddedKubeApiTest, UpdateOfAnotherUidIsAConflict) {
  auto api = Open();
  ASSERT_TRUE(api->Create(Kind::kNode, NodeJson("n")).ok());
  EXPECT_TRUE(IsConflict(api->Update(Kind::kNode, NodeJson("n", R"(,"uid":"other")")).status()));
}

TEST_F(EmbeddedKubeApiTest, GenerationMovesWithTheSpecOnly) {
  auto api = Open();
  ObjectPtr pool = *api->Create(Kind::kPool, BarePoolJson("p", R"({"a":1})", "", R"({"x":1})"));
  EXPECT_EQ(pool->json.find("status"), std::string::npos) << "status at creation is dropped";
  const auto version = [&] { return VersionField(pool->meta.resource_version); };

  pool =
      *api->UpdateStatus(Kind::kPool, BarePoolJson("p", R"({"a":9})", version(), R"({"epoch":7})"));
  EXPECT_EQ(pool->meta.generation, 1);
  EXPECT_NE(pool->json.find(R"("epoch":7)"), std::string::npos);
  EXPECT_NE(pool->json.find(R"("a":1)"), std::string::npos) << "a status write leaves the spec";

  pool = *api->Update(Kind::kPool,
                      BarePoolJson("p", R"({"a":1})", version() + R"(,"labels":{"l":"v"})"));
  EXPECT_EQ(pool->meta.generation, 1) << "labels are not spec";
  pool = *api->Update(Kind::kPool, BarePoolJson("p", R"({"a":2})", version(), R"({"epoch":9})"));
  EXPECT_EQ(pool->meta.generation, 2);
  EXPECT_NE(pool->json.find(R"("epoch":7)"), std::string::npos) << "a spec write leaves the status";
}

TEST_F(EmbeddedKubeApiTest, WriteThatChangesNothingLeavesTheVersion) {
  auto api = Open();
  const ObjectPtr made = *api->Create(Kind::kPool, BarePoolJson("p", R"({"a":1})"));
  const std::string same =
      BarePoolJson("p", R"({"a":1})", VersionField(made->meta.resource_version));
  const ObjectPtr again = *api->Update(Kind::kPool, same);
  EXPECT_EQ(again->meta.resource_version, made->meta.resource_version);
  EXPECT_EQ(api->writes(Kind::kPool), 1U);
}

TEST_F(EmbeddedKubeApiTest, DeleteObeysPreconditions) {
  auto api = Open();
  const ObjectPtr made = *api->Create(Kind::kNode, NodeJson("n"));
  const ObjectName name{"", "n"};
  EXPECT_TRUE(IsConflict(api->Delete(Kind::kNode, name, {"other", 0})));
  EXPECT_TRUE(IsConflict(api->Delete(Kind::kNode, name, {"", made->meta.resource_version + 1})));
  EXPECT_TRUE(api->Delete(Kind::kNode, name, {made->meta.uid, made->meta.resource_version}).ok());
  EXPECT_TRUE(IsNotFound(api->Delete(Kind::kNode, name, {})));
}

TEST_F(EmbeddedKubeApiTest, DependentsGoWithTheirOwner) {
  auto api = Open();
  const ObjectPtr owner = *api->Create(Kind::kConfigMap, ConfigMapJson("owner", "1"));
  const auto owned = [](const std::string& uid) {
    return R"(,"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":")" +
           uid + R"("}])";
  };
  const std::string by_owner = owned(owner->meta.uid);
  ASSERT_TRUE(api->Create(Kind::kConfigMap, ConfigMapJson("child", "1", by_owner)).ok());
  ASSERT_TRUE(api->Create(Kind::kConfigMap, ConfigMapJson("free", "1")).ok());
  ASSERT_TRUE(api->Delete(Kind::kConfigMap, {"default", "owner"}, {}).ok());
  EXPECT_TRUE(IsNotFound(api->Get(Kind::kConfigMap, {"default", "child"}).status()));
  EXPECT_TRUE(api->Get(Kind::kConfigMap, {"default", "free"}).ok());
}

TEST_F(EmbeddedKubeApiTest, WatchSeesEventsInOrder) {
  auto api = Open();
  const std::uint64_t start = api->List(Kind::kConfigMap, "")->resource_version;
  std::atomic<int> ready{0};
  auto watch = api->Watch(Kind::kConfigMap, {}, {.resource_version = start}, [&] { ++ready; });
  ASSERT_TRUE(watch.ok());
  const int at_start = ready;
  ObjectPtr object = *api->Create(Kind::kConfigMap, ConfigMapJson("a", "1"));
  ASSERT_TRUE(api->Create(Kind::kNode, NodeJson("n")).ok());  // another kind: not told
  ASSERT_TRUE(api->Update(Kind::kConfigMap, ConfigMapJson("a", "2")).ok());
  ASSERT_TRUE(api->Delete(Kind::kConfigMap, {"default", "a"}, {}).ok());
  EXPECT_EQ(ready - at_start, 3);
  const auto batch = (*watch)->Poll();
  ASSERT_TRUE(batch.ok());
  ASSERT_EQ(batch->events.size(), 3U);
  EXPECT_EQ(batch->events[0].type, EventType::kAdded);
  EXPECT_EQ(batch->events[1].type, EventType::kModified);
  EXPECT_EQ(batch->events[2].type, EventType::kDeleted);
  std::uint64_t last = start;
  for (const WatchEvent& event : batch->events) {
    EXPECT_GT(event.object->meta.resource_version, last);
    last = event.object->meta.resource_version;
  }
  EXPECT_TRUE((*watch)->Poll()->events.empty());
}

TEST_F(EmbeddedKubeApiTest, WatchOfOneNamespaceSkipsOthers) {
  auto api = Open();
  auto watch =
      *api->Watch(Kind::kConfigMap, Scope{"other", "", ""},
                  {.resource_version = api->List(Kind::kNode, "")->resource_version}, nullptr);
  ASSERT_TRUE(api->Create(Kind::kConfigMap, ConfigMapJson("a", "1")).ok());
  const auto batch = watch->Poll();
  EXPECT_TRUE(batch->events.empty());
  EXPECT_EQ(batch->resource_version, api->List(Kind::kNode, "")->resource_version)
      << "a watch with no events still moves on";
}

TEST_F(EmbeddedKubeApiTest, SlowWatcherGetsGone) {
  EmbeddedKubeApi::Options options;
  options.ring.events = 4;
  auto api = Open(std::move(options));
  const std::uint64_t start = api->List(Kind::kConfigMap, "")->resource_version;
  auto watch = *api->Watch(Kind::kConfigMap, {}, {.resource_version = start}, nullptr);
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(api->Create(Kind::kConfigMap, ConfigMapJson("c" + std::to_string(i), "1")).ok());
  }
  EXPECT_TRUE(IsGone(watch->Poll().status()));
  EXPECT_TRUE(
      IsGone(api->Watch(Kind::kConfigMap, {}, {.resource_version = start}, nullptr).status()));
  EXPECT_TRUE(api->Watch(Kind::kConfigMap, {},
                         {.resource_version = api->List(Kind::kConfigMap, "")->resource_version},
                         nullptr)
                  .ok());
}

TEST_F(EmbeddedKubeApiTest, QuietKindOutlivesABusyOne) {
  EmbeddedKubeApi::Options options;
  options.ring.events = 4;
  auto api = Open(std::move(options));
  auto watch = *api->Watch(
      Kind::kNode, {}, {.resource_version = api->List(Kind::kNode, "")->resource_version}, nullptr);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(api->Create(Kind::kConfigMap, ConfigMapJson("c" + std::to_string(i), "1")).ok());
  }
  ASSERT_TRUE(api->Create(Kind::kNode, NodeJson("n")).ok());
  const auto batch = watch->Poll();
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch->events.size(), 1U);
}

TEST_F(EmbeddedKubeApiTest, RestartKeepsObjectsAndNeverReusesVersions) {
  std::uint64_t highest = 0;
  std::string json;
  {
    auto api = Open();
    json = (*api->Create(Kind::kPool, BarePoolJson("p", R"({"text":"yes","n":"12"})")))->json;
    const ObjectPtr gone = *api->Create(Kind::kNode, NodeJson("n"));
    ASSERT_TRUE(api->Delete(Kind::kNode, {"", "n"}, {}).ok());
    highest = api->List(Kind::kNode, "")->resource_version;
    ASSERT_GT(highest, gone->meta.resource_version);
  }
  auto api = Open();
  EXPECT_EQ((*api->Get(Kind::kPool, {"default", "p"}))->json, json);
  EXPECT_TRUE(IsNotFound(api->Get(Kind::kNode, {"", "n"}).status()));
  EXPECT_GE(api->List(Kind::kNode, "")->resource_version, highest);
  const ObjectPtr made = *api->Create(Kind::kNode, NodeJson("m"));
  EXPECT_GT(made->meta.resource_version, highest);
  EXPECT_TRUE(
      IsGone(api->Watch(Kind::kNode, {}, {.resource_version = highest - 1}, nullptr).status()));
}

TEST_F(EmbeddedKubeApiTest, SecondOwnerOfTheDirectoryIsRefused) {
  auto api = Open();
  EmbeddedKubeApi::Options options;
  options.directory = dir_.path() / "api";
  const auto second = EmbeddedKubeApi::Open(std::move(options));
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(EmbeddedKubeApiTest, UnreadableFileIsNamedAndNothingStarts) {
  { ASSERT_TRUE(Open()->Create(Kind::kNode, NodeJson("n")).ok()); }
  const auto path = dir_.path() / "api" / "nodes" / "n.yaml";
  std::filesystem::resize_file(path, 10);
  EmbeddedKubeApi::Options options;
  options.directory = dir_.path() / "api";
  const auto api = EmbeddedKubeApi::Open(std::move(options));
  EXPECT_EQ(api.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(api.status().message().find("nodes/n.yaml"), std::string::npos);
}

TEST_F(EmbeddedKubeApiTest, WhatAFileCannotHoldIsRefused) {
  auto api = Open();
  EXPECT_EQ(
      api->Create(Kind::kConfigMap, ConfigMapJson("a", "\\u0001\xEF\xBF\xBF")).status().code(),
      StatusCode::kInvalidArgument)
      << "U+FFFF";
  const std::string long_key = R"(,"annotations":{")" + std::string(2000, 'k') + R"(":"v"})";
  EXPECT_FALSE(api->Create(Kind::kConfigMap, ConfigMapJson("b", "1", long_key)).ok());
  EXPECT_TRUE(api->Create(Kind::kConfigMap, ConfigMapJson("c", "\xF0\x9F\x98\x80 \\n: #")).ok());
  const std::string json = (*api->Get(Kind::kConfigMap, {"default", "c"}))->json;
  api.reset();
  api = Open();
  EXPECT_EQ((*api->Get(Kind::kConfigMap, {"default", "c"}))->json, json);
  EXPECT_EQ(api->List(Kind::kConfigMap, "")->items.size(), 1U);
}

TEST_F(EmbeddedKubeApiTest, FailedWriteLeavesTheOldObject) {
  std::string fail_at;
  EmbeddedKubeApi::Options options;
  options.fault = [&](const char* step) {
    return fail_at == step ? ResourceExhausted("no space left") : Status::Ok();
  };
  auto api = Open(std::move(options));
  ASSERT_TRUE(api->Create(Kind::kNode, NodeJson("n")).ok());
  const std::string before = (*api->Get(Kind::kNode, {"", "n"}))->json;
  for (const char* step : {"create", "write", "sync", "rename"}) {
    fail_at = step;
    EXPECT_FALSE(api->Update(Kind::kNode, NodeJson("n", R"(,"labels":{"a":"b"})")).ok()) << step;
    EXPECT_EQ((*api->Get(Kind::kNode, {"", "n"}))->json, before) << step;
  }
  fail_at = "sync_directory";  // the new object is there, and the writer is told of the doubt
  EXPECT_FALSE(api->Update(Kind::kNode, NodeJson("n", R"(,"labels":{"a":"b"})")).ok());
  EXPECT_NE((*api->Get(Kind::kNode, {"", "n"}))->json, before);
}

// kill -9 at every step of every kind of write, by a child that ends there: what was answered is
// there afterwards, nothing is half there, and versions go on.
TEST_F(EmbeddedKubeApiTest, SurvivesKillAtEveryStep) {
  constexpr int kUpdates = 3;
  for (int die_at = 1; die_at < 60; ++die_at) {
    const TempDir dir;
    const auto directory = dir.path() / "api";
    int pipe_fds[2];
    ASSERT_EQ(::pipe(pipe_fds), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int steps = 0;
      EmbeddedKubeApi::Options options;
      options.directory = directory;
      options.fault = [&](const char* /*step*/) -> Status {
        if (++steps == die_at) ::_exit(9);
        return Status::Ok();
      };
      auto api = EmbeddedKubeApi::Open(std::move(options));
      if (!api.ok()) ::_exit(1);
      const auto tell = [&](const Result<ObjectPtr>& r) {
        if (!r.ok()) ::_exit(2);
        const std::uint64_t version = (*r)->meta.resource_version;
        if (::write(pipe_fds[1], &version, sizeof(version)) != sizeof(version)) ::_exit(3);
      };
      tell((*api)->Create(Kind::kConfigMap, ConfigMapJson("a", "0")));
      for (int i = 1; i <= kUpdates; ++i) {
        tell((*api)->Update(Kind::kConfigMap, ConfigMapJson("a", std::to_string(i))));
      }
      if (!(*api)->Delete(Kind::kConfigMap, {"default", "a"}, {}).ok()) ::_exit(4);
      ::_exit(0);
    }
    ::close(pipe_fds[1]);
    std::vector<std::uint64_t> answered;
    std::uint64_t version = 0;
    while (::read(pipe_fds[0], &version, sizeof(version)) == sizeof(version)) {
      answered.push_back(version);
    }
    ::close(pipe_fds[0]);
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    ASSERT_TRUE(WIFEXITED(state));
    ASSERT_TRUE(WEXITSTATUS(state) == 9 || WEXITSTATUS(state) == 0) << WEXITSTATUS(state);

    EmbeddedKubeApi::Options options;
    options.directory = directory;
    auto api = EmbeddedKubeApi::Open(std::move(options));
    ASSERT_TRUE(api.ok()) << "step " << die_at << ": " << api.status().ToString();
    const auto found = (*api)->Get(Kind::kConfigMap, {"default", "a"});
    if (!answered.empty() && answered.size() <= kUpdates) {
      ASSERT_TRUE(found.ok()) << "step " << die_at;
      EXPECT_GE((*found)->meta.resource_version, answered.back()) << "step " << die_at;
    }
    const ObjectPtr fresh = *(*api)->Create(Kind::kNode, NodeJson("n"));
    if (!answered.empty()) {
      EXPECT_GT(fresh->meta.resource_version, answered.back());
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
    }
    if (WEXITSTATUS(state) == 0) {
      EXPECT_GT(die_at, 20) << "the child ended before the steps were tried";
      return;
    }
  }
  FAIL() << "more steps than expected: raise the limit";
}

TEST_F(EmbeddedKubeApiTest, ConcurrentWritersLoseNoUpdate) {
  auto api = Open();
  ASSERT_TRUE(api->Create(Kind::kPool, BarePoolJson("p", R"({"n":0})")).ok());
  constexpr int kThreads = 4;
  constexpr int kEach = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int done = 0; done < kEach;) {
        const ObjectPtr pool = *api->Get(Kind::kPool, {"default", "p"});
        const std::string::size_type at = pool->json.find(R"("n":)") + 4;
        const int n = std::stoi(pool->json.substr(at));
        const auto written =
            api->Update(Kind::kPool, BarePoolJson("p", R"({"n":)" + std::to_string(n + 1) + "}",
                                                  VersionField(pool->meta.resource_version)));
        if (written.ok()) ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string json = (*api->Get(Kind::kPool, {"default", "p"}))->json;
  EXPECT_NE(json.find(R"("n":)" + std::to_string(kThreads * kEach)), std::string::npos) << json;
}

}  // namespace
}  // namespace kvfabric::kube
