#include "cli/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "cli/files.h"
#include "tests/fakes/temp_dir.h"

namespace kvfabric::cli {
namespace {

constexpr std::chrono::seconds kLong{10};

class Process : public testing::Test {
 protected:
  Result<ProcessId> Start(std::vector<std::string> argv) {
    return StartDaemon(
        {.argv = std::move(argv), .log = directory_.path() / "log", .directory = "/"});
  }
  std::string LogText() { return ReadFile(directory_.path() / "log").value_or(""); }

  TempDir directory_;
};

TEST_F(Process, RunsInASessionOfItsOwnWithItsOutputInTheLog) {
  const std::string fifo = (directory_.path() / "written").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const Result<ProcessId> process =
      Start({"/bin/sh", "-c", "echo out; echo err >&2; echo > " + fifo + "; exec sleep 60"});
  ASSERT_TRUE(process.ok()) << process.status().ToString();
  std::string line;
  std::ifstream written(fifo);  // opens once the shell has written both
  std::getline(written, line);
  EXPECT_EQ(LogText(), "out\nerr\n");
  EXPECT_TRUE(IsRunning(*process));
  EXPECT_NE(::getsid(process->pid), ::getsid(0));
  ASSERT_TRUE(SendSignal(*process, SIGKILL).ok());
  EXPECT_TRUE(WaitUntilGone(*process, kLong));
  EXPECT_FALSE(IsRunning(*process));
  EXPECT_EQ(SendSignal(*process, SIGKILL).code(), StatusCode::kNotFound);
}

TEST_F(Process, TellsAnExecThatFails) {
  const Result<ProcessId> process = Start({"/nonexistent/program"});
  ASSERT_FALSE(process.ok());
  EXPECT_EQ(process.status().code(), StatusCode::kNotFound) << process.status().ToString();
}

TEST_F(Process, NeverSignalsAnotherProcessThatGotThePid) {
  const Result<ProcessId> process = Start({"/bin/sleep", "60"});
  ASSERT_TRUE(process.ok());
  ProcessId other = *process;
  other.start_ticks += 1;  // as if the pid had been reused
  EXPECT_FALSE(IsRunning(other));
  EXPECT_EQ(SendSignal(other, SIGKILL).code(), StatusCode::kNotFound);
  EXPECT_TRUE(WaitUntilGone(other, std::chrono::milliseconds(0)));
  EXPECT_TRUE(IsRunning(*process));
  ASSERT_TRUE(SendSignal(*process, SIGKILL).ok());
  EXPECT_TRUE(WaitUntilGone(*process, kLong));
}

TEST_F(Process, CountsAZombieAsGone) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  const auto ticks = StartTicks(child);  // may be a zombie by now already
  const ProcessId process{.pid = child, .start_ticks = ticks.value_or(0)};
  EXPECT_TRUE(WaitUntilGone(process, kLong));
  EXPECT_FALSE(IsRunning(process));
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(Process, PidFileRoundTripsAndGarbageIsNone) {
  const std::filesystem::path file = directory_.path() / "pid";
  EXPECT_FALSE(ReadPidFile(file).has_value());
  const ProcessId process{.pid = 123, .start_ticks = 456};
  ASSERT_TRUE(WritePidFile(file, process).ok());
  EXPECT_EQ(ReadPidFile(file), process);
  for (const char* garbage : {"", "x", "12", "-5 7", "0 1"}) {
    ASSERT_TRUE(WriteFileAtomically(file, garbage, 0600).ok());
    EXPECT_FALSE(ReadPidFile(file).has_value()) << garbage;
  }
}

}  // namespace
}  // namespace kvfabric::cli
