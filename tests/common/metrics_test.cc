#include "common/metrics.h"

#include <gtest/gtest.h>

namespace kvfabric {
namespace {

TEST(MetricsRegistry, GivesOneHandlePerNameAndLabels) {
  MetricsRegistry registry;
  Counter& a = registry.GetCounter("kvfabric_test_hits_total", "hits", {{"place", "local"}});
  Counter& b = registry.GetCounter("kvfabric_test_hits_total", "hits", {{"place", "local"}});
  Counter& c = registry.GetCounter("kvfabric_test_hits_total", "hits", {{"place", "peer"}});
  a.Add();
  c.Add(2);
  EXPECT_EQ(&a, &b);
  EXPECT_EQ(b.Value(), 1);
  const std::string text = registry.Render();
  EXPECT_NE(text.find("kvfabric_test_hits_total{place=\"local\"} 1"), std::string::npos) << text;
  EXPECT_NE(text.find("kvfabric_test_hits_total{place=\"peer\"} 2"), std::string::npos) << text;
}

TEST(MetricsRegistry, RendersHistograms) {
  MetricsRegistry registry;
  registry.GetHistogram("kvfabric_test_seconds", "time", {0.1, 1.0}).Observe(0.5);
  const std::string text = registry.Render();
  EXPECT_NE(text.find("kvfabric_test_seconds_bucket{le=\"1\"} 1"), std::string::npos) << text;
  EXPECT_NE(text.find("kvfabric_test_seconds_bucket{le=\"0.1\"} 0"), std::string::npos) << text;
}

}  // namespace
}  // namespace kvfabric
