#include "operator/kube/child_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/unique_fd.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kMaxErrBytes = 1024;
constexpr int kWaitSliceMs = 20;  // between looks at a child that closed its output and lives on

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Result<Pipe> MakePipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Unavailable("pipe: none left");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<std::string> Environment(const std::vector<std::string>& added) {
  const auto name_of = [](std::string_view entry) { return entry.substr(0, entry.find('=')); };
  std::vector<std::string> out = added;
  // As it is, for the child: what it means is the child's business.
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const bool replaced = std::any_of(added.begin(), added.end(), [&](const std::string& ours) {
      return name_of(ours) == name_of(*entry);
    });
    if (!replaced) out.emplace_back(*entry);
  }
  return out;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

Result<pid_t> Spawn(const ChildCommand& command, int out, int err) {
  std::vector<std::string> argv = command.argv;
  std::vector<std::string> env = Environment(command.env);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  posix_spawn_file_actions_adddup2(&actions, err, 2);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, argv.front().c_str(), &actions, &attributes,
                                   Pointers(argv).data(), Pointers(env).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error == 0) return pid;
  const std::string text = argv.front() + ": " + std::generic_category().message(error);
  return error == ENOENT ? NotFound(text) : Unavailable(text);
}

// Adds what there is to read; false at its end.
bool ReadSome(int fd, std::string* to) {
  std::array<char, 4096> buffer{};
  const ssize_t size = ::read(fd, buffer.data(), buffer.size());
  if (size < 0) return errno == EINTR || errno == EAGAIN;
  to->append(buffer.data(), static_cast<std::size_t>(size));
  return size > 0;
}

// Ends with its output, or a reason to kill it.
Status ReadAll(const ChildCommand& command, std::chrono::steady_clock::time_point deadline,
               UniqueFd out, UniqueFd err, ChildOutput* output) {
  while (out || err) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return DeadlineExceeded("no answer within " + std::to_string(command.deadline.count()) +
                              " ms");
    }
    std::array<pollfd, 3> fds = {
        {{out.get(), POLLIN, 0}, {err.get(), POLLIN, 0}, {command.stop_fd, POLLIN, 0}}};
    if (::poll(fds.data(), fds.size(), static_cast<int>(left.count()) + 1) < 0) continue;
    if (fds[2].revents != 0) return Cancelled("stopped");
    if (fds[0].revents != 0 && !ReadSome(out.get(), &output->out)) out.reset();
    if (fds[1].revents != 0 && !ReadSome(err.get(), &output->err)) err.reset();
    if (output->out.size() > command.max_out_bytes) {
      return ResourceExhausted("it prints more than " + std::to_string(command.max_out_bytes) +
                               " bytes");
    }
    if (output->err.size() > kMaxErrBytes) {
      output->err.erase(0, output->err.size() - kMaxErrBytes);
    }
  }
  return Status::Ok();
}

// Its exit code, once it is gone; kills the group at the deadline.
Status Reap(pid_t pid, const ChildCommand& command, std::chrono::steady_clock::time_point deadline,
            bool kill, int* exit_code) {
  int state = 0;
  for (;;) {
    if (kill) ::kill(-pid, SIGKILL);
    const pid_t gone = ::waitpid(pid, &state, kill ? 0 : WNOHANG);
    if (gone == pid || (gone < 0 && errno != EINTR)) break;
    if (kill || gone < 0) continue;
    pollfd stop{command.stop_fd, POLLIN, 0};
    const bool stopped = ::poll(&stop, 1, kWaitSliceMs) > 0;
    kill = stopped || std::chrono::steady_clock::now() >= deadline;
  }
  *exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  if (kill) return DeadlineExceeded("it did not end");
  return Status::Ok();
}

}  // namespace

Result<ChildOutput> RunChild(const ChildCommand& command) {
  const auto deadline = std::chrono::steady_clock::now() + command.deadline;
  KVF_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  KVF_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  KVF_ASSIGN_OR_RETURN(const pid_t pid, Spawn(command, out.write.get(), err.write.get()));
  out.write.reset();
  err.write.reset();
  ChildOutput output;
  const Status read = ReadAll(command, deadline, std::move(out.read), std::move(err.read), &output);
  const Status reaped = Reap(pid, command, deadline, !read.ok(), &output.exit_code);
  if (!read.ok()) return read.WithContext(command.argv.front());
  if (!reaped.ok()) return reaped.WithContext(command.argv.front());
  return output;
}

}  // namespace kvfabric::kube
