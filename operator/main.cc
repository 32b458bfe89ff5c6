// kvfabric-operator: parses flags, runs until SIGTERM or SIGINT, stops cleanly.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/log.h"
#include "operator/cluster_operator.h"
#include "operator/local_operator.h"
#include "operator/operator_flags.h"

namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The signal that ended it.
template <typename Operator>
kvfabric::Result<int> RunUntilSignal(const kvfabric::OperatorFlags& flags, const sigset_t& wanted) {
  KVF_ASSIGN_OR_RETURN(const auto running, Operator::Start(flags));
  int signal = 0;
  sigwait(&wanted, &signal);
  kvfabric::LogInfo("stopping", {{"signal", signal}});
  return signal;
}

}  // namespace

int main(int argc, char** argv) {
  using kvfabric::ClusterOperator;
  using kvfabric::LocalOperator;
  auto flags = kvfabric::ParseOperatorFlags(std::vector<std::string>(argv + 1, argv + argc));
  if (!flags.ok()) {
    std::fprintf(stderr, "kvfabric-operator: %s\n", flags.status().message().c_str());
    return 2;
  }
  if (flags->help) {
    std::fputs(std::string(kvfabric::OperatorHelp()).c_str(), stdout);
    return 0;
  }
  if (flags->version) {
    std::puts("kvfabric-operator " KVF_VERSION);
    return 0;
  }
  flags->service_host = Environment("KUBERNETES_SERVICE_HOST");
  flags->service_port = Environment("KUBERNETES_SERVICE_PORT");
  kvfabric::InitLogging("kvfabric-operator", flags->log_level);
  // Before any thread is started, so that all of them leave these to the wait below.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  const auto stopped = flags->state_dir.empty() ? RunUntilSignal<ClusterOperator>(*flags, signals)
                                                : RunUntilSignal<LocalOperator>(*flags, signals);
  if (!stopped.ok()) {
    std::fprintf(stderr, "kvfabric-operator: cannot start: %s\n",
                 stopped.status().message().c_str());
    return 1;
  }
  return 0;
}
