#include "bench/bench_report.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvfabric {

void BenchReport::Add(std::string key, double value, int decimals) {
  figures_.push_back({std::move(key), value, decimals});
}

void BenchReport::PrintLastLine() const {
  std::printf("suite=%s", suite_.c_str());
  for (const Figure& figure : figures_) {
    std::printf(" %s=%.*f", figure.key.c_str(), figure.decimals, figure.value);
  }
  std::printf("\n");
  std::fflush(stdout);
}

Status BenchReport::WriteJson(const std::string& path) const {
  if (path.empty()) return Status::Ok();
  nlohmann::ordered_json json;
  json["suite"] = suite_;
  for (const Figure& figure : figures_) json[figure.key] = figure.value;
  errno = 0;
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  file.close();
  if (!file) return ErrnoStatus(errno != 0 ? errno : EIO, "write").WithContext("report " + path);
  return Status::Ok();
}

}  // namespace kvfabric
