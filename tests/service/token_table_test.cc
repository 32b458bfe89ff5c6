#include "agent/service/token_table.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/fakes/temp_dir.h"

namespace kvfabric {
namespace {

class TokenTableTest : public ::testing::Test {
 protected:
  std::string path() const { return (directory_.path() / "tokens").string(); }
  void Write(const std::string& text, mode_t mode = 0600) const {
    const std::string fresh = path() + ".new";  // replaced as a whole, as kvctl does
    std::ofstream(fresh) << text;
    ASSERT_EQ(::chmod(fresh.c_str(), mode), 0);
    ASSERT_EQ(::rename(fresh.c_str(), path().c_str()), 0);
  }

  TempDir directory_;
};

TEST_F(TokenTableTest, NamesTheTenantOfAToken) {
  Write("# who\n\ndefault d-token-0123\nadmin\ta-token-0123\nblue b-token-0123\r\n");
  const auto table = TokenTable::Load(path());
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ((*table)->size(), 3U);
  EXPECT_EQ((*table)->TenantOf("d-token-0123"), "default");
  EXPECT_EQ((*table)->TenantOf("a-token-0123"), "admin");
  EXPECT_EQ((*table)->TenantOf("b-token-0123"), "blue");
  for (const char* wrong : {"", "d-token-012", "d-token-01234", "default", "d-token-0124"}) {
    EXPECT_EQ((*table)->TenantOf(wrong), std::nullopt) << wrong;
  }
}

TEST_F(TokenTableTest, SaysEveryFaultAndNoToken) {
  Write("blue short\ndefault\nred red-token-0123 more\nx same-token-01\ny same-token-01\n");
  const auto table = TokenTable::Load(path());
  ASSERT_EQ(table.status().code(), StatusCode::kInvalidArgument);
  const std::string& text = table.status().message();
  for (const char* line : {"line 1:", "line 2:", "line 3:", "line 5:"}) {
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
  EXPECT_EQ(text.find("line 4:"), std::string::npos) << text;
  EXPECT_EQ(text.find("same-token"), std::string::npos) << text;
}

TEST_F(TokenTableTest, RefusesAFileThatOthersMayRead) {
  for (const mode_t mode : {0640U, 0604U, 0620U}) {
    Write("default d-token-0123\n", mode);
    EXPECT_EQ(TokenTable::Load(path()).status().code(), StatusCode::kPermissionDenied) << mode;
  }
  EXPECT_EQ(TokenTable::Load(path() + ".none").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(TokenTable::Load(directory_.path().string()).ok());
}

TEST_F(TokenTableTest, SaysWhatToWriteWhenThereIsNone) {
  const Status status = TokenTable::Load(path()).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("or correct tokensFile"), std::string::npos) << status.message();
}

TEST_F(TokenTableTest, FollowsTheFileAndKeepsTheLastGoodTable) {
  Write("default d-token-0123\n");
  const auto table = TokenTable::Load(path());
  ASSERT_TRUE(table.ok());
  EXPECT_TRUE((*table)->ReloadIfChanged().ok());
  Write("default d-token-4567\n");  // the same length: only the inode and times differ
  EXPECT_TRUE((*table)->ReloadIfChanged().ok());
  EXPECT_EQ((*table)->TenantOf("d-token-0123"), std::nullopt);
  EXPECT_EQ((*table)->TenantOf("d-token-4567"), "default");
  Write("default\n");
  EXPECT_FALSE((*table)->ReloadIfChanged().ok());
  EXPECT_EQ((*table)->TenantOf("d-token-4567"), "default");
  Write("default d-token-89ab\n", 0644);
  EXPECT_FALSE((*table)->ReloadIfChanged().ok());
  EXPECT_EQ((*table)->TenantOf("d-token-4567"), "default");
}

}  // namespace
}  // namespace kvfabric
