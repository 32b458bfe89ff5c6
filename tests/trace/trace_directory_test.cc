#include "trace/trace_directory.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/fakes/temp_dir.h"

namespace kvfabric {
namespace {

TEST(FindTraceDirectory, TakesTheEnvironmentFirst) {
  TempDir dir;
  const auto found = FindTraceDirectory(dir.path().c_str(), dir.path());
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->path, dir.path());
  EXPECT_TRUE(found->found);
}

TEST(FindTraceDirectory, RefusesAnEnvironmentThatNamesNoDirectory) {
  const auto found = FindTraceDirectory("/nonexistent/traces");
  EXPECT_EQ(found.status().code(), StatusCode::kNotFound);
  EXPECT_NE(found.status().message().find("/nonexistent/traces"), std::string::npos);
}

TEST(FindTraceDirectory, GoesFromSharedToTheExcerpt) {
  TempDir dir;
  const auto root = dir.path() / "main";
  std::filesystem::create_directories(root / "examples");
  EXPECT_EQ(FindTraceDirectory(nullptr, root).status().code(), StatusCode::kNotFound);

  std::ofstream(root / "examples" / kTraceExcerpt) << "{}\n";
  const auto excerpt = FindTraceDirectory(nullptr, root);
  ASSERT_TRUE(excerpt.ok());
  EXPECT_FALSE(excerpt->found);
  EXPECT_EQ(excerpt->path, root / "examples");

  std::filesystem::create_directories(dir.path() / "shared" / "traces");
  const auto shared = FindTraceDirectory("", root);  // empty counts as unset
  ASSERT_TRUE(shared.ok());
  EXPECT_TRUE(shared->found);
}

}  // namespace
}  // namespace kvfabric
