#include "common/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "common/mutex.h"

namespace kvfabric {

namespace {

class PrometheusCounter final : public Counter {
 public:
  explicit PrometheusCounter(prometheus::Counter& counter) : counter_(counter) {}
  void Add(double amount) override { counter_.Increment(amount); }
  double Value() const override { return counter_.Value(); }

 private:
  prometheus::Counter& counter_;
};

class PrometheusGauge final : public Gauge {
 public:
  explicit PrometheusGauge(prometheus::Gauge& gauge) : gauge_(gauge) {}
  void Set(double value) override { gauge_.Set(value); }
  void Add(double amount) override { gauge_.Increment(amount); }
  double Value() const override { return gauge_.Value(); }

 private:
  prometheus::Gauge& gauge_;
};

class PrometheusHistogram final : public Histogram {
 public:
  explicit PrometheusHistogram(prometheus::Histogram& histogram) : histogram_(histogram) {}
  void Observe(double value) override { histogram_.Observe(value); }

 private:
  prometheus::Histogram& histogram_;
};

using Key = std::pair<std::string, MetricLabels>;

}  // namespace

struct MetricsRegistry::State {
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
  mutable Mutex mu;
  std::map<Key, std::unique_ptr<Counter>> counters GUARDED_BY(mu);
  std::map<Key, std::unique_ptr<Gauge>> gauges GUARDED_BY(mu);
  std::map<Key, std::unique_ptr<Histogram>> histograms GUARDED_BY(mu);
};

MetricsRegistry::MetricsRegistry() : state_(std::make_unique<State>()) {}
MetricsRegistry::~MetricsRegistry() = default;

Counter& MetricsRegistry::GetCounter(const std::string& name, const std::string& help,
                                     MetricLabels labels) {
  MutexLock lock(state_->mu);
  auto& slot = state_->counters[Key{name, labels}];
  if (!slot) {
    auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(state_->registry);
    slot = std::make_unique<PrometheusCounter>(family.Add(labels));
  }
  return *slot;
}

Gauge& MetricsRegistry::GetGauge(const std::string& name, const std::string& help,
                                 MetricLabels labels) {
  MutexLock lock(state_->mu);
  auto& slot = state_->gauges[Key{name, labels}];
  if (!slot) {
    auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(state_->registry);
    slot = std::make_unique<PrometheusGauge>(family.Add(labels));
  }
  return *slot;
}

Histogram& MetricsRegistry::GetHistogram(const std::string& name, const std::string& help,
                                         const std::vector<double>& bounds, MetricLabels labels) {
  MutexLock lock(state_->mu);
  auto& slot = state_->histograms[Key{name, labels}];
  if (!slot) {
    auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(state_->registry);
    slot = std::make_unique<PrometheusHistogram>(
        family.Add(labels, prometheus::Histogram::BucketBoundaries(bounds)));
  }
  return *slot;
}

std::string MetricsRegistry::Render() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

const std::vector<double>& MetricsRegistry::LatencyBounds() {
  static const std::vector<double> bounds = {5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2,
                                             5e-2, 0.1,  0.2,  0.5,  1.0,  2.0,  5.0,  10.0};
  return bounds;
}

}  // namespace kvfabric
