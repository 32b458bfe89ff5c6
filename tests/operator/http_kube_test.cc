#include "operator/kube/http_kube.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>

#include "operator/kube/api_error.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"
#include "tests/operator/scripted_client.h"
#include "tests/operator/test_objects.h"

namespace kvfabric::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Connection = ScriptedApiServer::Connection;
using Request = ScriptedApiServer::Request;

std::string LeaseJson(const std::string& metadata = "") {
  return R"({"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"namespace":"a",)"
         R"("name":"l")" +
         metadata + R"(},"spec":{}})";
}

TEST(HttpKube, SaysEveryVerbAsTheApiWantsIt) {
  ScriptedApiServer server(
      [](const Request&, Connection& to) { to.Answer(200, BarePoolJson("p", "{}")); });
  const auto api = ScriptedClient(server);
  const ObjectName name{"default", "p"};
  const std::string base = "/apis/kvfabric.io/v1alpha1/namespaces/default/kvcachepools";
  const std::string json = BarePoolJson("p", "{}");
  EXPECT_TRUE(api->Get(Kind::kPool, name).ok());
  EXPECT_TRUE(api->Create(Kind::kPool, json).ok());
  EXPECT_TRUE(api->Update(Kind::kPool, json).ok());
  EXPECT_TRUE(api->UpdateStatus(Kind::kPool, json).ok());
  EXPECT_TRUE(api->Apply(Kind::kPool, json, {"kvfabric-operator", true, false}).ok());
  EXPECT_TRUE(api->Apply(Kind::kPool, json, {"kvfabric operator/status", false, true}).ok());
  EXPECT_TRUE(api->Patch(Kind::kPool, name, PatchType::kMerge, "{}", false).ok());
  EXPECT_TRUE(api->Patch(Kind::kPool, name, PatchType::kJson, "[]", true).ok());
  EXPECT_TRUE(api->Delete(Kind::kPool, name, {"uid-1", 7}).ok());
  EXPECT_TRUE(api->Ping().ok());
  const std::vector<Request> seen = server.requests();
  const std::vector<std::string> wanted = {
      "GET " + base + "/p",
      "POST " + base,
      "PUT " + base + "/p",
      "PUT " + base + "/p/status",
      "PATCH " + base + "/p?fieldManager=kvfabric-operator&force=true",
      "PATCH " + base + "/p/status?fieldManager=kvfabric%20operator%2Fstatus&force=false",
      "PATCH " + base + "/p",
      "PATCH " + base + "/p/status",
      "DELETE " + base + "/p",
      "GET /version"};
  ASSERT_EQ(seen.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(seen[i].method + " " + seen[i].target, wanted[i]);
  }
  EXPECT_EQ(seen[4].headers.at("content-type"), "application/apply-patch+yaml");
  EXPECT_EQ(seen[6].headers.at("content-type"), "application/merge-patch+json");
  EXPECT_EQ(seen[7].headers.at("content-type"), "application/json-patch+json");
  EXPECT_EQ(seen[1].headers.at("content-type"), "application/json");
  EXPECT_EQ(seen[0].headers.at("user-agent"), "kvfabric-operator/test (linux/amd64) abc");
  EXPECT_NE(seen[8].body.find(R"("preconditions":{"resourceVersion":"7","uid":"uid-1"})"),
            std::string::npos)
      << seen[8].body;
}

TEST(HttpKube, AnswersKeepWhatTheApiSays) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (request.method == "PATCH") {
      return to.Answer(409, StatusJson(409, "Conflict",
                                       R"(,"details":{"causes":[{"reason":)"
                                       R"("FieldManagerConflict","field":".a","message":"b"}]})"));
    }
    if (request.method == "PUT") return to.Answer(409, StatusJson(409, "Conflict"));
    if (request.method == "POST") return to.Answer(409, StatusJson(409, "AlreadyExists"));
    to.Answer(404, StatusJson(404, "NotFound"));
  });
  const auto api = ScriptedClient(server);
  EXPECT_TRUE(IsFieldConflict(api->Apply(Kind::kPool, BarePoolJson("p", "{}"), {}).status()));
  const Status stale = api->Update(Kind::kPool, BarePoolJson("p", "{}")).status();
  EXPECT_TRUE(IsConflict(stale) && !IsFieldConflict(stale));
  EXPECT_TRUE(IsAlreadyExists(api->Create(Kind::kPool, BarePoolJson("p", "{}")).status()));
  EXPECT_TRUE(IsNotFound(api->Delete(Kind::kPool, {"default", "p"}, {})));
}

