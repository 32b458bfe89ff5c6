// A scripted agent as a process of its own, to be stopped and killed: `scripted_agent SOCKET
// [BOOT_EPOCH]`. Says "ready PORT" when it listens and ends with its stdin.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/fakes/scripted_agent.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  kvfabric::ScriptedAgent::Options options;
  options.socket_path = argv[1];
  options.tcp = true;
  if (argc > 2) options.boot_epoch = std::strtoull(argv[2], nullptr, 10);
  kvfabric::ScriptedAgent agent(std::move(options));
  std::printf("ready %d\n", agent.tcp_port());
  std::fflush(stdout);
  char byte = 0;
  while (::read(0, &byte, 1) > 0) {
  }
  return 0;
}
