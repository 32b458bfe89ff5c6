#include "operator/kube/http_streams.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <set>

#include "operator/kube/api_error.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/kube/reflector.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"
#include "tests/operator/scripted_client.h"
#include "tests/operator/test_objects.h"

namespace kvfabric::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Connection = ScriptedApiServer::Connection;
using Request = ScriptedApiServer::Request;

// A node as list items of built-in kinds come: without kind and apiVersion.
std::string Item(int number, int version = 5) {
  return R"({"metadata":{"name":"n)" + std::to_string(number) + R"(","resourceVersion":")" +
         std::to_string(version) + R"("}})";
}
std::string NodeList(const std::string& items, const std::string& version = "7",
                     const std::string& more = "") {
  return R"({"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":")" + version +
         R"(")" + more + R"(},"items":[)" + items + "]}";
}
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

struct Listed {
  std::vector<ObjectPtr> items;
  std::uint64_t version = 0;
  Status status;
};
Listed Drain(ListStream& stream, Bell& bell) {
  Listed out;
  for (;;) {
    const auto batch = stream.Poll();
    if (!batch.ok()) {
      out.status = batch.status();
      return out;
    }
    out.items.insert(out.items.end(), batch->items.begin(), batch->items.end());
    out.version = batch->resource_version;
    if (batch->done) return out;
    if (batch->items.empty() && !bell.Wait()) {
      out.status = DeadlineExceeded("the stream says nothing");
      return out;
    }
  }
}
Listed ListAll(HttpKube& api, const Scope& scope = {},
               std::optional<std::uint64_t> not_older_than = std::nullopt) {
  Bell bell;
  const auto stream = api.StartList(Kind::kNode, scope, not_older_than, bell.ringer());
  EXPECT_TRUE(stream.ok());
  return Drain(**stream, bell);
}

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

TEST(HttpList, GivesItemsTheirKindAndAsksInPages) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (request.Has("continue=tok%3D1")) return to.Answer(200, NodeList(Item(3)));
    to.Answer(200, NodeList(Item(1) + "," + Item(2), "7", R"(,"continue":"tok=1")"));
  });
  const auto api = ScriptedClient(server);
  const Listed listed = ListAll(*api, {"", "a=b,!c", "metadata.name=x"});
  ASSERT_TRUE(listed.status.ok()) << listed.status.ToString();
  ASSERT_EQ(listed.items.size(), 3U);
  EXPECT_EQ(listed.version, 7U);
  EXPECT_EQ(listed.items[0]->json.find(R"({"kind":"Node","apiVersion":"v1")"), 0U);
  EXPECT_EQ(server.requests()[0].target,
            "/api/v1/nodes?labelSelector=a%3Db%2C%21c&fieldSelector=metadata.name%3Dx&limit=500");
  EXPECT_TRUE(server.requests()[1].Has("limit=500&continue=tok%3D1"));
}

TEST(HttpList, AsksCachesForWholeLists) {
  ScriptedApiServer server(
      [](const Request&, Connection& to) { to.Answer(200, NodeList("", "12")); });
  const auto api = ScriptedClient(server);
  EXPECT_EQ(ListAll(*api, {}, 0).version, 12U);
  EXPECT_EQ(ListAll(*api, {}, 9).version, 12U);
  EXPECT_EQ(server.requests()[0].target, "/api/v1/nodes?resourceVersion=0");
  EXPECT_EQ(server.requests()[1].target,
            "/api/v1/nodes?resourceVersion=9&resourceVersionMatch=NotOlderThan");
}

TEST(HttpList, IsTheSameHoweverItArrives) {
  std::mt19937_64 random(TestSeed());
  std::string items;
  for (int i = 0; i < 200; ++i) items += (i == 0 ? "" : ",") + Item(i);
  const std::string body = NodeList(items);
  Mutex mu;
  ScriptedApiServer server([&](const Request&, Connection& to) {
    to.StartChunks();
    MutexLock lock(mu);
    for (std::size_t at = 0; at < body.size();) {
      const std::size_t size = std::min<std::size_t>(body.size() - at, 1 + random() % 400);
      to.Chunk(std::string_view(body).substr(at, size));
      at += size;
    }
    to.EndChunks();
  });
  const auto api = ScriptedClient(server);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ListAll(*api).items.size(), 200U);
}