TEST(HttpKube, WaitsAsLongAsItIsAskedTo) {
  std::atomic<int> refusals{0};
  ScriptedApiServer server([&](const Request& request, Connection& to) {
    const int code = request.number % 2 == 0 ? 503 : 429;
    if (request.number < 6) {
      ++refusals;
      return to.Answer(code, "busy", "Retry-After: 3\r\n");
    }
    to.Answer(201, BarePoolJson("p", "{}"));
  });
  MetricsRegistry metrics;
  HttpKube::Options options = ScriptedOptions(server);
  options.metrics = &metrics;
  const auto api = ScriptedClient(options);
  const auto began = std::chrono::steady_clock::now();
  // A refused POST was not done: that it is sent again is safe.
  EXPECT_TRUE(api->Create(Kind::kPool, BarePoolJson("p", "{}")).ok());
  EXPECT_EQ(refusals, 5);
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(15));
  const std::string text = metrics.Render();
  EXPECT_NE(text.find(R"(kvfabric_operator_api_requests_total{code="429",verb="create"} 3)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(R"(kvfabric_operator_api_requests_total{code="201",verb="create"} 1)"),
            std::string::npos);
}

TEST(HttpKube, GivesUpAfterTenTriesOrWhenTimeIsUp) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    to.Answer(429, StatusJson(429, "TooManyRequests"),
              request.Has("long") ? "Retry-After: 3600\r\n" : "Retry-After: 1\r\n");
  });
  HttpKube::Options options = ScriptedOptions(server);
  const auto api = ScriptedClient(options);
  const Status refused = api->Get(Kind::kNode, {"", "n"}).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_EQ(RetryAfterOf(refused), seconds(1));
  EXPECT_EQ(server.requests().size(), 10U);
  options.retry_after_unit = seconds(1);
  const auto patient = ScriptedClient(options);
  EXPECT_EQ(RetryAfterOf(patient->Get(Kind::kNode, {"", "long"}).status()), seconds(3600));
  EXPECT_EQ(server.requests().size(), 11U) << "no wait that cannot end in time";
}

TEST(HttpKube, OtherErrorsAreNotTriedAgain) {
  ScriptedApiServer server(
      [](const Request&, Connection& to) { to.Answer(500, StatusJson(500, "InternalError")); });
  const auto api = ScriptedClient(server);
  EXPECT_EQ(api->Get(Kind::kNode, {"", "n"}).status().code(), StatusCode::kInternal);
  EXPECT_EQ(server.requests().size(), 1U);
}

// The first of each is read and its connection reset: done or not, nobody knows.
TEST(HttpKube, TriesAgainOnlyWhatIsHarmlessTwice) {
  const std::string versioned = BarePoolJson("p", "{}", VersionField(3));
  const std::string bare = BarePoolJson("p", "{}");
  const ObjectName name{"default", "p"};
  struct Case {
    const char* what;
    std::size_t requests;
    std::function<Status(HttpKube&)> call;
  };
  const std::vector<Case> cases = {
      {"GET", 2, [&](HttpKube& api) { return api.Get(Kind::kPool, name).status(); }},
      {"PUT", 2, [&](HttpKube& api) { return api.Update(Kind::kPool, versioned).status(); }},
      {"status", 2,
       [&](HttpKube& api) { return api.UpdateStatus(Kind::kPool, versioned).status(); }},
      {"apply", 2, [&](HttpKube& api) { return api.Apply(Kind::kPool, bare, {"m"}).status(); }},
      {"guarded DELETE", 2,
       [&](HttpKube& api) {
         return api.Delete(Kind::kPool, name, {"u", 0});
       }},
      {"DELETE", 1, [&](HttpKube& api) { return api.Delete(Kind::kPool, name, {}); }},
      {"unguarded PUT", 1, [&](HttpKube& api) { return api.Update(Kind::kPool, bare).status(); }},
      {"POST", 1, [&](HttpKube& api) { return api.Create(Kind::kPool, bare).status(); }},
      {"PATCH", 1,
       [&](HttpKube& api) {
         return api.Patch(Kind::kPool, name, PatchType::kJson, "[]", false).status();
       }},
  };
  for (const Case& one : cases) {
    ScriptedApiServer server([&](const Request& request, Connection& to) {
      if (request.number == 1) return to.Reset();
      to.Answer(200, bare);
    });
    const auto api = ScriptedClient(server);
    const Status status = one.call(*api);
    EXPECT_EQ(status.ok(), one.requests == 2) << one.what << ": " << status.ToString();
    EXPECT_EQ(server.requests().size(), one.requests) << one.what;
    if (!status.ok()) {
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << one.what;
    }
  }
}

