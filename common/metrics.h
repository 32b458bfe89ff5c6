#pragma once

// Metrics: one registry a process, handed down by reference; text in Prometheus' format.
// Counter, Gauge and Histogram are borrowed handles that live as long as the registry; any
// thread may use them. Names are `kvfabric_<module>_<what>_<unit>`; labels are bounded sets.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvfabric {

class Counter {
 public:
  virtual ~Counter() = default;
  virtual void Add(double amount = 1.0) = 0;
  virtual double Value() const = 0;
};

class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void Set(double value) = 0;
  virtual void Add(double amount) = 0;
  virtual double Value() const = 0;
};

class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void Observe(double value) = 0;
};

using MetricLabels = std::map<std::string, std::string>;

class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;  // handles point into it
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The same name and labels give the same handle.
  Counter& GetCounter(const std::string& name, const std::string& help, MetricLabels labels = {});
  Gauge& GetGauge(const std::string& name, const std::string& help, MetricLabels labels = {});
  Histogram& GetHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& bounds, MetricLabels labels = {});
  // text/plain; version=0.0.4
  std::string Render() const;

  // Seconds from 50 us to 10 s: latencies of the data path.
  static const std::vector<double>& LatencyBounds();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvfabric
