#include "operator/kube/api_metrics.h"

namespace kvfabric::kube {
namespace {

constexpr std::array<const char*, kApiVerbCount> kVerbs = {"get",    "list",  "watch", "create",
                                                           "update", "apply", "patch", "delete"};
constexpr std::array<const char*, kWatchEndCount> kEnds = {"ended", "gone", "refused", "silent",
                                                           "broken"};

// Seconds, up to the API server's own limit of a request.
const std::vector<double>& Bounds() {
  static const std::vector<double> bounds = {0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                             0.5,   1.0,   2.5,   5.0,  10.0,  30.0, 60.0};
  return bounds;
}

// A bounded set, whatever a server answers.
std::string LabelOf(int code) {
  if (code == 0) return "none";
  return code >= 100 && code < 600 ? std::to_string(code) : "other";
}

}  // namespace

const char* NameOf(ApiVerb verb) { return kVerbs.at(static_cast<std::size_t>(verb)); }

ApiMetrics::ApiMetrics(MetricsRegistry* registry) : registry_(registry) {
  if (registry == nullptr) return;
  for (std::size_t i = 0; i < kApiVerbCount; ++i) {
    seconds_.at(i) = &registry->GetHistogram("kvfabric_operator_api_request_seconds",
                                             "Time until the answer to an API request, by verb",
                                             Bounds(), {{"verb", kVerbs.at(i)}});
  }
  for (std::size_t i = 0; i < kWatchEndCount; ++i) {
    restarts_.at(i) =
        &registry->GetCounter("kvfabric_operator_watch_restarts_total",
                              "Watches that came to an end, by reason", {{"reason", kEnds.at(i)}});
  }
  unknown_events_ =
      &registry->GetCounter("kvfabric_operator_watch_unknown_events_total",
                            "Events of watches that were skipped because of their type");
  token_age_ = &registry->GetGauge("kvfabric_operator_api_token_age_seconds",
                                   "Since the bearer token changed, or was first read");
}

void ApiMetrics::Requested(ApiVerb verb, int code, std::chrono::steady_clock::duration took) {
  if (registry_ == nullptr) return;
  registry_
      ->GetCounter("kvfabric_operator_api_requests_total", "Requests to the API, by outcome",
                   {{"verb", NameOf(verb)}, {"code", LabelOf(code)}})
      .Add();
  seconds_.at(static_cast<std::size_t>(verb))->Observe(std::chrono::duration<double>(took).count());
}

void ApiMetrics::Restarted(WatchEnd reason) {
  if (registry_ != nullptr) restarts_.at(static_cast<std::size_t>(reason))->Add();
}

void ApiMetrics::UnknownEvent() {
  if (registry_ != nullptr) unknown_events_->Add();
}

void ApiMetrics::SetTokenAge(std::optional<std::chrono::seconds> age) {
  if (registry_ != nullptr && age.has_value()) {
    token_age_->Set(static_cast<double>(age->count()));
  }
}

}  // namespace kvfabric::kube