TEST(HttpKube, NobodyThereIsSaidAtOnce) {
  HttpKube::Options options;
  {
    ScriptedApiServer server([](const Request&, Connection&) {});
    options = ScriptedOptions(server);
  }
  const auto api = ScriptedClient(options);
  EXPECT_EQ(api->Ping().code(), StatusCode::kUnavailable);
  EXPECT_EQ(api->List(Kind::kNode, "").status().code(), StatusCode::kUnavailable);
}

// Tokens of 600 s for 30 minutes; the server knows only the newest one.
TEST(HttpKube, TokensThatExpireAreNeverNoticed) {
  const TempDir dir;
  FakeClock clock;
  std::atomic<int> newest{0};
  ScriptedApiServer server([&](const Request& request, Connection& to) {
    const bool fresh = request.headers.at("authorization") == "Bearer t" + std::to_string(newest);
    if (fresh) return to.Answer(200, NodeJson("n"));
    to.Answer(401, StatusJson(401, "Unauthorized"));
  });
  const auto write = [&](const std::string& text) {
    std::ofstream(dir.path() / "token", std::ios::trunc) << text;
  };
  write("t0\n");
  MetricsRegistry metrics;
  HttpKube::Options options = ScriptedOptions(server);
  options.target.credentials.token_file = dir.path() / "token";
  options.clock = &clock;
  options.metrics = &metrics;
  const auto api = ScriptedClient(options);
  for (int second = 0; second < 1800; second += 10) {
    if (second % 600 == 480) write("t" + std::to_string(++newest) + "\n");
    clock.Advance(seconds(10));
    ASSERT_TRUE(api->Get(Kind::kNode, {"", "n"}).ok()) << second;
  }
  EXPECT_EQ(newest, 3);
  EXPECT_NE(metrics.Render().find("kvfabric_operator_api_token_age_seconds 110"), std::string::npos)
      << metrics.Render();
  // A token that is wrong for good is an error after one more try.
  newest = 99;
  const std::size_t before = server.requests().size();
  EXPECT_EQ(api->Get(Kind::kNode, {"", "n"}).status().code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(server.requests().size(), before + 2);
}

TEST(HttpKube, WrongContentOrObjectIsNoAnswer) {
  std::string body = NodeJson("n");
  std::string headers = "Content-Type: text/html\r\n";
  ScriptedApiServer server([&](const Request&, Connection& to) { to.Answer(200, body, headers); });
  const auto api = ScriptedClient(server);
  const Status html = api->Get(Kind::kNode, {"", "n"}).status();
  EXPECT_EQ(html.code(), StatusCode::kUnavailable);
  EXPECT_NE(html.message().find("text/html"), std::string::npos);
  headers = "";
  for (const std::string& text : {std::string("{}"), body.substr(0, 20), std::string("<html>"),
                                  BarePoolJson("p", "{}"), std::string()}) {
    body = text;
    EXPECT_EQ(api->Get(Kind::kNode, {"", "n"}).status().code(), StatusCode::kUnavailable) << text;
  }
}

TEST(HttpKube, TooLongAnswersAreRefused) {
  ScriptedApiServer server(
      [](const Request&, Connection& to) { to.Answer(200, std::string(5000, ' ')); });
  HttpKube::Options options = ScriptedOptions(server);
  options.max_body_bytes = 4000;
  EXPECT_EQ(ScriptedClient(options)->Get(Kind::kNode, {"", "n"}).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(HttpKube, NamesNeverReachBeyondTheirPlaceInAPath) {
  ScriptedApiServer server([](const Request&, Connection& to) { to.Answer(200, "{}"); });
  const auto api = ScriptedClient(server);
  for (const ObjectName& name : {ObjectName{"", ""}, ObjectName{"", "a/b"}, ObjectName{"", ".."},
                                 ObjectName{"ns", "n"}, ObjectName{"", "n?x=y"}}) {
    EXPECT_TRUE(IsInvalid(api->Get(Kind::kNode, name).status())) << name.ToString();
    EXPECT_TRUE(IsInvalid(api->Delete(Kind::kNode, name, {}))) << name.ToString();
  }
  EXPECT_TRUE(IsInvalid(api->List(Kind::kPod, "a/b").status()));
  EXPECT_TRUE(server.requests().empty());
}

TEST(HttpKube, StopEndsEveryWait) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (request.Has("/pods")) return to.Stall();
    if (request.Has("/busy")) return to.Answer(503, "busy", "Retry-After: 3600\r\n");
    to.Stall();
  });
  HttpKube::Options options = ScriptedOptions(server);
  options.call_timeout = std::chrono::hours(2);
  options.list_timeout = std::chrono::hours(2);
  options.retry_after_unit = seconds(1);
  options.max_calls = 2;
  std::vector<std::future<Status>> calls;  // whose end the client's destructor brings
  auto api = ScriptedClient(options);
  const auto call = [&](std::function<Status()> what) {
    calls.push_back(std::async(std::launch::async, std::move(what)));
  };
  call([&] { return api->Get(Kind::kNode, {"", "busy"}).status(); });
  call([&] { return api->Get(Kind::kNode, {"", "silent"}).status(); });
  call([&] { return api->List(Kind::kPod, "").status(); });
  ASSERT_TRUE(server.WaitForRequests(3));
  call([&] { return api->Get(Kind::kNode, {"", "no-place"}).status(); });
  call([&] { return api->Get(Kind::kLease, {"a", "l"}).status(); });
  ASSERT_TRUE(server.WaitForRequests(4)) << "a Lease waits for no place";
  api->Stop();
  for (auto& one : calls) EXPECT_FALSE(one.get().ok());
  EXPECT_EQ(api->Ping().code(), StatusCode::kCancelled);
  api.reset();
}

