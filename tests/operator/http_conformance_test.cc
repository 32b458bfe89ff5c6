// HttpKube keeps the rules of kube_conformance.h: against the embedded API's server, and against
// the API server that $KVF_TEST_KUBECONFIG names, if it does (our CRDs must be installed there).

#include <cstdlib>
#include <fstream>
#include <random>
#include <utility>
#include <vector>

#include "operator/kube/embedded_api_server.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/specs/crd_schema.h"
#include "tests/fakes/temp_dir.h"
#include "tests/operator/kube_conformance.h"
#include "tests/operator/local_client.h"

namespace kvfabric::kube {
namespace {

constexpr int kEventsKept = 64;

class Served final : public KubeUnderTest {
 public:
  Served() {
    EmbeddedKubeApi::Options options;
    options.directory = dir_.path() / "api";
    options.admission = &admission_;
    options.ring.events = kEventsKept;
    options.sync = false;
    api_ = std::move(EmbeddedKubeApi::Open(std::move(options))).value();
    EmbeddedApiServer::Options server;
    server.tokens = {{"admin", "secret"}};
    server.bookmark_every = std::chrono::milliseconds(50);
    server_ = std::move(EmbeddedApiServer::Start(*api_, server)).value();
    const auto kubeconfig = dir_.path() / "kubeconfig";
    std::ofstream(kubeconfig) << server_->Kubeconfig();
    HttpKube::Options client;
    client.target = std::move(LoadKubeconfig({kubeconfig})).value();
    client.retry_after_unit = std::chrono::milliseconds(10);
    client_ = std::move(HttpKube::Create(std::move(client))).value();
  }
  KubeApi& api() override { return *client_; }
  int events_kept() const override { return kEventsKept; }

 private:
  TempDir dir_;
  CrdAdmission admission_;
  std::unique_ptr<EmbeddedKubeApi> api_;
  std::unique_ptr<EmbeddedApiServer> server_;
  std::unique_ptr<HttpKube> client_;
};

class Cluster final : public KubeUnderTest {
 public:
  explicit Cluster(const char* kubeconfig) : client_(LocalClient(kubeconfig)) {
    const std::string id = std::to_string(std::random_device{}());
    namespaces_ = {"kvf-conformance-a-" + id, "kvf-conformance-b-" + id};
    for (const std::string& name : namespaces_) {
      const auto made = client_->Create(
          Kind::kNamespace,
          R"({"apiVersion":"v1","kind":"Namespace","metadata":{"name":")" + name + R"("}})");
      EXPECT_TRUE(made.ok()) << made.status().ToString();
    }
  }
  ~Cluster() override {
    for (const std::string& name : namespaces_) {
      EXPECT_TRUE(client_->Delete(Kind::kNamespace, {"", name}, {}).ok());
    }
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  KubeApi& api() override { return *client_; }
  std::string ns() const override { return namespaces_[0]; }
  std::string other_ns() const override { return namespaces_[1]; }
  int events_kept() const override { return 0; }
  std::chrono::milliseconds bookmark_within() const override { return std::chrono::minutes(3); }

 private:
  std::unique_ptr<HttpKube> client_;
  std::vector<std::string> namespaces_;
};

std::vector<KubeTarget> Targets() {
  std::vector<KubeTarget> out = {{"Embedded", [] { return std::make_unique<Served>(); }}};
  if (const char* kubeconfig = std::getenv("KVF_TEST_KUBECONFIG")) {
    out.push_back({"Cluster", [kubeconfig] { return std::make_unique<Cluster>(kubeconfig); }});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Http, KubeConformance, ::testing::ValuesIn(Targets()),
                         [](const auto& target) { return target.param.name; });

}  // namespace
}  // namespace kvfabric::kube
