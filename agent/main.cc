// kvfabric-agent: serves one node's share of the fabric until SIGTERM or SIGINT.

#include <signal.h>
#include <time.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

#include "agent/service/agent_config.h"
#include "agent/service/agent_process.h"
#include "common/log.h"

namespace {

constexpr int kRefused = 2;  // nothing was started; stderr says why

constexpr char kHelp[] =
    "kvfabric-agent: a node's memory, directory share and serving of a KV cache fabric\n"
    "\n"
    "usage: kvfabric-agent --config FILE\n"
    "       kvfabric-agent --help | --version\n"
    "\n"
    "FILE is YAML; docs/config-agent.md lists its keys. Example:\n"
    "\n"
    "  nodeName: node-0\n"
    "  stateDir: /var/lib/kvfabric\n"
    "  tokensFile: /etc/kvfabric/tokens\n"
    "  dram:\n"
    "    arenaBytes: 1Gi\n"
    "\n"
    "  kvfabric-agent --config agent.yaml &\n"
    "  curl http://127.0.0.1:9090/readyz\n"
    "\n"
    "Exit status: 0 after SIGTERM or SIGINT, 2 when it refused to start (the reason is on\n"
    "standard error).\n";

int Refuse(const std::string& reason) {
  std::fprintf(stderr, "kvfabric-agent: %s\n", reason.c_str());
  return kRefused;
}

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

int Run(const std::string& config_path) {
  // Before any thread starts, so that all of them leave these signals to this one.
  const sigset_t signals = EndSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  const auto config = kvfabric::LoadAgentConfig(config_path);
  if (!config.ok()) return Refuse("refused to start:\n" + config.status().message());
  kvfabric::InitLogging("agent " + config->node_name, config->log_level);

  const auto interrupted = [&signals] {
    const timespec wait{0, 10'000'000};
    return sigtimedwait(&signals, nullptr, &wait) > 0;
  };
  auto agent = kvfabric::AgentProcess::Start(*config, KVF_VERSION, interrupted);
  if (!agent.ok()) {
    if (agent.status().code() == kvfabric::StatusCode::kCancelled) return 0;
    return Refuse("refused to start: " + agent.status().message());
  }
  int signal_number = 0;
  while (sigwait(&signals, &signal_number) != 0) {
  }
  kvfabric::LogInfo("agent stops", {{"signal", signal_number}});
  (*agent)->Stop();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (argc == 2 && (first == "--help" || first == "-h")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (argc == 2 && first == "--version") {
    std::puts("kvfabric-agent " KVF_VERSION);
    return 0;
  }
  if (argc == 3 && first == "--config") return Run(argv[2]);
  if (argc == 2 && first.substr(0, 9) == "--config=") return Run(std::string(first.substr(9)));
  return Refuse("usage: kvfabric-agent --config FILE (see --help)");
}