TEST(HttpKube, DestructorEndsCallsAndStreamsMayOutliveIt) {
  ScriptedApiServer server([](const Request&, Connection& to) {
    to.StartChunks();
    to.Stall();
  });
  auto api = ScriptedClient(server);
  Bell bell;
  const auto watch = *api->Watch(Kind::kNode, {}, {.resource_version = 5}, bell.ringer());
  auto call = std::async(std::launch::async, [&] {
    return api->Get(Kind::kNode, {"", "n"}).status();
  });
  ASSERT_TRUE(server.WaitForRequests(2));
  std::unique_ptr<HttpKube>(std::move(api)).reset();
  EXPECT_FALSE(call.get().ok());
  ASSERT_TRUE(bell.Wait());
  EXPECT_EQ(watch->Poll().status().code(), StatusCode::kUnavailable);
}

// 32 calls hang in an API under a storm of 429, yet the Lease is renewed on its own connection.
TEST(HttpKube, LeasesDoNotWaitBehindBulkTraffic) {
  ScriptedApiServer server([](const Request& request, Connection& to) {
    if (request.Has("/leases/")) return to.Answer(200, LeaseJson(VersionField(4)));
    if (request.Has("/slow")) return to.Stall();
    to.Answer(429, "storm", "Retry-After: 3600\r\n");
  });
  HttpKube::Options options = ScriptedOptions(server);
  options.retry_after_unit = seconds(1);
  options.call_timeout = std::chrono::hours(2);
  std::vector<std::future<Status>> calls;  // whose end the client's destructor brings
  const auto api = ScriptedClient(options);
  for (std::size_t i = 0; i < options.max_calls + 8; ++i) {
    calls.push_back(std::async(std::launch::async, [&, i] {
      return api->Get(Kind::kNode, {"", i % 2 == 0 ? "slow" : "storm"}).status();
    }));
  }
  ASSERT_TRUE(server.WaitForRequests(options.max_calls)) << "every place is taken";
  std::vector<std::uint64_t> connections;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(api->Get(Kind::kLease, {"a", "l"}).ok());
    ASSERT_TRUE(api->Update(Kind::kLease, LeaseJson(VersionField(3))).ok());
  }
  for (const Request& request : server.requests()) {
    if (request.Has("/leases/")) connections.push_back(request.connection);
  }
  ASSERT_EQ(connections.size(), 40U);
  for (const std::uint64_t connection : connections) EXPECT_EQ(connection, connections.front());
  for (const Request& request : server.requests()) {
    EXPECT_TRUE(request.Has("/leases/") || request.connection != connections.front());
  }
  api->Stop();
}

TEST(HttpKube, LeaseCallsHaveTheirOwnShortDeadline) {
  ScriptedApiServer server([](const Request&, Connection& to) { to.Stall(); });
  HttpKube::Options options = ScriptedOptions(server);
  options.call_timeout = std::chrono::hours(1);
  options.lease_timeout = milliseconds(50);
  EXPECT_EQ(ScriptedClient(options)->Get(Kind::kLease, {"a", "l"}).status().code(),
            StatusCode::kDeadlineExceeded);
}

TEST(HttpKube, BadTargetsAreRefusedBeforeAnythingIsSent) {
  HttpKube::Options options;
  options.target.server = "http://10.0.0.1";
  EXPECT_TRUE(IsInvalid(HttpKube::Create(options).status()));
  options.target.server = "https://127.0.0.1:1";
  options.target.credentials.ca_pem = "x";
  EXPECT_TRUE(IsInvalid(HttpKube::Create(options).status()));
}

}  // namespace
}  // namespace kvfabric::kube
