#include "cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "cli/files.h"
#include "common/unique_fd.h"

namespace kvfabric::cli {
namespace {

// What the daemon tells the starter before exec, or instead of it.
struct StartReport {
  pid_t pid = 0;
  int error = 0;
};

struct PreparedStart {
  std::vector<char*> argv;
  const char* log = nullptr;
  const char* directory = nullptr;
  int report_fd = -1;
};

[[noreturn]] void ReportAndExit(int fd, int error) {
  const StartReport report{.pid = 0, .error = error};
  static_cast<void>(!::write(fd, &report, sizeof(report)));
  ::_exit(127);
}

// Between fork and exec: only async-signal-safe calls.
[[noreturn]] void BecomeDaemon(const PreparedStart& start) {
  ::setsid();
  const pid_t again = ::fork();  // not a session leader: never gets a terminal
  if (again < 0) ReportAndExit(start.report_fd, errno);
  if (again > 0) ::_exit(0);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int in = ::open("/dev/null", O_RDONLY);
  const int out = ::open(start.log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (in < 0 || out < 0 || ::chdir(start.directory) != 0) ReportAndExit(start.report_fd, errno);
  if (::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(out, 2) < 0)
    ReportAndExit(start.report_fd, errno);
  // Everything else goes at exec, the report pipe too: its end says that exec worked.
  ::syscall(SYS_close_range, 3U, ~0U, 1U << 2U /* CLOSE_RANGE_CLOEXEC */);
  const StartReport started{.pid = ::getpid(), .error = 0};
  static_cast<void>(!::write(start.report_fd, &started, sizeof(started)));
  ::execv(start.argv[0], start.argv.data());
  ReportAndExit(start.report_fd, errno);
}

// Reads one report; false at the end of the pipe.
bool ReadReport(int fd, StartReport* report) {
  for (;;) {
    const ssize_t got = ::read(fd, report, sizeof(*report));
    if (got < 0 && errno == EINTR) continue;
    return got == static_cast<ssize_t>(sizeof(*report));
  }
}

}  // namespace

Result<ProcessId> StartDaemon(const DaemonOptions& options) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, options.argv[0] + ": pipe");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::vector<std::string> argv = options.argv;
  PreparedStart start;
  for (std::string& argument : argv) start.argv.push_back(argument.data());
  start.argv.push_back(nullptr);
  start.log = options.log.c_str();
  start.directory = options.directory.c_str();
  start.report_fd = write_end.get();
  const pid_t child = ::fork();
  if (child < 0) return ErrnoStatus(errno, options.argv[0] + ": fork");
  if (child == 0) BecomeDaemon(start);
  write_end.reset();
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  StartReport report;
  ProcessId process;
  while (ReadReport(read_end.get(), &report)) {
    if (report.error != 0) return ErrnoStatus(report.error, options.argv[0] + ": start");
    process.pid = report.pid;
  }
  const auto ticks = StartTicks(process.pid);
  if (process.pid == 0 || !ticks)
    return Unavailable(options.argv[0] + ": start: it ended at once (see " + options.log.string() +
                       ")");
  process.start_ticks = *ticks;
  return process;
}

namespace {

struct ProcessStat {
  char state = '?';
  std::uint64_t start_ticks = 0;
};

std::optional<ProcessStat> ReadStat(pid_t pid) {
  if (pid <= 0) return std::nullopt;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  // The second field is the name in parentheses and may hold anything, parentheses too.
  const auto close = text.rfind(')');
  if (close == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(close + 1));
  ProcessStat stat;
  rest >> stat.state;  // field 3
  std::string field;
  for (int number = 4; number <= 21; ++number) rest >> field;
  if (!(rest >> stat.start_ticks)) return std::nullopt;
  return stat;
}

}  // namespace

std::optional<std::uint64_t> StartTicks(pid_t pid) {
  const auto stat = ReadStat(pid);
  if (!stat || stat->state == 'Z' || stat->state == 'X') return std::nullopt;
  return stat->start_ticks;
}

bool IsRunning(const ProcessId& process) {
  const auto ticks = StartTicks(process.pid);
  return ticks && *ticks == process.start_ticks;
}

bool IsStopped(const ProcessId& process) {
  const auto stat = ReadStat(process.pid);
  return stat && stat->start_ticks == process.start_ticks && stat->state == 'T';
}

Status SendSignal(const ProcessId& process, int signal) {
  // The descriptor is taken before the start time is compared, so it names the process compared.
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0U)));
  const std::string name = "process " + std::to_string(process.pid);
  if (!pidfd || !IsRunning(process)) return NotFound(name + ": signal: it is not running");
  if (::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0U) != 0)
    return ErrnoStatus(errno, name + ": signal " + std::to_string(signal));
  return Status::Ok();
}

bool WaitUntilGone(const ProcessId& process, std::chrono::milliseconds budget) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0U)));
  if (!pidfd || !IsRunning(process)) return true;
  pollfd wait{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  ::poll(&wait, 1, static_cast<int>(budget.count()));
  return !IsRunning(process);
}

Status WritePidFile(const std::filesystem::path& file, const ProcessId& process) {
  return WriteFileAtomically(
      file, std::to_string(process.pid) + " " + std::to_string(process.start_ticks) + "\n", 0600);
}

std::optional<ProcessId> ReadPidFile(const std::filesystem::path& file) {
  std::ifstream in(file);
  ProcessId process;
  if (!(in >> process.pid >> process.start_ticks) || process.pid <= 0) return std::nullopt;
  return process;
}

Result<std::filesystem::path> SiblingProgram(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Internal("/proc/self/exe: read link: " + error.message());
  const std::filesystem::path program = self.parent_path() / name;
  if (::access(program.c_str(), X_OK) != 0)
    return NotFound(program.string() + ": it must stand beside kvctl (build target " + name + ")");
  return program;
}

}  // namespace kvfabric::cli
