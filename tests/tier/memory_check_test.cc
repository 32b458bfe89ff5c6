#include "agent/tier/memory_check.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/fakes/temp_dir.h"

namespace kvfabric {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

TEST(MemoryCheck, CountsCapsOverheadAndIndexToTheByte) {
  const MemoryNeed need{.arena_bytes = 1000 * kMiB, .index_bytes = 10 * kMiB};
  const std::uint64_t needed = 1106 * kMiB;
  EXPECT_TRUE(CheckMemory(need, {.available_bytes = needed}).ok());
  EXPECT_EQ(CheckMemory(need, {.available_bytes = needed - 1}).code(),
            StatusCode::kResourceExhausted);
}

TEST(MemoryCheck, TakesTheTighterOfMachineAndCgroup) {
  const MemoryNeed need{.arena_bytes = 100 * kMiB};
  MemoryFigures figures{.available_bytes = 10'000 * kMiB,
                        .cgroup_limit_bytes = 256 * kMiB,
                        .cgroup_used_bytes = 60 * kMiB};
  EXPECT_TRUE(CheckMemory(need, figures).ok());
  figures.cgroup_used_bytes = 61 * kMiB;
  EXPECT_FALSE(CheckMemory(need, figures).ok());
  figures.cgroup_used_bytes = 300 * kMiB;  // over its limit already: nothing is left, not a lot
  EXPECT_FALSE(CheckMemory(need, figures).ok());
}

TEST(MemoryCheck, NamesEveryFigureInTheRefusal) {
  const Status status = CheckMemory({.arena_bytes = 1000 * kMiB, .index_bytes = 10 * kMiB},
                                    {.available_bytes = 500 * kMiB,
                                     .cgroup_limit_bytes = 700 * kMiB,
                                     .cgroup_used_bytes = 100 * kMiB});
  for (const char* figure : {"need 1106 MiB", "arenas 1000 MiB", "index 10 MiB", "96 MiB",
                             "available 500 MiB", "limit 700 MiB", "600 MiB left"}) {
    EXPECT_NE(status.message().find(figure), std::string::npos)
        << figure << " in " << status.message();
  }
}

TEST(MemoryCheck, ParsesWhatTheKernelWrites) {
  EXPECT_EQ(ParseMemAvailable("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), 2 * kMiB);
  EXPECT_EQ(ParseMemAvailable("MemTotal: 9 kB\n"), std::nullopt);
  EXPECT_EQ(ParseCgroupBytes("1048576\n"), kMiB);
  EXPECT_EQ(ParseCgroupBytes("max\n"), std::nullopt);
  EXPECT_EQ(ParseCgroupBytes(""), std::nullopt);
  EXPECT_EQ(ParseInactiveFile("anon 5\ninactive_file 77\n"), 77U);
  EXPECT_EQ(ParseInactiveFile("anon 5\n"), 0U);
}

TEST(MemoryCheck, ReadsTheTightestCgroupOnTheWayUp) {
  TempDir dir;
  const auto write = [&dir](const std::string& name, const std::string& text) {
    const std::filesystem::path path = dir.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  write("proc/meminfo", "MemAvailable: 1048576 kB\n");
  write("proc/self/cgroup", "0::/pods/agent\n");
  write("sys/fs/cgroup/pods/agent/memory.max", "max\n");
  write("sys/fs/cgroup/pods/memory.max", "104857600\n");
  write("sys/fs/cgroup/pods/memory.current", "62914560\n");
  write("sys/fs/cgroup/pods/memory.stat", "inactive_file 10485760\n");
  const MemoryFigures figures = ReadMemoryFigures(dir.path().string() + "/");
  EXPECT_EQ(figures.available_bytes, 1024 * kMiB);
  EXPECT_EQ(figures.cgroup_limit_bytes, 100 * kMiB);
  EXPECT_EQ(figures.cgroup_used_bytes, 50 * kMiB);
}

TEST(MemoryCheck, ReadsThisMachine) { EXPECT_GT(ReadMemoryFigures().available_bytes, 0U); }

}  // namespace
}  // namespace kvfabric