// What a middlebox or a dying server makes of a list.
TEST(HttpList, CutOffListsAreErrorsAndNeverShorter) {
  const std::string body = NodeList(Item(1) + "," + Item(2));
  std::string sent;
  bool chunked = true;
  ScriptedApiServer server([&](const Request&, Connection& to) {
    if (chunked) {
      to.StartChunks();
      to.Chunk(sent);
      to.EndChunks();
    } else {
      to.Write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + sent);
      to.HangUp();
    }
  });
  HttpKube::Options options = ScriptedOptions(server);
  options.max_tries = 2;
  const auto api = ScriptedClient(options);
  for (std::size_t size = 1; size < body.size(); size += 7) {
    sent = body.substr(0, size);
    for (const bool whole_chunks : {true, false}) {
      chunked = whole_chunks;
      EXPECT_EQ(ListAll(*api).status.code(), StatusCode::kUnavailable) << size;
    }
  }
  chunked = true;
  for (const std::string& text :
       {body + "x", std::string("{}"), std::string("[]"), std::string("null"),
        R"({"kind":"NodeList","metadata":{"resourceVersion":"7"}})" + std::string(),
        R"({"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[]})" + std::string(),
        R"({"kind":"NodeList","metadata":{},"items":[]})" + std::string(),
        NodeList(Item(1) + R"(,{"metadata":{"name":"Not A Name"}})"),
        NodeList(R"({"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"}})")}) {
    sent = text;
    EXPECT_EQ(ListAll(*api).status.code(), StatusCode::kUnavailable) << text;
  }
}

TEST(HttpList, WrongContentTypeGivesNoItem) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.Answer(200, NodeList(Item(1)), "Content-Type: text/html\r\n");
  });
  const Listed listed = ListAll(*ScriptedClient(server));
  EXPECT_TRUE(listed.items.empty());
  EXPECT_NE(listed.status.message().find("text/html"), std::string::npos);
}

// Between two pages etcd compacted: whoever lists again gets one whole list, even if that happens
// for ever to pages.
TEST(HttpList, ExpiredPagesFallBackToOneWholeList) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (request.Has("continue=")) return to.Answer(410, StatusJson(410, "Expired"));
    if (request.Has("limit=")) {
      return to.Answer(200, NodeList(Item(1), "7", R"(,"continue":"old")"));
    }
    to.Answer(200, NodeList(Item(1) + "," + Item(2), "9"));
  });
  const auto api = ScriptedClient(server);
  EXPECT_TRUE(IsGone(ListAll(*api).status));
  const Listed again = ListAll(*api);
  EXPECT_TRUE(again.status.ok()) << again.status.ToString();
  EXPECT_EQ(again.items.size(), 2U);
  EXPECT_EQ(server.requests().size(), 3U);
  EXPECT_FALSE(server.requests()[2].Has("limit"));
  // The blocking call hides it.
  const auto list = api->List(Kind::kNode, "");
  ASSERT_TRUE(list.ok()) << list.status().ToString();
  EXPECT_EQ(list->items.size(), 2U);
  EXPECT_EQ(list->resource_version, 9U);
}

TEST(HttpList, TokenThatComesBackIsNotAskedForEver) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.Answer(200, NodeList(Item(1), "7", R"(,"continue":"same")"));
  });
  EXPECT_EQ(ListAll(*ScriptedClient(server)).status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(server.requests().size(), 2U);
}

