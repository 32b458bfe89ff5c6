// The embedded API's server with real connections: what ApiHandler and WatchFeed cannot show.

#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "operator/kube/embedded_api_server.h"
#include "operator/kube/embedded_kube_api.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"
#include "tests/operator/test_objects.h"

namespace kvfabric::kube {
namespace {

constexpr const char* kWatch = "/api/v1/configmaps?watch=1";

// One watch by a client of its own.
class Watcher {
 public:
  Watcher(std::uint16_t port, const std::string& target) : client_("127.0.0.1", port) {
    client_.enable_server_certificate_verification(false);
    client_.set_bearer_token_auth("secret");
    client_.set_read_timeout(60);
    thread_ = std::thread([this, target] {
      const auto result = client_.Get(target.c_str(), [this](const char* data, std::size_t size) {
        const std::lock_guard<std::mutex> lock(mu_);
        text_.append(data, size);
        changed_.notify_all();
        return !leaving_;
      });
      const std::lock_guard<std::mutex> lock(mu_);
      status_ = result ? result->status : -1;
      changed_.notify_all();
    });
  }
  ~Watcher() {
    Leave();
    thread_.join();
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  void Leave() {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      leaving_ = true;
    }
    client_.stop();
  }
  bool Sees(const std::string& text) {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, Limit(), [&] { return text_.find(text) != std::string::npos; });
  }
  // The HTTP status, once the answer is complete; 0 when it is not in time.
  int WaitEnd() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait_for(lock, Limit(), [&] { return status_ != 0; });
    return status_;
  }

 private:
  static std::chrono::seconds Limit() {
    return std::chrono::seconds(static_cast<int>(20 * TimeScale()));
  }

  httplib::SSLClient client_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::string text_;
  int status_ = 0;
  bool leaving_ = false;
  std::thread thread_;
};

class ApiServerTest : public ::testing::Test {
 protected:
  ApiServerTest() {
    EmbeddedKubeApi::Options options;
    options.directory = dir_.path() / "api";
    options.sync = false;
    api_ = std::move(EmbeddedKubeApi::Open(std::move(options))).value();
  }
  void Start(std::size_t max_watches = 64,
             std::chrono::milliseconds client_timeout = std::chrono::seconds(5)) {
    EmbeddedApiServer::Options options;
    options.client_timeout = client_timeout;
    options.tokens = {{"admin", "secret"}};
    options.table = [](Kind, const ObjectList&) {
      return "\"" + std::string(std::size_t{1} << 20U, 'x') + "\"";
    };
    options.max_watches = max_watches;
    server_ = std::move(EmbeddedApiServer::Start(*api_, options)).value();
  }
  // Whether a watch is let in before long.
  bool RoomComes() {
    int status = 429;
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(static_cast<int>(20 * TimeScale()));
    while (status == 429 && std::chrono::steady_clock::now() < deadline) {
      status = Get(std::string(kWatch) + "&resourceVersion=" + Version() + "&timeoutSeconds=1");
    }
    return status == 200;
  }
  std::string Version() {
    return std::to_string(api_->List(Kind::kConfigMap, "")->resource_version);
  }
  int Get(const std::string& target, std::string* retry_after = nullptr) {
    httplib::SSLClient client("127.0.0.1", server_->port());
    client.enable_server_certificate_verification(false);
    client.set_bearer_token_auth("secret");
    client.set_read_timeout(30);
    const auto result = client.Get(target.c_str());
    if (result && retry_after != nullptr) *retry_after = result->get_header_value("Retry-After");
    return result ? result->status : -1;
  }
  void Make(const std::string& name) {
    ASSERT_TRUE(api_->Create(Kind::kConfigMap, ConfigMapJson(name, "1")).ok());
  }

  TempDir dir_;
  std::unique_ptr<EmbeddedKubeApi> api_;
  std::unique_ptr<EmbeddedApiServer> server_;
};

TEST_F(ApiServerTest, EventsArriveWhileTheWatchGoesOn) {
  Start();
  Make("first");
  Watcher watcher(server_->port(), kWatch);
  ASSERT_TRUE(watcher.Sees(R"("name":"first")"));
  Make("second");
  EXPECT_TRUE(watcher.Sees(R"("name":"second")"));
}

TEST_F(ApiServerTest, WatchEndsInGoodOrderAtItsTimeout) {
  Start();
  Watcher watcher(server_->port(), std::string(kWatch) + "&timeoutSeconds=1");
  EXPECT_EQ(watcher.WaitEnd(), 200);
}

TEST_F(ApiServerTest, OldVersionIsGoneBeforeTheStreamBegins) {
  Make("a");
  Make("b");
  api_.reset();
  EmbeddedKubeApi::Options options;
  options.directory = dir_.path() / "api";
  api_ = std::move(EmbeddedKubeApi::Open(std::move(options))).value();
  Start();
  EXPECT_EQ(Get(std::string(kWatch) + "&resourceVersion=1"), 410);
}

TEST_F(ApiServerTest, ManyWatchesLeaveRoomForRequests) {
  Start();
  Make("first");
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < 20; ++i) {
    watchers.push_back(std::make_unique<Watcher>(server_->port(), kWatch));
    ASSERT_TRUE(watchers.back()->Sees("first")) << i;
  }
  EXPECT_EQ(Get("/api/v1/configmaps"), 200);
  Make("second");
  for (const auto& watcher : watchers) EXPECT_TRUE(watcher->Sees("second"));
}

TEST_F(ApiServerTest, OneWatchTooManyIsToldToComeBack) {
  Start(2);
  Make("first");
  Watcher one(server_->port(), kWatch);
  auto two = std::make_unique<Watcher>(server_->port(), kWatch);
  ASSERT_TRUE(one.Sees("first") && two->Sees("first"));
  std::string retry_after;
  EXPECT_EQ(Get(kWatch, &retry_after), 429);
  EXPECT_EQ(retry_after, "1");
  // One that left makes room, though nothing was sent that would have shown it is gone.
  two.reset();
  EXPECT_TRUE(RoomComes());
}

TEST_F(ApiServerTest, ClientThatDoesNotReadIsCut) {
  Start(1, std::chrono::milliseconds(300));
  for (int i = 0; i < 12; ++i) Make("m" + std::to_string(i));
  // Stays in its first callback: more is waiting for it than sockets hold.
  std::promise<void> reading;
  std::promise<void> over;
  std::thread client([&] {
    httplib::SSLClient silent("127.0.0.1", server_->port());
    silent.enable_server_certificate_verification(false);
    silent.set_bearer_token_auth("secret");
    silent.set_socket_options([](int fd) {
      const int bytes = 16 << 10;
      ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    });
    bool first = true;
    const httplib::Headers big = {{"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"}};
    silent.Get(kWatch, big, [&](const char*, std::size_t) {
      if (std::exchange(first, false)) {
        reading.set_value();
        over.get_future().wait();
      }
      return false;
    });
  });
  reading.get_future().wait();
  EXPECT_EQ(Get(kWatch), 429);
  EXPECT_TRUE(RoomComes());
  over.set_value();
  client.join();
}

TEST_F(ApiServerTest, StoppingEndsWatches) {
  Start();
  Make("first");
  Watcher watcher(server_->port(), kWatch);
  ASSERT_TRUE(watcher.Sees("first"));
  server_.reset();
  EXPECT_EQ(watcher.WaitEnd(), 200);
}

}  // namespace
}  // namespace kvfabric::kube
