// Watches of HttpKube: events, ends, silence.

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "operator/kube/api_error.h"
#include "operator/kube/reflector.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"
#include "tests/operator/scripted_client.h"

namespace kvfabric::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Connection = ScriptedApiServer::Connection;
using Request = ScriptedApiServer::Request;

std::string Event(const std::string& type, int number, int version) {
  return R"({"type":")" + type + R"(","object":{"kind":"Node","apiVersion":"v1","metadata":)" +
         R"({"name":"n)" + std::to_string(number) + R"(","resourceVersion":")" +
         std::to_string(version) + R"("}}})" + "\n";
}
std::string Bookmark(int version, const std::string& more = "") {
  return R"({"type":"BOOKMARK","object":{"kind":"Node","apiVersion":"v1","metadata":)"
         R"({"resourceVersion":")" +
         std::to_string(version) + R"(","creationTimestamp":null)" + more + "}}}\n";
}
const std::string kInitialEnd = R"(,"annotations":{"k8s.io/initial-events-end":"true"})";

struct Watched {
  std::vector<std::pair<EventType, std::string>> events;
  std::vector<std::uint64_t> versions;  // each batch's
  std::size_t events_at_initial = SIZE_MAX;
  Status end;
};
Watched Follow(WatchStream& stream, Bell& bell) {
  Watched out;
  for (;;) {
    const auto batch = stream.Poll();
    if (!batch.ok()) {
      out.end = batch.status();
      return out;
    }
    for (const WatchEvent& event : batch->events) {
      out.events.emplace_back(event.type, event.object->meta.name.name);
    }
    out.versions.push_back(batch->resource_version);
    if (batch->initial_done) out.events_at_initial = out.events.size();
    if (batch->events.empty() && !bell.Wait()) {
      out.end = DeadlineExceeded("the stream says nothing");
      return out;
    }
  }
}
Watched WatchAll(HttpKube& api, const WatchFrom& from = {.resource_version = 7},
                 const Scope& scope = {}) {
  Bell bell;
  const auto stream = api.Watch(Kind::kNode, scope, from, bell.ringer());
  EXPECT_TRUE(stream.ok());
  return Follow(**stream, bell);
}

TEST(HttpWatch, AsksForWhatAWatchNeeds) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.StartChunks();
    to.EndChunks();
  });
  const auto api = ScriptedClient(server);
  std::set<int> timeouts;
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(WatchAll(*api, {.resource_version = 7}, {"", "a=b", ""}).end.code(),
              StatusCode::kCancelled);
    const std::string target = server.requests().back().target;
    EXPECT_EQ(target.find("/api/v1/nodes?watch=true&allowWatchBookmarks=true&timeoutSeconds="), 0U);
    EXPECT_NE(target.find("&labelSelector=a%3Db&resourceVersion=7"), std::string::npos) << target;
    EXPECT_EQ(target.find("sendInitialEvents"), std::string::npos);
    timeouts.insert(std::stoi(target.substr(target.find("timeoutSeconds=") + 15)));
  }
  EXPECT_GT(timeouts.size(), 4U) << "not all at one time";
  EXPECT_GE(*timeouts.begin(), 300);
  EXPECT_LE(*timeouts.rbegin(), 600);
  static_cast<void>(WatchAll(*api, {.initial_events = true}));
  const std::string target = server.requests().back().target;
  EXPECT_NE(target.find("sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
            std::string::npos)
      << target;
  EXPECT_EQ(target.find("resourceVersion="), std::string::npos);
}

TEST(HttpWatch, GivesEventsInOrderAndBookmarksAsProgress) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.StartChunks();
    to.Chunk(Event("ADDED", 1, 8) + Event("MODIFIED", 1, 9));
    to.Chunk(Event("DELETED", 1, 12) + Bookmark(20));
    to.EndChunks();
  });
  MetricsRegistry metrics;
  HttpKube::Options options = ScriptedOptions(server);
  options.metrics = &metrics;
  const auto api = ScriptedClient(options);
  const Watched watched = WatchAll(*api);
  const std::vector<std::pair<EventType, std::string>> wanted = {
      {EventType::kAdded, "n1"}, {EventType::kModified, "n1"}, {EventType::kDeleted, "n1"}};
  EXPECT_EQ(watched.events, wanted);
  EXPECT_EQ(watched.versions.back(), 20U);
  EXPECT_EQ(watched.end.code(), StatusCode::kCancelled) << watched.end.ToString();
  EXPECT_NE(metrics.Render().find(R"(watch_restarts_total{reason="ended"} 1)"), std::string::npos);
}

