#pragma once

// BenchReport: the figures of one suite, as its last line and as JSON. One thread.

#include <string>
#include <utility>
#include <vector>

#include "common/status.h"

namespace kvfabric {

class BenchReport {
 public:
  explicit BenchReport(std::string suite) : suite_(std::move(suite)) {}

  // `decimals` are those of the last line; JSON carries the whole number.
  void Add(std::string key, double value, int decimals = 3);
  // `suite=NAME key=value ...` on standard output: must be the last thing printed.
  void PrintLastLine() const;
  // {"suite": NAME, key: value, ...}; nothing for an empty path.
  Status WriteJson(const std::string& path) const;

 private:
  struct Figure {
    std::string key;
    double value;
    int decimals;
  };
  const std::string suite_;
  std::vector<Figure> figures_;
};

}  // namespace kvfabric
