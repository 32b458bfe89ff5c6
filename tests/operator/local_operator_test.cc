// The whole operator of a local fabric, without agents: files, ports, restarts, flags.

#include "operator/local_operator.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "operator/kube/api_error.h"
#include "operator/kube/token_file.h"
#include "operator/kube/yaml.h"
#include "operator/specs/pool_spec.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"
#include "tests/operator/local_client.h"

namespace kvfabric {
namespace {

using kube::Kind;

class LocalOperatorTest : public ::testing::Test {
 protected:
  LocalOperatorTest() {
    WriteTokens("admin 0123456789\nteam-a abcdefgh1\n", 0600);
    flags_.state_dir = dir_.path();
    flags_.tokens = dir_.path() / "tokens";
  }
  void WriteTokens(const std::string& text, mode_t mode) {
    const auto path = dir_.path() / "tokens";
    std::ofstream(path) << text;
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  }
  std::string ReadFile(const char* name) {
    std::ifstream in(dir_.path() / name);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  std::unique_ptr<kube::HttpKube> Client() { return kube::LocalClient(dir_.path() / "kubeconfig"); }
  static std::string PoolJson(const std::string& extra = "") {
    return *&kube::YamlToJson(
                 "apiVersion: kvfabric.io/v1alpha1\nkind: KVCachePool\n"
                 "metadata: {namespace: default, name: p}\n"
                 "spec: {tiers: [{name: d, type: DRAM, capacityPerNode: 1Gi}]" +
                 extra + "}\n")
                 ->front();
  }
  // Polls the API: another thread writes.
  static bool WaitFor(const std::function<bool()>& done) {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::milliseconds>(
                                               std::chrono::seconds(10) * TimeScale());
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  TempDir dir_;
  OperatorFlags flags_;
};

TEST_F(LocalOperatorTest, ServesPoolsAndTheirStatus) {
  auto running = LocalOperator::Start(flags_);
  ASSERT_TRUE(running.ok()) << running.status().ToString();
  struct stat info {};
  ASSERT_EQ(::stat((dir_.path() / "kubeconfig").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U) << "it holds the admin token";
  EXPECT_NE(ReadFile("operator.json")
                .find("\"api\":\"127.0.0.1:" + std::to_string((*running)->api_port()) + "\""),
            std::string::npos);
  const auto client = Client();
  ASSERT_TRUE(client->Create(Kind::kPool, PoolJson()).ok());
  Pool pool;
  ASSERT_TRUE(WaitFor([&] {
    pool = *DecodePool(**client->Get(Kind::kPool, {"default", "p"}));
    return pool.status.observed_generation == 1;
  }));
  EXPECT_EQ(kube::FindCondition(pool.status.conditions, "Ready")->reason, "NoShardMap");
}

TEST_F(LocalOperatorTest, RefusesABadPoolWithEveryFault) {
  const auto running = LocalOperator::Start(flags_);
  ASSERT_TRUE(running.ok());
  const auto refused =
      Client()->Create(Kind::kPool, PoolJson(", codec: zip, sharding: {replicas: 7, slot: 5}"));
  ASSERT_TRUE(kube::IsInvalid(refused.status()));
  EXPECT_EQ(kube::CausesOf(refused.status()).size(), 3U) << refused.status().message();
}

TEST_F(LocalOperatorTest, RestartKeepsWhatWasWrittenAndCountsTerms) {
  for (int term = 1; term <= 3; ++term) {
    const auto running = LocalOperator::Start(flags_);
    ASSERT_TRUE(running.ok()) << running.status().ToString();
    const auto client = Client();
    if (term == 1) {
      ASSERT_TRUE(client->Create(Kind::kPool, PoolJson()).ok());
    } else {
      EXPECT_TRUE(client->Get(Kind::kPool, {"default", "p"}).ok());
    }
    const std::string wanted = "\"leaseTransitions\":" + std::to_string(term);
    EXPECT_TRUE(WaitFor([&] {
      const auto lease = client->Get(Kind::kLease, {"kvfabric-system", "kvfabric-operator"});
      return lease.ok() && (*lease)->json.find(wanted) != std::string::npos;
    })) << term;
  }
  EXPECT_EQ(ReadFile("operator.json"), "") << "gone after a clean stop";
}

TEST_F(LocalOperatorTest, SecondOneOnADirectoryIsRefused) {
  const auto running = LocalOperator::Start(flags_);
  ASSERT_TRUE(running.ok());
  const std::string before = ReadFile("kubeconfig");
  const auto second = LocalOperator::Start(flags_);
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReadFile("kubeconfig"), before) << "the first one's files stay";
  EXPECT_NE(ReadFile("operator.json"), "");
}

TEST_F(LocalOperatorTest, PortInUseIsNamed) {
  const auto running = LocalOperator::Start(flags_);
  ASSERT_TRUE(running.ok());
  TempDir other;
  OperatorFlags flags = flags_;
  flags.state_dir = other.path();
  flags.metrics.port = (*running)->http_port();
  const auto second = LocalOperator::Start(flags);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(std::to_string((*running)->http_port())),
            std::string::npos)
      << second.status().message();
}

// A rotation: the new token is brought in, then the old one goes. Agents take such a file too.
TEST_F(LocalOperatorTest, TakesSeveralTokensOfATenant) {
  WriteTokens("# rotated\nadmin new-token-1\nadmin old-token-1\nTeam_A \"quoted-token\"\n", 0600);
  const auto running = LocalOperator::Start(flags_);
  ASSERT_TRUE(running.ok()) << running.status().ToString();
  std::string kubeconfig = ReadFile("kubeconfig");
  EXPECT_NE(kubeconfig.find("new-token-1"), std::string::npos) << "the first is the one to use";
  EXPECT_TRUE(Client()->Ping().ok());
  kubeconfig.replace(kubeconfig.find("new-token-1"), 11, "old-token-1");
  std::ofstream(dir_.path() / "kubeconfig") << kubeconfig;
  EXPECT_TRUE(Client()->Ping().ok());
}

TEST_F(LocalOperatorTest, TokensAreCheckedBeforeAnythingStarts) {
  WriteTokens("admin 0123456789\n", 0640);
  EXPECT_EQ(LocalOperator::Start(flags_).status().code(), StatusCode::kPermissionDenied);
  WriteTokens("team short\nteam-b 12345678 x\nteam a b\nteam-a 0123456789\nteam-c 0123456789\n",
              0600);
  const Status status = LocalOperator::Start(flags_).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const char* part : {"line 1", "line 2", "line 3", "line 5", "no line for admin"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status.message();
  }
  EXPECT_EQ(status.message().find("0123456789"), std::string::npos) << "never a token in a text";
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "api"));
}

TEST(OperatorFlags, ReadsAndDefaults) {
  const auto flags = ParseOperatorFlags(
      {"--state-dir", "/d", "--metrics-listen=0.0.0.0:9090", "--log-level", "warn"});
  ASSERT_TRUE(flags.ok()) << flags.status().ToString();
  EXPECT_EQ(flags->tokens, "/d/tokens");
  EXPECT_EQ(flags->metrics.host, "0.0.0.0");
  EXPECT_EQ(flags->metrics.port, 9090);
  EXPECT_EQ(flags->listen.port, 0);
  EXPECT_EQ(flags->log_level, LogLevel::kWarn);
}

TEST(OperatorFlags, NamesEveryFault) {
  const auto flags = ParseOperatorFlags({"--listen", "0.0.0.0:1", "--bogus", "x", "--log-level",
                                         "loud", "--metrics-listen", "9090", "--tokens"});
  ASSERT_FALSE(flags.ok());
  for (const char* part :
       {"--state-dir: absent", "--listen: \"0.0.0.0:1\"", "--bogus: unknown",
        "--log-level: \"loud\"", "--metrics-listen: \"9090\"", "--tokens: needs a value"}) {
    EXPECT_NE(flags.status().message().find(part), std::string::npos) << part;
  }
  EXPECT_FALSE(ParseOperatorFlags({"--in-cluster"}).ok()) << "who may speak to the agents?";
  EXPECT_FALSE(ParseOperatorFlags({"--in-cluster", "--tokens", "/t", "--state-dir", "/d"}).ok());
  EXPECT_FALSE(ParseOperatorFlags(
                   {"--in-cluster", "--tokens", "/t", "--tls-dir", "/c", "--namespace", "A/b"})
                   .ok());
  const auto cluster = ParseOperatorFlags(
      {"--kubeconfig", "/k", "--tokens=/t", "--namespace", "x", "--tls-dir", "/c"});
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  EXPECT_EQ(cluster->kubeconfig, "/k");
  EXPECT_EQ(cluster->ns, "x");
  EXPECT_TRUE(ParseOperatorFlags({"--help"})->help);
  EXPECT_NE(OperatorHelp().find("Example:"), std::string_view::npos);
}

}  // namespace
}  // namespace kvfabric
