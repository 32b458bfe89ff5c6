// EmbeddedKubeApi keeps the rules of kube_conformance.h.

#include "operator/kube/embedded_kube_api.h"
#include "operator/specs/crd_schema.h"
#include "tests/fakes/temp_dir.h"
#include "tests/operator/kube_conformance.h"

namespace kvfabric::kube {
namespace {

constexpr int kEventsKept = 64;

class Embedded final : public KubeUnderTest {
 public:
  Embedded() {
    EmbeddedKubeApi::Options options;
    options.directory = dir_.path() / "api";
    options.admission = &admission_;
    options.ring.events = kEventsKept;
    options.sync = false;
    api_ = std::move(EmbeddedKubeApi::Open(std::move(options))).value();
  }
  KubeApi& api() override { return *api_; }
  int events_kept() const override { return kEventsKept; }

 private:
  TempDir dir_;
  CrdAdmission admission_;
  std::unique_ptr<EmbeddedKubeApi> api_;
};

INSTANTIATE_TEST_SUITE_P(Embedded, KubeConformance,
                         ::testing::Values(KubeTarget{"Embedded",
                                                      [] { return std::make_unique<Embedded>(); }}),
                         [](const auto& target) { return target.param.name; });

}  // namespace
}  // namespace kvfabric::kube
