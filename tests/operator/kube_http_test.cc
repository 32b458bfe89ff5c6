#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "operator/kube/api_error.h"
#include "operator/kube/embedded_api_server.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/kube/http_kube.h"
#include "tests/fakes/temp_dir.h"
#include "tests/operator/local_client.h"
#include "tests/operator/test_objects.h"

namespace kvfabric::kube {
namespace {

class KubeHttpTest : public ::testing::Test {
 protected:
  KubeHttpTest() {
    EmbeddedKubeApi::Options options;
    options.directory = dir_.path() / "api";
    api_ = std::move(EmbeddedKubeApi::Open(std::move(options))).value();
    EmbeddedApiServer::Options server;
    server.tokens = {{"admin", "admin-token"}, {"team-a", "team-token"}};
    server_ = std::move(EmbeddedApiServer::Start(*api_, server)).value();
    client_ = Client(server_->Kubeconfig());
  }
  std::unique_ptr<HttpKube> Client(const std::string& kubeconfig) {
    const auto path = dir_.path() / "kubeconfig";
    std::ofstream(path) << kubeconfig;
    return LocalClient(path);
  }
  std::unique_ptr<HttpKube> ClientWithToken(const std::string& token) {
    std::string text = server_->Kubeconfig();
    text.replace(text.find("admin-token"), 11, token);
    return Client(text);
  }

  TempDir dir_;
  std::unique_ptr<EmbeddedKubeApi> api_;
  std::unique_ptr<EmbeddedApiServer> server_;
  std::unique_ptr<HttpKube> client_;
};

TEST_F(KubeHttpTest, DoesWhatTheEmbeddedApiDoes) {
  ASSERT_TRUE(client_->Ping().ok());
  const auto made = client_->Create(Kind::kPool, BarePoolJson("p", R"({"a":1})"));
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ((*made)->json, (*api_->Get(Kind::kPool, {"default", "p"}))->json);
  EXPECT_TRUE(
      IsAlreadyExists(client_->Create(Kind::kPool, BarePoolJson("p", R"({"a":1})")).status()));
  const std::string version = VersionField((*made)->meta.resource_version);
  const auto updated = client_->Update(Kind::kPool, BarePoolJson("p", R"({"a":2})", version));
  ASSERT_TRUE(updated.ok()) << updated.status().ToString();
  EXPECT_TRUE(
      IsConflict(client_->Update(Kind::kPool, BarePoolJson("p", R"({"a":3})", version)).status()));
  const auto status = client_->UpdateStatus(
      Kind::kPool,
      BarePoolJson("p", "{}", VersionField((*updated)->meta.resource_version), R"({"epoch":3})"));
  ASSERT_TRUE(status.ok()) << status.status().ToString();
  EXPECT_EQ((*status)->meta.generation, 2);
  const auto list = client_->List(Kind::kPool, "");
  ASSERT_TRUE(list.ok()) << list.status().ToString();
  ASSERT_EQ(list->items.size(), 1U);
  EXPECT_EQ(list->items[0]->json, (*status)->json);
  EXPECT_EQ(list->resource_version, (*status)->meta.resource_version);
  EXPECT_TRUE(client_->List(Kind::kPool, "elsewhere")->items.empty());
  EXPECT_TRUE(IsConflict(client_->Delete(Kind::kPool, {"default", "p"}, {"other", 0})));
  EXPECT_TRUE(client_->Delete(Kind::kPool, {"default", "p"}, {}).ok());
  EXPECT_TRUE(IsNotFound(client_->Get(Kind::kPool, {"default", "p"}).status()));
}

TEST_F(KubeHttpTest, TokenDecides) {
  EXPECT_EQ(ClientWithToken("wrong")->Ping().code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(ClientWithToken("")->Ping().code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(ClientWithToken("admin-toke")->Ping().code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(ClientWithToken("team-token")->List(Kind::kPool, "").status().code(),
            StatusCode::kPermissionDenied);
}

TEST_F(KubeHttpTest, FaultsArriveWithTheirCauses) {
  const auto refused = client_->Update(Kind::kPool, BarePoolJson("p", "{}"));
  EXPECT_TRUE(IsNotFound(refused.status()));
  ASSERT_TRUE(api_->Create(Kind::kPool, BarePoolJson("p", "{}")).ok());
  const auto invalid = client_->Update(Kind::kPool, BarePoolJson("p", "{}"));
  ASSERT_TRUE(IsInvalid(invalid.status()));
  ASSERT_EQ(CausesOf(invalid.status()).size(), 1U);
  EXPECT_EQ(CausesOf(invalid.status())[0].field, "metadata.resourceVersion");
}

TEST_F(KubeHttpTest, PortInUseIsRefused) {
  EmbeddedApiServer::Options options;
  options.tokens = {{"admin", "x"}};
  options.port = server_->port();
  const auto second = EmbeddedApiServer::Start(*api_, options);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(std::to_string(server_->port())), std::string::npos);
}

TEST_F(KubeHttpTest, StrangerToTheCertificateIsNotTalkedTo) {
  HttpKube::Options options;
  options.target.server = "https://127.0.0.1:" + std::to_string(server_->port());
  options.target.credentials.token = "admin-token";
  auto client = std::move(HttpKube::Create(options)).value();
  EXPECT_EQ(client->Ping().code(), StatusCode::kUnavailable);
}

TEST_F(KubeHttpTest, ServerThatIsGoneIsSaidSo) {
  server_.reset();
  const Status status = client_->Ping();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvfabric::kube