TEST(HttpList, LaggingReplicaIsSaidSo) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.Answer(504, StatusJson(504, "Timeout",
                              R"(,"details":{"causes":[{"reason":"ResourceVersionTooLarge"}],)"
                              R"("retryAfterSeconds":1})"));
  });
  const Listed listed = ListAll(*ScriptedClient(server), {}, 99);
  EXPECT_TRUE(IsResourceVersionTooLarge(listed.status)) << listed.status.ToString();
  EXPECT_EQ(RetryAfterOf(listed.status), seconds(1));
}

TEST(HttpList, BusyServersBrokenConnectionsAndOldTokensAreTriedAgain) {
  const TempDir dir;
  std::ofstream(dir.path() / "token") << "t0";
  ScriptedApiServer server([&](const Request& request, Connection& to) {
    if (request.number == 1) return to.Answer(429, "busy", "Retry-After: 1\r\n");
    if (request.number == 2) return to.Reset();
    if (request.number == 3) {
      std::ofstream(dir.path() / "token") << "t1";
      return to.Answer(401, StatusJson(401, "Unauthorized"));
    }
    to.Answer(200, NodeList(Item(1)));
  });
  HttpKube::Options options = ScriptedOptions(server);
  options.target.credentials.token_file = dir.path() / "token";
  const auto api = ScriptedClient(options);
  const Listed listed = ListAll(*api);
  ASSERT_TRUE(listed.status.ok()) << listed.status.ToString();
  EXPECT_EQ(listed.items.size(), 1U);
  EXPECT_EQ(server.requests().back().headers.at("authorization"), "Bearer t1");
}

TEST(HttpList, RefusalsAreItsErrors) {
  ScriptedApiServer server(
      [](const Request&, Connection& to) { to.Answer(403, StatusJson(403, "Forbidden")); });
  const auto api = ScriptedClient(server);
  EXPECT_EQ(ListAll(*api).status.code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(api->List(Kind::kNode, "").status().code(), StatusCode::kPermissionDenied);
}

// A list nobody polls holds the server up instead of filling memory.
TEST(HttpList, HoldsTheServerUpWhileNobodyPolls) {
  constexpr int kItems = 4000;
  constexpr int kItemBytes = 4000;
  std::atomic<int> written{0};
  ScriptedApiServer server([&](const Request&, Connection& to) {
    to.StartChunks();
    to.Chunk(
        R"({"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[)");
    for (int i = 0; i < kItems; ++i) {
      std::string item = Item(i);
      item.insert(1, R"("spec":{"x":")" + std::string(kItemBytes, 'x') + R"("},)");
      to.Chunk((i == 0 ? "" : ",") + item);
      written = i + 1;
    }
    to.Chunk("]}");
    to.EndChunks();
  });
  HttpKube::Options options = ScriptedOptions(server);
  options.buffer_bytes = 64 << 10U;
  const auto api = ScriptedClient(options);
  Bell bell;
  const auto stream = *api->StartList(Kind::kNode, {}, std::nullopt, bell.ringer());
  std::size_t items = 0;
  std::size_t largest = 0;
  for (;;) {
    const auto batch = stream->Poll();
    ASSERT_TRUE(batch.ok()) << batch.status().ToString();
    items += batch->items.size();
    largest = std::max(largest, batch->items.size());
    if (batch->done) break;
    if (batch->items.empty()) {
      ASSERT_TRUE(bell.Wait());
    }
  }
  EXPECT_EQ(items, static_cast<std::size_t>(kItems));
  EXPECT_LE(largest * kItemBytes, 3 * options.buffer_bytes);
}

TEST(HttpList, LettingGoEndsIt) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.StartChunks();
    to.Stall();
  });
  const auto api = ScriptedClient(server);
  auto stream = *api->StartList(Kind::kNode, {}, std::nullopt, [] {});
  ASSERT_TRUE(server.WaitForRequests(1));
  stream.reset();
  EXPECT_TRUE(server.WaitForEnds(1));
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
    void Replace(const ObjectList& list) override {
      ++replaced;
      objects = list.items.size();
    }
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
