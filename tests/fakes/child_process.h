#pragma once

// ChildProcess: a program that a test starts, signals and waits for. It ends with the object; its
// stdin is a pipe that closes then too. One thread.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/unique_fd.h"

extern char** environ;

namespace kvfabric {

class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> command) {
    UniqueFd stdin_end;
    UniqueFd stdout_end;
    MakePipe(stdin_end, stdin_);
    MakePipe(stdout_, stdout_end);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, stdin_end.get(), 0);
    ::posix_spawn_file_actions_adddup2(&actions, stdout_end.get(), 1);
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int rc = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    KVF_CHECK(rc == 0, "cannot start a child process");
  }
  ~ChildProcess() {
    if (pid_ > 0) {
      Signal(SIGKILL);
      static_cast<void>(Wait());
    }
  }
  ChildProcess(const ChildProcess&) = delete;  // would wait twice
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Signal(int signal) {
    KVF_CHECK(pid_ > 0, "the child process was waited for: its number is somebody else's");
    ::kill(pid_, signal);
  }
  void WriteLine(const std::string& line) {
    const std::string bytes = line + "\n";
    KVF_CHECK(
        ::write(stdin_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
        "cannot write to a child process");
  }
  // Its next line; empty when its output has ended.
  std::string ReadLine() {
    std::string line;
    char byte = 0;
    while (::read(stdout_.get(), &byte, 1) == 1 && byte != '\n') line.push_back(byte);
    return line;
  }
  // All output until it ends, then its exit status; -1 when a signal ended it.
  int Finish(std::string& output) {
    char bytes[4'096];
    for (;;) {
      const ssize_t n = ::read(stdout_.get(), bytes, sizeof(bytes));
      if (n <= 0) break;
      output.append(bytes, static_cast<std::size_t>(n));
    }
    return Wait();
  }
  int Wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  static void MakePipe(UniqueFd& read_end, UniqueFd& write_end) {
    int ends[2] = {-1, -1};
    KVF_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe");
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }

  pid_t pid_ = -1;
  UniqueFd stdin_;
  UniqueFd stdout_;
};

}  // namespace kvfabric
