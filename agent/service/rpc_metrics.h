#pragma once

// What one kind of call of an edge costs and how it ends: a counter per outcome, a histogram of
// seconds. Handles are borrowed from the registry; any thread.

#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/status.h"

namespace kvfabric {

class RpcMetrics {
 public:
  RpcMetrics(MetricsRegistry& registry, const std::string& edge, const std::string& call)
      : ok_(Outcome(registry, edge, call, "ok")),
        refused_(Outcome(registry, edge, call, "refused")),
        failed_(Outcome(registry, edge, call, "failed")),
        seconds_(registry.GetHistogram(
            "kvfabric_agent_request_seconds", "Time from receipt to answer of a client's request",
            MetricsRegistry::LatencyBounds(), {{"edge", edge}, {"call", call}})) {}

  void Observe(const Status& status, Clock::Duration took) {
    seconds_.Observe(std::chrono::duration<double>(took).count());
    switch (status.code()) {
      case StatusCode::kOk:
        ok_.Add();
        return;
      case StatusCode::kInternal:
      case StatusCode::kUnknown:
      case StatusCode::kUnavailable:
      case StatusCode::kDeadlineExceeded:
      case StatusCode::kDataLoss:
        failed_.Add();
        return;
      default:
        refused_.Add();
        return;
    }
  }

 private:
  static Counter& Outcome(MetricsRegistry& registry, const std::string& edge,
                          const std::string& call, const std::string& outcome) {
    return registry.GetCounter("kvfabric_agent_requests_total", "Requests of clients by outcome",
                               {{"edge", edge}, {"call", call}, {"outcome", outcome}});
  }

  Counter& ok_;
  Counter& refused_;
  Counter& failed_;
  Histogram& seconds_;
};

}  // namespace kvfabric
