#pragma once

// RemoteKube: a KubeClient over HTTPS with a bearer token, for kvctl against the embedded API.
// Part 2's HTTP KubeApi takes its place; the methods are the same.
//
// Any thread may call; one request at a time. Every call has a deadline; redirects, proxies and
// answers longer than 64 MiB are refused.

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

class RemoteKube final : public KubeClient {
 public:
  struct Options {
    std::string server;  // https://127.0.0.1:6443
    std::string ca_pem;  // trusted instead of the system's
    std::string token;
    std::chrono::milliseconds connect_timeout{2000};
    std::chrono::milliseconds timeout{10'000};  // of a whole call
  };

  static Result<std::unique_ptr<RemoteKube>> Create(Options options);
  // Current context; certificate-authority-data, server and token only.
  static Result<std::unique_ptr<RemoteKube>> FromKubeconfig(const std::filesystem::path& path);
  ~RemoteKube() override;
  RemoteKube(const RemoteKube&) = delete;  // owns a connection
  RemoteKube& operator=(const RemoteKube&) = delete;

  Result<ObjectList> List(Kind kind, const std::string& ns) override;
  Result<ObjectPtr> Get(Kind kind, const ObjectName& name) override;
  Result<ObjectPtr> Create(Kind kind, const std::string& json) override;
  Result<ObjectPtr> Update(Kind kind, const std::string& json) override;
  Result<ObjectPtr> UpdateStatus(Kind kind, const std::string& json) override;
  Result<ObjectPtr> Apply(Kind kind, const std::string& json, const ApplyOptions& options) override;
  Result<ObjectPtr> Patch(Kind kind, const ObjectName& name, PatchType type,
                          const std::string& patch, bool status) override;
  Status Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions) override;

  // Is it there, and does it take our token? One GET of /version.
  Status Ping();

 private:
  struct State;
  explicit RemoteKube(std::unique_ptr<State> state);
  Result<std::string> Call(const std::string& method, const std::string& path,
                           const std::string& body);
  Result<ObjectPtr> Write(const std::string& method, Kind kind, const std::string& json,
                          bool status);

  std::unique_ptr<State> state_;
};

}  // namespace kvfabric::kube
