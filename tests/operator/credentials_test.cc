#include "operator/kube/credentials.h"

#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <thread>

#include "operator/kube/child_output.h"
#include "operator/kube/timestamp.h"
#include "operator/kube/tls_identity.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temp_dir.h"

namespace kvfabric::kube {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

class CredentialsTest : public ::testing::Test {
 protected:
  std::filesystem::path Write(const char* name, const std::string& text) {
    const auto path = dir_.path() / name;
    std::ofstream(path, std::ios::trunc) << text;
    return path;
  }
  // A program that counts its runs in `runs` and then does what `body` says.
  ExecConfig Plugin(const std::string& body) {
    const auto path = Write(
        "plugin", "#!/bin/sh\necho x >> '" + (dir_.path() / "runs").string() + "'\n" + body + "\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    ExecConfig config;
    config.api_version = "client.authentication.k8s.io/v1";
    config.command = path.string();
    return config;
  }
  static std::string Answer(const std::string& status) {
    return R"(echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",)"
           R"("status":{)" +
           status + "}}'";
  }
  std::unique_ptr<Credentials> Make(CredentialConfig config) {
    auto made = Credentials::Create(std::move(config), clock_);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return std::move(made).value();
  }
  std::string Bearer(Credentials& credentials) {
    const auto proof = credentials.Get();
    EXPECT_TRUE(proof.ok()) << proof.status().ToString();
    return proof.ok() ? proof->authorization : "";
  }

