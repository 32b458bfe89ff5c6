#include "cli/fabric_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cli/files.h"
#include "tests/fakes/temp_dir.h"

namespace kvfabric::cli {
namespace {

class Directory : public testing::Test {
 protected:
  FabricDirectory At(const std::string& name) {
    return *FabricDirectory::At((temp_.path() / name).string());
  }
  TempDir temp_;
};

TEST_F(Directory, SaysHowToStartWhereThereIsNoFabric) {
  const Result<FabricSettings> none = At("x").LoadSettings();
  EXPECT_EQ(none.status().code(), StatusCode::kNotFound);
  EXPECT_NE(none.status().message().find("kvctl up"), std::string::npos);
}

TEST_F(Directory, SettingsRoundTrip) {
  const FabricDirectory fabric = At("x");
  ASSERT_TRUE(fabric.Make().ok());
  FabricSettings settings;
  settings.arena_bytes = 1 << 20;
  settings.zones = 2;
  settings.next_node = 4;
  settings.nodes = {
      {.name = "node-1", .zone = "zone-1", .ports = {.grpc = 1, .bulk = 2, .http = 65'535}},
      {.name = "node-2", .zone = "", .ports = {}}};
  ASSERT_TRUE(fabric.SaveSettings(settings).ok());
  const Result<FabricSettings> loaded = fabric.LoadSettings();
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->nodes, settings.nodes);
  EXPECT_EQ(loaded->arena_bytes, settings.arena_bytes);
  EXPECT_EQ(loaded->next_node, 4U);
  EXPECT_NE(loaded->Find("node-2"), nullptr);
  EXPECT_EQ(loaded->Find("node-3"), nullptr);
}

TEST_F(Directory, DamagedSettingsAreAnErrorNotACrash) {
  const FabricDirectory fabric = At("x");
  ASSERT_TRUE(fabric.Make().ok());
  for (const char* text : {"", "[]", "{}", "{\"arenaBytes\":\"x\"}", "{\"nodes\":1,\"zones\":1}"}) {
    ASSERT_TRUE(WriteFileAtomically(fabric.settings(), text, 0600).ok());
    EXPECT_EQ(fabric.LoadSettings().status().code(), StatusCode::kDataLoss) << text;
  }
}

TEST_F(Directory, ReadsWhatAnAgentSaysOfItself) {
  const FabricDirectory fabric = At("x");
  ASSERT_TRUE(fabric.Make().ok());
  ASSERT_TRUE(fabric.MakeAgentDirectories("n").ok());
  EXPECT_EQ(fabric.ReadAgentRun("n").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileAtomically(fabric.agent_json("n"),
                                  R"({"pid": 7, "start_time": 9, "grpc": "127.0.0.1:70",
                                      "bulk": "127.0.0.1:71", "http": "[::1]:72"})",
                                  0600)
                  .ok());
  const Result<AgentRun> run = fabric.ReadAgentRun("n");
  ASSERT_TRUE(run.ok()) << run.status().ToString();
  EXPECT_EQ(run->process, (ProcessId{.pid = 7, .start_ticks = 9}));
  EXPECT_EQ(run->ports, (AgentPorts{.grpc = 70, .bulk = 71, .http = 72}));
  ASSERT_TRUE(WriteFileAtomically(fabric.agent_json("n"), R"({"pid": "x"})", 0600).ok());
  EXPECT_EQ(fabric.ReadAgentRun("n").status().code(), StatusCode::kDataLoss);
}

TEST_F(Directory, TokensStayAndAreSecret) {
  const FabricDirectory fabric = At("x");
  ASSERT_TRUE(fabric.Make().ok());
  const auto first = fabric.EnsureTokens({"default", "admin"});
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const auto second = fabric.EnsureTokens({"default", "admin", "team-a"});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->at("default"), first->at("default"));
  EXPECT_NE(second->at("team-a"), second->at("default"));
  EXPECT_GE(second->at("team-a").size(), 32U);
  EXPECT_EQ(*fabric.TokenOf("team-a"), second->at("team-a"));
  struct stat found {};
  ASSERT_EQ(::stat(fabric.tokens().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0600U);
  const auto unknown = fabric.TokenOf("nobody");
  EXPECT_EQ(unknown.status().code(), StatusCode::kNotFound);
  EXPECT_NE(unknown.status().message().find("team-a"), std::string::npos);
  EXPECT_EQ(unknown.status().message().find(second->at("team-a")), std::string::npos);
}

// Two tokens of a tenant are a rotation under way: both stay, the first is the one in use.
TEST_F(Directory, TokensKeepWhatAPersonWrote) {
  const FabricDirectory fabric = At("x");
  ASSERT_TRUE(fabric.Make().ok());
  const std::string written = "# rotated\nadmin new-token-0\nadmin old-token-0\ndefault d-token-00";
  ASSERT_TRUE(WriteFileAtomically(fabric.tokens(), written, 0600).ok());
  EXPECT_EQ(*fabric.TokenOf("admin"), "new-token-0");
  const auto all = fabric.EnsureTokens({"default", "admin", "team-a"});
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  EXPECT_EQ(all->size(), 3U);
  EXPECT_EQ(*ReadFile(fabric.tokens()), written + "\nteam-a " + all->at("team-a") + "\n");
}

TEST_F(Directory, SocketPathsFitWhateverTheDirectory) {
  const FabricDirectory deep = At(std::string(90, 'd'));
  const std::string socket = deep.agent_socket("node-1").string();
  EXPECT_LT(socket.size(), 108U);
  EXPECT_NE(socket, deep.agent_socket("node-2").string());
  EXPECT_EQ(socket, At(std::string(90, 'd')).agent_socket("node-1").string());
  EXPECT_NE(socket, At(std::string(90, 'e')).agent_socket("node-1").string());
  EXPECT_LT(deep.agent_socket(std::string(200, 'n')).string().size(), 108U);
  const FabricDirectory flat = *FabricDirectory::At("/tmp/x/");
  EXPECT_EQ(flat.agent_socket("n"), "/tmp/x/agents/n/agent.sock");
}

TEST_F(Directory, RefusesWhatItCannotUse) {
  ASSERT_TRUE(WriteFileAtomically(temp_.path() / "file", "", 0600).ok());
  EXPECT_FALSE(At("file").Make().ok());
  EXPECT_FALSE(FabricDirectory::At("/proc/nowhere")->Make().ok());
}

}  // namespace
}  // namespace kvfabric::cli
