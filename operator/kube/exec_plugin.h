#pragma once

// ExecPlugin runs the program that a kubeconfig names for credentials (client.authentication.k8s.io
// v1, or v1beta1, which says the same) and keeps what it gave until that expires or is refused.
//
// Owned by Credentials; any thread may call. One run at a time, others wait for it; each is bounded
// by a deadline, after which the program and its children are killed. Never through a shell; stdin
// is /dev/null; its environment is ours plus what the kubeconfig names.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvfabric::kube {

struct ExecConfig {
  std::string api_version;  // client.authentication.k8s.io/v1
  std::string command;      // a path, or a name to look for in PATH
  std::vector<std::string> args;
  std::vector<std::pair<std::string, std::string>> env;
  std::string install_hint;  // for people who lack it
  std::string cluster_json;  // spec.cluster of what it is told; "" = it is not told
  std::string ca_pem;        // what goes with that; Credentials fills it in
};

struct ExecCredential {
  std::string token;
  std::string certificate;  // PEM
  std::string key;
  std::optional<std::int64_t> expires_us;  // unix time; nullopt: until refused
};

// The answer of a plugin. Pure; INVALID_ARGUMENT says what is wrong, never what it holds.
Result<ExecCredential> ParseExecCredential(const std::string& api_version, std::string_view json);

class ExecPlugin {
 public:
  struct Options {
    std::chrono::milliseconds deadline{30'000};  // of a run: some ask an identity provider
    std::chrono::seconds leeway{10};             // run again this long before it expires
    std::chrono::seconds pause{5};               // after a failure it is not run again so soon
  };

  ExecPlugin(ExecConfig config, const Clock& clock, Options options);
  ExecPlugin(ExecConfig config, const Clock& clock);
  ~ExecPlugin();
  ExecPlugin(const ExecPlugin&) = delete;  // owns a child process
  ExecPlugin& operator=(const ExecPlugin&) = delete;

  Result<ExecCredential> Get() EXCLUDES(mu_);
  // The API refused this one: if it is still the one that Get gives, the next Get runs the program.
  void Reject(const ExecCredential& credential) EXCLUDES(mu_);
  // Kills what runs; Get fails from now on.
  void Stop() EXCLUDES(mu_);
  std::uint64_t runs() const EXCLUDES(mu_);

 private:
  bool Fresh() const REQUIRES(mu_);
  Result<ExecCredential> Run() const;

  const ExecConfig config_;
  const Clock& clock_;  // borrowed
  const Options options_;
  const UniqueFd stop_;  // an eventfd

  mutable Mutex mu_;
  CondVar changed_;
  std::optional<ExecCredential> held_ GUARDED_BY(mu_);
  Status failure_ GUARDED_BY(mu_);
  Clock::TimePoint retry_at_ GUARDED_BY(mu_){};
  bool running_ GUARDED_BY(mu_) = false;
  bool stopped_ GUARDED_BY(mu_) = false;
  std::uint64_t runs_ GUARDED_BY(mu_) = 0;
};

}  // namespace kvfabric::kube