  TempDir dir_;
  FakeClock clock_;
};

// Kubelet replaces a token when 80 % of its life is over; we live for days.
TEST_F(CredentialsTest, TokensOfTenMinutesAreFreshForAWholeDay) {
  CredentialConfig config;
  config.token_file = Write("token", "token-0\n");
  const auto credentials = Make(config);
  for (int written = 1; written <= 24 * 60 / 8; ++written) {
    Write("token", "  token-" + std::to_string(written) + "\r\n");
    for (int minute = 0; minute < 8; ++minute) {
      clock_.Advance(minutes(1));
      ASSERT_EQ(Bearer(*credentials), "Bearer token-" + std::to_string(written));
    }
    EXPECT_EQ(credentials->TokenAge(), minutes(7)) << "since it was seen to change";
  }
}

TEST_F(CredentialsTest, FileIsNotReadForEveryRequest) {
  CredentialConfig config;
  config.token_file = Write("token", "old");
  const auto credentials = Make(config);
  Write("token", "new");
  clock_.Advance(seconds(49));
  EXPECT_EQ(Bearer(*credentials), "Bearer old");
  clock_.Advance(seconds(1));
  EXPECT_EQ(Bearer(*credentials), "Bearer new");
}

TEST_F(CredentialsTest, UnreadableEmptyOrStrangeFileKeepsTheOldToken) {
  CredentialConfig config;
  config.token_file = Write("token", "good");
  const auto credentials = Make(config);
  for (const std::string text : {"", " \n\t ", "two words", "a\nInjected: header", "\x80\x81"}) {
    Write("token", text);
    clock_.Advance(minutes(2));
    EXPECT_EQ(Bearer(*credentials), "Bearer good") << text;
  }
  std::filesystem::remove(config.token_file);
  clock_.Advance(minutes(2));
  EXPECT_EQ(Bearer(*credentials), "Bearer good");
  EXPECT_EQ(credentials->TokenAge(), minutes(12)) << "what tells people that kubelet is stuck";
  Write("token", "newer");
  clock_.Advance(minutes(2));
  EXPECT_EQ(Bearer(*credentials), "Bearer newer");
  EXPECT_EQ(credentials->TokenAge(), seconds(0));
}

TEST_F(CredentialsTest, RefusedTokenIsReadAgainAtOnce) {
  CredentialConfig config;
  config.token_file = Write("token", "old");
  const auto credentials = Make(config);
  const Proof proof = *credentials->Get();
  Write("token", "new");
  EXPECT_TRUE(credentials->Reject(proof));
  EXPECT_EQ(Bearer(*credentials), "Bearer new");
  std::filesystem::remove(config.token_file);
  EXPECT_TRUE(credentials->Reject(*credentials->Get()));
  EXPECT_EQ(Bearer(*credentials), "Bearer new") << "better than none";
}

TEST_F(CredentialsTest, GivenTokenHasNoOther) {
  CredentialConfig config;
  config.token = "fixed";
  const auto credentials = Make(config);
  EXPECT_EQ(Bearer(*credentials), "Bearer fixed");
  EXPECT_FALSE(credentials->Reject(*credentials->Get()));
  EXPECT_EQ(Bearer(*Make({})), "");
  EXPECT_FALSE(Make({})->TokenAge().has_value());
}

TEST_F(CredentialsTest, WhatCannotBeReadAtStartIsSaid) {
  CredentialConfig config;
  config.token_file = dir_.path() / "absent";
  EXPECT_EQ(Credentials::Create(config, clock_).status().code(), StatusCode::kNotFound);
  config.token_file = Write("token", "");
  EXPECT_NE(Credentials::Create(config, clock_).status().message().find("empty"),
            std::string::npos);
  config = {};
  config.ca_file = Write("ca", "no certificate");
  EXPECT_NE(Credentials::Create(config, clock_).status().message().find("certificate-authority"),
            std::string::npos);
}

TEST_F(CredentialsTest, AuthorityIsReadAgainAndNeverHalf) {
  const std::string first = MakeLoopbackIdentity()->certificate_pem;
  const std::string second = MakeLoopbackIdentity()->certificate_pem;
  CredentialConfig config;
  config.ca_file = Write("ca", first);
  const auto credentials = Make(config);
  const auto before = credentials->Get()->tls;
  Write("ca", second.substr(0, 100));
  clock_.Advance(minutes(5));
  EXPECT_EQ(credentials->Get()->tls, before);
  Write("ca", first + second);
  clock_.Advance(minutes(4));
  EXPECT_EQ(credentials->Get()->tls->ca, first);
  clock_.Advance(minutes(1));
  EXPECT_EQ(credentials->Get()->tls->ca, first + second);
}

TEST_F(CredentialsTest, ClientCertificateAndKeyChangeTogether) {
  const TlsIdentity first = *MakeLoopbackIdentity();
  const TlsIdentity second = *MakeLoopbackIdentity();
  CredentialConfig config;
  config.certificate_file = Write("crt", first.certificate_pem);
  config.key_file = Write("key", first.key_pem);
  const auto credentials = Make(config);
  Write("crt", second.certificate_pem);
  clock_.Advance(minutes(5));
  EXPECT_EQ(credentials->Get()->tls->certificate, first.certificate_pem) << "the key is not there";
  Write("key", second.key_pem);
  clock_.Advance(minutes(5));
  EXPECT_EQ(credentials->Get()->tls->certificate, second.certificate_pem);
  EXPECT_EQ(credentials->Get()->tls->key, second.key_pem);
}

TEST_F(CredentialsTest, PluginRunsWhenItsTokenExpires) {
  const std::string expires = FormatTime(clock_.UnixMicros() + 600'000'000);
  CredentialConfig config;
  config.exec = Plugin(Answer(R"("token":"'$(wc -l < ')" + (dir_.path() / "runs").string() +
                              R"(')'","expirationTimestamp":")" + expires + R"(")"));
  const auto credentials = Make(config);
  EXPECT_EQ(Bearer(*credentials), "Bearer 1");
  clock_.Advance(seconds(580));
  EXPECT_EQ(Bearer(*credentials), "Bearer 1");
  clock_.Advance(seconds(11));
  EXPECT_EQ(Bearer(*credentials), "Bearer 2") << "before it is refused";
}

TEST_F(CredentialsTest, RefusedTokenOfAPluginRunsItAgainOnce) {
  CredentialConfig config;
  config.exec =
      Plugin(Answer(R"("token":"'$(wc -l < ')" + (dir_.path() / "runs").string() + R"(')'")"));
  const auto credentials = Make(config);
  const Proof first = *credentials->Get();
  EXPECT_TRUE(credentials->Reject(first));
  EXPECT_EQ(Bearer(*credentials), "Bearer 2");
  EXPECT_TRUE(credentials->Reject(first)) << "late word of the old one";
  EXPECT_EQ(Bearer(*credentials), "Bearer 2");
}

TEST_F(CredentialsTest, PluginGetsArgumentsAndEnvironmentUntouchedByAShell) {
  ExecConfig config = Plugin(R"(test "$1" = 'a b; $(echo "x")' || exit 3
test "$KVF_GIVEN" = '$HOME' || exit 4
test -n "$PATH" || exit 5
case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) ;; *) exit 6 ;; esac
case "$KUBERNETES_EXEC_INFO" in *'"server":"https://h"'*) ;; *) exit 7 ;; esac
case "$KUBERNETES_EXEC_INFO" in *'"certificate-authority-data":"YWJj"'*) ;; *) exit 8 ;; esac
read line && exit 9
)" + Answer(R"("token":"t")"));
  config.args = {R"(a b; $(echo "x"))"};
  config.env = {{"KVF_GIVEN", "$HOME"}};
  config.cluster_json = R"({"server":"https://h"})";
  config.ca_pem = "abc";
  ExecPlugin plugin(config, clock_);
  const auto credential = plugin.Get();
  ASSERT_TRUE(credential.ok()) << credential.status().ToString();
  EXPECT_EQ(credential->token, "t");
}

