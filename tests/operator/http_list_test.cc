// Lists of HttpKube: pages, streaming, faults.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>

#include "operator/kube/api_error.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"
#include "tests/operator/scripted_client.h"

namespace kvfabric::kube {
namespace {

using std::chrono::seconds;
using Connection = ScriptedApiServer::Connection;
using Request = ScriptedApiServer::Request;

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

TEST(HttpList, PagesWithoutEndComeToOne) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    const std::string number = std::to_string(request.number);
    to.Answer(200, NodeList(Item(1), "7", R"(,"continue":")" + number + "\""));
  });
  HttpKube::Options options = ScriptedOptions(server);
  options.list_timeout = std::chrono::milliseconds(50);
  EXPECT_EQ(ListAll(*ScriptedClient(options)).status.code(), StatusCode::kDeadlineExceeded);
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

}  // namespace
}  // namespace kvfabric::kube