TEST(HttpWatch, IsTheSameCutAtEveryByte) {
  const std::string body =
      Event("ADDED", 1, 8) + Bookmark(9) + Event("DELETED", 1, 12) + Bookmark(20);
  std::atomic<std::size_t> split{0};
  ScriptedApiServer server([&](const Request&, Connection& to) {
    to.StartChunks();
    if (split > 0) to.Chunk(body.substr(0, split));
    if (split < body.size()) to.Chunk(body.substr(split));
    to.EndChunks();
  });
  const auto api = ScriptedClient(server);
  for (split = 0; split <= body.size(); ++split) {
    const Watched watched = WatchAll(*api);
    ASSERT_EQ(watched.events.size(), 2U) << split;
    ASSERT_EQ(watched.versions.back(), 20U) << split;
    ASSERT_EQ(watched.end.code(), StatusCode::kCancelled) << split;
  }
}

TEST(HttpWatch, InitialEventsEndWithTheirBookmark) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.StartChunks();
    to.Chunk(Event("ADDED", 2, 30) + Event("ADDED", 1, 8) + Bookmark(31));
    to.Chunk(Bookmark(40, kInitialEnd) + Event("MODIFIED", 1, 41));
    to.EndChunks();
  });
  Watched watched = WatchAll(*ScriptedClient(server), {.initial_events = true});
  EXPECT_EQ(watched.events.size(), 3U);
  EXPECT_GE(watched.events_at_initial, 2U);
  for (const std::uint64_t version : watched.versions) {
    EXPECT_TRUE(version == 0 || version >= 40) << "no version covers unordered events";
  }
  EXPECT_EQ(watched.versions.back(), 41U);
}

TEST(HttpWatch, ServersWithoutInitialEventsRefuseThem) {
  ScriptedApiServer server(
      [](const Request&, Connection& to) { to.Answer(422, StatusJson(422, "Invalid")); });
  EXPECT_TRUE(IsInvalid(WatchAll(*ScriptedClient(server), {.initial_events = true}).end));
}

TEST(HttpWatch, GoneComesAtConnectAndInTheStream) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (request.number == 1) return to.Answer(410, StatusJson(410, "Gone"));
    to.StartChunks();
    to.Chunk(Event("ADDED", 1, 8));
    to.Chunk(R"({"type":"ERROR","object":)" + StatusJson(410, "Expired") + "}\n");
    to.Stall();
  });
  MetricsRegistry metrics;
  HttpKube::Options options = ScriptedOptions(server);
  options.metrics = &metrics;
  const auto api = ScriptedClient(options);
  EXPECT_TRUE(IsGone(WatchAll(*api).end));
  const Watched in_stream = WatchAll(*api);
  EXPECT_TRUE(IsGone(in_stream.end)) << in_stream.end.ToString();
  EXPECT_EQ(in_stream.events.size(), 1U) << "what came before is given first";
  EXPECT_NE(metrics.Render().find(R"(watch_restarts_total{reason="gone"} 2)"), std::string::npos);
}

TEST(HttpWatch, OtherErrorsInTheStreamKeepTheirCode) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    to.StartChunks();
    to.Chunk(request.number == 1
                 ? R"({"type":"ERROR","object":)" + StatusJson(500, "InternalError") + "}"
                 : R"({"type":"ERROR","object":{"code":"x"}})");
    to.EndChunks();
  });
  const auto api = ScriptedClient(server);
  EXPECT_EQ(WatchAll(*api).end.code(), StatusCode::kInternal);
  EXPECT_EQ(WatchAll(*api).end.code(), StatusCode::kInternal);
}

TEST(HttpWatch, UnknownTypesAreSkippedAndCounted) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.StartChunks();
    to.Chunk(Event("PAUSED", 9, 100) + Event("ADDED", 1, 8));
    to.EndChunks();
  });
  MetricsRegistry metrics;
  HttpKube::Options options = ScriptedOptions(server);
  options.metrics = &metrics;
  const Watched watched = WatchAll(*ScriptedClient(options));
  EXPECT_EQ(watched.events.size(), 1U);
  EXPECT_EQ(watched.versions.back(), 8U);
  EXPECT_NE(metrics.Render().find("watch_unknown_events_total 1"), std::string::npos);
}

TEST(HttpWatch, CutOffAndCorruptStreamsAreNoOrderlyEnd) {
  std::string sent;
  ScriptedApiServer server([&](const Request&, Connection& to) {
    to.StartChunks();
    to.Chunk(sent);
    to.EndChunks();
  });
  const auto api = ScriptedClient(server);
  const std::string event = Event("ADDED", 1, 8);
  for (const std::string& text :
       {event + event.substr(0, 30), event + "]", event + "null", event + R"({"type":"ADDED"})",
        event + R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"x"}}})",
        event + R"({"type":"ADDED","object":{"kind":"Pod"}})"}) {
    sent = text;
    const Watched watched = WatchAll(*api);
    EXPECT_EQ(watched.end.code(), StatusCode::kUnavailable) << text;
    EXPECT_EQ(watched.events.size(), 1U) << text;
  }
}

