#include "agent/service/agent_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/fakes/temp_dir.h"

namespace kvfabric {
namespace {

using ::testing::HasSubstr;

constexpr char kMinimal[] =
    "nodeName: node-0\n"
    "stateDir: /var/lib/kvfabric\n"
    "tokensFile: /etc/kvfabric/tokens\n"
    "dram:\n"
    "  arenaBytes: 1Gi\n";

std::string FaultOf(const std::string& yaml) {
  const auto config = ParseAgentConfig(yaml);
  EXPECT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  return config.status().message();
}

TEST(AgentConfig, FillsDefaults) {
  const auto config = ParseAgentConfig(kMinimal);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->node_name, "node-0");
  EXPECT_EQ(config->arena_bytes, std::uint64_t{1} << 30U);
  EXPECT_EQ(config->socket_path, "/var/lib/kvfabric/agent.sock");
  EXPECT_EQ(FormatAddress(config->grpc), "127.0.0.1:7070");
  EXPECT_EQ(FormatAddress(config->bulk), "127.0.0.1:7071");
  EXPECT_EQ(FormatAddress(config->http), "127.0.0.1:9090");
  EXPECT_EQ(config->workers, 2U);
  EXPECT_EQ(config->log_level, LogLevel::kInfo);
}

TEST(AgentConfig, TakesEveryField) {
  const auto config = ParseAgentConfig(
      "nodeName: gpu-3.rack1\nzone: zone-b\nstateDir: /s\nsocketPath: /run/kvfabric/agent.sock\n"
      "tokensFile: /t\nlocalMode: true\nworkers: 7\n"
      "listen:\n  grpc: '[::1]:0'\n  bulk: 127.0.0.2:18071\n  http: 0.0.0.0:9191\n"
      "dram:\n  arenaBytes: 3000000\nlog:\n  level: debug\n");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->zone, "zone-b");
  EXPECT_EQ(config->socket_path, "/run/kvfabric/agent.sock");
  EXPECT_EQ(FormatAddress(config->grpc), "[::1]:0");
  EXPECT_EQ(FormatAddress(config->bulk), "127.0.0.2:18071");
  EXPECT_EQ(FormatAddress(config->http), "0.0.0.0:9191");
  EXPECT_EQ(config->arena_bytes, 3'000'000U);
  EXPECT_EQ(config->workers, 7U);
  EXPECT_EQ(config->log_level, LogLevel::kDebug);
}

TEST(AgentConfig, NamesAllFaultsAtOnceWithPathValueRuleAndFix) {
  const std::string text = FaultOf(
      "nodeName: Bad_Name\n"
      "stateDir: relative/dir\n"
      "localMode: false\n"
      "workers: many\n"
      "colour: blue\n"
      "listen:\n  grpc: 10.0.0.1:7070\n  bulk: 127.0.0.1:70000\n  htp: x\n"
      "dram:\n  arenaBytes: 12 parsecs\n"
      "log:\n  level: loud\n");
  EXPECT_THAT(text, HasSubstr("config: nodeName: \"Bad_Name\": must be"));
  EXPECT_THAT(text, HasSubstr("config: stateDir: \"relative/dir\": must be an absolute path"));
  EXPECT_THAT(text, HasSubstr("config: tokensFile: is required: write"));
  EXPECT_THAT(text, HasSubstr("config: localMode: \"false\": needs TLS: write tls.bootstrapDir"));
  EXPECT_THAT(text, HasSubstr("config: workers: \"many\": must be an integer"));
  EXPECT_THAT(text, HasSubstr("config: colour: unknown key: remove it, or use one of nodeName"));
  EXPECT_THAT(text, HasSubstr("config: listen.grpc: \"10.0.0.1:7070\": must be a loopback"));
  EXPECT_THAT(text, HasSubstr("config: listen.bulk: \"127.0.0.1:70000\": must be ADDRESS:PORT"));
  EXPECT_THAT(text, HasSubstr("config: listen.htp: unknown key"));
  EXPECT_THAT(text, HasSubstr("config: dram.arenaBytes: \"12 parsecs\": must be bytes"));
  EXPECT_THAT(text, HasSubstr("config: log.level: \"loud\": must be"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
}

TEST(AgentConfig, RefusesRepeatedKeysAndWrongShapes) {
  EXPECT_THAT(FaultOf(std::string(kMinimal) + "workers: 1\nworkers: 2\n"),
              HasSubstr("config: workers: stands twice"));
  EXPECT_THAT(FaultOf("- a\n- b\n"), HasSubstr("(document): must be a mapping"));
  EXPECT_THAT(FaultOf(std::string(kMinimal) + "listen: here\n"),
              HasSubstr("config: listen: \"here\": must be a mapping"));
  EXPECT_THAT(FaultOf(std::string(kMinimal) + "zone: [a, b]\n"),
              HasSubstr("config: zone: must be a single value"));
}

TEST(AgentConfig, SaysWhereTheTextIsNotYaml) {
  EXPECT_THAT(FaultOf("nodeName: node-0\n\tstateDir: /x\n"), HasSubstr("line 2"));
}

TEST(AgentConfig, BoundsItsInput) {
  EXPECT_THAT(FaultOf(std::string(AgentConfig::kMaxTextBytes + 1, '#')), HasSubstr("limit 65536"));
  // Sizes that overflow 64 bits are refused, not wrapped.
  EXPECT_THAT(FaultOf("dram: {arenaBytes: 18446744073709551615Ti}\n"),
              HasSubstr("dram.arenaBytes: \"18446744073709551615Ti\": must be bytes"));
}

TEST(AgentConfig, RefusesSocketPathsTheKernelWouldCut) {
  const std::string path = "/" + std::string(107, 's');
  EXPECT_THAT(FaultOf(std::string(kMinimal) + "socketPath: " + path + "\n"),
              HasSubstr("at most 107 bytes"));
  EXPECT_TRUE(
      ParseAgentConfig(std::string(kMinimal) + "socketPath: " + path.substr(0, 107) + "\n").ok());
}

TEST(AgentConfig, NamesTheFileInFaults) {
  const TempDir dir;
  const std::string path = dir.path() / "agent.yaml";
  EXPECT_EQ(LoadAgentConfig(path).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(LoadAgentConfig(path).status().message(), HasSubstr("write agent.yaml there"));
  std::ofstream(path) << "nodeName: n\n";
  EXPECT_THAT(LoadAgentConfig(path).status().message(), HasSubstr(path));
  std::ofstream(path) << kMinimal;
  EXPECT_TRUE(LoadAgentConfig(path).ok());
}

TEST(AgentConfig, ListensAnywhereOnlyWithTls) {
  const std::string head =
      "nodeName: n\nstateDir: /s\ntokensFile: /t\ndram:\n  arenaBytes: 1Gi\n"
      "listen:\n  grpc: 10.0.0.1:7070\n  bulk: '[::]:7071'\n";
  EXPECT_THAT(ParseAgentConfig(head).status().message(), HasSubstr("must be a loopback"));
  const auto with_tls = ParseAgentConfig(head + "tls:\n  bootstrapDir: /tls\nlocalMode: false\n");
  ASSERT_TRUE(with_tls.ok()) << with_tls.status().ToString();
  EXPECT_EQ(with_tls->tls_bootstrap_dir, "/tls");
  EXPECT_FALSE(with_tls->local_mode);
  EXPECT_THAT(ParseAgentConfig(head + "tls:\n  bootstrapDir: tls\n").status().message(),
              HasSubstr("config: tls.bootstrapDir: \"tls\": must be an absolute path"));
}

}  // namespace
}  // namespace kvfabric
