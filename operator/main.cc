// kvfabric-operator: parses flags, runs until SIGTERM or SIGINT, stops cleanly.

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "common/log.h"
#include "operator/local_operator.h"
#include "operator/operator_flags.h"

int main(int argc, char** argv) {
  using kvfabric::LocalOperator;
  const auto flags = kvfabric::ParseOperatorFlags(std::vector<std::string>(argv + 1, argv + argc));
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
  kvfabric::InitLogging("kvfabric-operator", flags->log_level);
  // Before any thread is started, so that all of them leave these to the wait below.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  auto running = LocalOperator::Start(*flags);
  if (!running.ok()) {
    std::fprintf(stderr, "kvfabric-operator: cannot start: %s\n",
                 running.status().message().c_str());
    return 1;
  }
  int signal = 0;
  sigwait(&signals, &signal);
  kvfabric::LogInfo("stopping", {{"signal", signal}});
  return 0;
}
