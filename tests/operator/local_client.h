#pragma once

// A client of an API served on this machine, by its kubeconfig, with short deadlines.

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "operator/kube/http_kube.h"
#include "operator/kube/kubeconfig.h"

namespace kvfabric::kube {

inline std::unique_ptr<HttpKube> LocalClient(const std::filesystem::path& kubeconfig) {
  Result<ApiTarget> target = LoadKubeconfig({kubeconfig});
  EXPECT_TRUE(target.ok()) << target.status().ToString();
  if (!target.ok()) return nullptr;
  HttpKube::Options options;
  options.target = std::move(target).value();
  options.call_timeout = std::chrono::seconds(10);
  auto client = HttpKube::Create(std::move(options));
  EXPECT_TRUE(client.ok()) << client.status().ToString();
  return client.ok() ? std::move(client).value() : nullptr;
}

}  // namespace kvfabric::kube