TEST(HttpWatch, BrokenConnectionsAreNoOrderlyEnd) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    to.StartChunks();
    to.Chunk(Event("ADDED", 1, 8));
    if (request.number == 1) to.HangUp();
    if (request.number == 2) to.Reset();
    if (request.number == 3) to.Write("not a chunk size\r\n");
  });
  const auto api = ScriptedClient(server);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(WatchAll(*api).end.code(), StatusCode::kUnavailable) << i;
  }
}

// A watch whose other end is gone without a word: the list is not asked for again.
TEST(HttpWatch, SilentOneIsGivenUpAndGoesOnWhereItWas) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (!request.Has("watch=")) return to.Answer(200, NodeList(Item(1)));
    if (request.Has("sendInitialEvents")) return to.Answer(422, StatusJson(422, "Invalid"));
    to.StartChunks();
    if (request.Has("resourceVersion=8")) to.Chunk(Event("ADDED", 3, 9));
    if (request.Has("resourceVersion=7")) to.Chunk(Event("ADDED", 2, 8));
    to.Stall();
  });
  MetricsRegistry metrics;
  HttpKube::Options options = ScriptedOptions(server);
  options.metrics = &metrics;
  options.silence = milliseconds(100);
  const auto api = ScriptedClient(options);
  struct Sink final : ReflectorSink {
    void BeginCollect() override { objects = 0; }
    void Collect(const WatchEvent&) override { ++objects; }
    void CommitCollect() override { ++replaced; }
    void Apply(const WatchEvent&) override { ++objects; }
    std::size_t objects = 0;
    int replaced = 0;
  } sink;
  FakeClock clock;
  Bell bell;
  Reflector::Options reflector_options;
  reflector_options.on_ready = bell.ringer();
  Reflector reflector(*api, clock, reflector_options, sink);
  while (sink.objects < 3) {
    reflector.Step();
    if (const auto due = reflector.NextDue()) {
      clock.Advance(seconds(60));
      continue;
    }
    if (sink.objects < 3) {
      ASSERT_TRUE(bell.Wait());
    }
  }
  EXPECT_EQ(sink.replaced, 1) << "one list";
  EXPECT_EQ(reflector.resource_version(), 9U);
  EXPECT_NE(metrics.Render().find(R"(watch_restarts_total{reason="silent"} 1)"), std::string::npos)
      << metrics.Render();
}

TEST(HttpWatch, SlowHeadIsSilenceToo) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.Write("HTTP/1.1 200 OK\r\nContent-Type: app");
    to.Stall();
  });
  HttpKube::Options options = ScriptedOptions(server);
  options.silence = milliseconds(50);
  EXPECT_EQ(WatchAll(*ScriptedClient(options)).end.code(), StatusCode::kDeadlineExceeded);
}

TEST(HttpWatch, RefusedTokenIsReplacedOnce) {
  const TempDir dir;
  std::ofstream(dir.path() / "token") << "t0";
  ScriptedApiServer server([&](const Request& request, Connection& to) {
    if (request.headers.at("authorization") != "Bearer t1") {
      std::ofstream(dir.path() / "token") << (request.number == 1 ? "t1" : "t9");
      return to.Answer(401, StatusJson(401, "Unauthorized"));
    }
    to.StartChunks();
    to.EndChunks();
  });
  HttpKube::Options options = ScriptedOptions(server);
  options.target.credentials.token_file = dir.path() / "token";
  EXPECT_EQ(WatchAll(*ScriptedClient(options)).end.code(), StatusCode::kCancelled);
  std::ofstream(dir.path() / "token") << "t9";
  const auto stranger = ScriptedClient(options);
  EXPECT_EQ(WatchAll(*stranger).end.code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(server.requests().size(), 4U);
}

TEST(HttpWatch, HoldsTheServerUpWhileNobodyPolls) {
  constexpr int kEvents = 20'000;
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.StartChunks();
    for (int i = 0; i < kEvents; ++i) to.Chunk(Event("ADDED", i, 8 + i));
    to.EndChunks();
  });
  HttpKube::Options options = ScriptedOptions(server);
  options.buffer_bytes = 4 << 10U;
  const auto api = ScriptedClient(options);
  const Watched watched = WatchAll(*api);
  EXPECT_EQ(watched.events.size(), static_cast<std::size_t>(kEvents));
  EXPECT_EQ(watched.end.code(), StatusCode::kCancelled) << watched.end.ToString();
}

TEST(HttpWatch, TellsNobodyAfterItIsLetGo) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.StartChunks();
    for (int i = 0; i < 100'000; ++i) to.Chunk(Event("ADDED", i, 8 + i));
  });
  const auto api = ScriptedClient(server);
  for (int round = 0; round < 20; ++round) {
    auto rings = std::make_unique<std::atomic<int>>(0);
    auto stream =
        *api->Watch(Kind::kNode, {}, {.resource_version = 7}, [count = rings.get()] { ++*count; });
    while (*rings == 0) std::this_thread::yield();
    stream.reset();
    rings.reset();  // a call from here on would touch freed memory
  }
}

}  // namespace
}  // namespace kvfabric::kube