TEST_F(CredentialsTest, PluginGivesAClientCertificate) {
  const TlsIdentity identity = *MakeLoopbackIdentity();
  const auto lines = [](std::string pem) {
    for (std::size_t at = 0; (at = pem.find('\n', at)) != std::string::npos; at += 2) {
      pem.replace(at, 1, "\\n");
    }
    return pem;
  };
  const auto file = Write("answer", R"({"apiVersion":"client.authentication.k8s.io/v1","kind":)"
                                    R"("ExecCredential","status":{"clientCertificateData":")" +
                                        lines(identity.certificate_pem) + R"(","clientKeyData":")" +
                                        lines(identity.key_pem) + R"("}})");
  CredentialConfig config;
  config.exec = Plugin("cat '" + file.string() + "'");
  const auto credentials = Make(config);
  const auto proof = credentials->Get();
  ASSERT_TRUE(proof.ok()) << proof.status().ToString();
  EXPECT_EQ(proof->tls->certificate, identity.certificate_pem);
  EXPECT_EQ(proof->authorization, "");
}

TEST_F(CredentialsTest, FaultsOfAPluginSayWhatToDo) {
  const auto fault = [&](ExecConfig config) {
    ExecPlugin plugin(std::move(config), clock_, {.deadline = std::chrono::milliseconds(5000)});
    const auto credential = plugin.Get();
    EXPECT_FALSE(credential.ok());
    return credential.status();
  };
  Status status = fault(Plugin("echo 'log in first' >&2; exit 7"));
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_NE(status.message().find("exit code 7: log in first"), std::string::npos);
  EXPECT_NE(fault(Plugin("echo hello")).message().find("no JSON"), std::string::npos);
  EXPECT_NE(fault(Plugin(Answer(""))).message().find("neither"), std::string::npos);
  EXPECT_NE(fault(Plugin(Answer(R"("token":"a b")"))).message().find("characters"),
            std::string::npos);
  EXPECT_NE(fault(Plugin(Answer(R"("token":"a","expirationTimestamp":"soon")")))
                .message()
                .find("no time"),
            std::string::npos);
  ExecConfig other = Plugin(Answer(R"("token":"t")"));
  other.api_version = "client.authentication.k8s.io/v1beta1";
  EXPECT_NE(fault(other).message().find("kubeconfig says"), std::string::npos);
  ExecConfig absent;
  absent.command = "kvfabric-no-such-plugin";
  absent.install_hint = "install it from x";
  status = fault(absent);
  EXPECT_NE(status.message().find("kvfabric-no-such-plugin: No such file"), std::string::npos);
  EXPECT_NE(status.message().find("install it from x"), std::string::npos);
}

TEST_F(CredentialsTest, FailingPluginIsNotRunForEveryRequest) {
  ExecPlugin plugin(Plugin("exit 1"), clock_);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(plugin.Get().ok());
  EXPECT_EQ(plugin.runs(), 1U);
  clock_.Advance(seconds(6));
  EXPECT_FALSE(plugin.Get().ok());
  EXPECT_EQ(plugin.runs(), 2U);
}

TEST_F(CredentialsTest, ManyRequestsShareOneRun) {
  ExecPlugin plugin(Plugin(Answer(R"("token":"t")")), clock_);
  std::vector<std::future<bool>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(std::async(std::launch::async, [&] { return plugin.Get().ok(); }));
  }
  for (auto& call : calls) EXPECT_TRUE(call.get());
  EXPECT_EQ(plugin.runs(), 1U);
}

// With a grandchild that holds the pipe, and with nothing to read.
TEST_F(CredentialsTest, PluginThatHangsIsKilledWithItsChildren) {
  for (const char* body : {"sleep 1000 & sleep 1000", "exec >&- 2>&-; sleep 1000"}) {
    ExecPlugin plugin(Plugin(body), clock_, {.deadline = std::chrono::milliseconds(100)});
    EXPECT_EQ(plugin.Get().status().code(), StatusCode::kDeadlineExceeded) << body;
  }
}

TEST_F(CredentialsTest, PluginThatFloodsIsKilled) {
  ChildCommand command;
  command.argv = {"yes"};
  command.max_out_bytes = 10'000;
  EXPECT_EQ(RunChild(command).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(CredentialsTest, StopEndsAPluginThatRuns) {
  ExecPlugin plugin(Plugin("sleep 1000"), clock_);
  auto call = std::async(std::launch::async, [&] { return plugin.Get().status(); });
  while (plugin.runs() == 0) std::this_thread::yield();
  plugin.Stop();
  EXPECT_FALSE(call.get().ok());
  EXPECT_EQ(plugin.Get().status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace kvfabric::kube
