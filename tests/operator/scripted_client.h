#pragma once

// HttpKube against a ScriptedApiServer, with deadlines that a test can wait for.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/metrics.h"
#include "common/mutex.h"
#include "operator/kube/http_kube.h"
#include "tests/operator/scripted_api_server.h"

namespace kvfabric::kube {

inline HttpKube::Options ScriptedOptions(const ScriptedApiServer& server) {
  HttpKube::Options options;
  options.target.server = server.url();
  options.user_agent = "kvfabric-operator/test (linux/amd64) abc";
  options.call_timeout = std::chrono::seconds(10);
  options.list_timeout = std::chrono::seconds(10);
  options.retry_after_unit = std::chrono::milliseconds(1);
  return options;
}

inline std::unique_ptr<HttpKube> ScriptedClient(HttpKube::Options options) {
  auto client = HttpKube::Create(std::move(options));
  EXPECT_TRUE(client.ok()) << client.status().ToString();
  return std::move(client).value();
}
inline std::unique_ptr<HttpKube> ScriptedClient(const ScriptedApiServer& server) {
  return ScriptedClient(ScriptedOptions(server));
}

// What a stream calls when there is something to poll.
class Bell {
 public:
  std::function<void()> ringer() {
    return [this] { Ring(); };
  }
  void Ring() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ++rings_;
    changed_.NotifyAll();
  }
  // Until it rang since the last Wait; false after ten seconds.
  bool Wait() EXCLUDES(mu_) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    MutexLock lock(mu_);
    while (rings_ == 0) {
      if (!changed_.WaitUntil(mu_, deadline)) return false;
    }
    rings_ = 0;
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int rings_ GUARDED_BY(mu_) = 0;
};

// A node as list items of built-in kinds come: without kind and apiVersion.
inline std::string Item(int number, int version = 5) {
  return R"({"metadata":{"name":"n)" + std::to_string(number) + R"(","resourceVersion":")" +
         std::to_string(version) + R"("}})";
}
inline std::string NodeList(const std::string& items, const std::string& version = "7",
                            const std::string& more = "") {
  return R"({"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":")" + version +
         R"(")" + more + R"(},"items":[)" + items + "]}";
}
inline std::string StatusJson(int code, const std::string& reason, const std::string& extra = "") {
  return R"({"kind":"Status","apiVersion":"v1","status":"Failure","reason":")" + reason +
         R"(","message":"said so","code":)" + std::to_string(code) + extra + "}";
}

}  // namespace kvfabric::kube
