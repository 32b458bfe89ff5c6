#include "operator/kube/kubeconfig.h"

#include <gtest/gtest.h>

#include <fstream>

#include "operator/kube/pem.h"
#include "operator/kube/tls_identity.h"
#include "tests/fakes/temp_dir.h"

namespace kvfabric::kube {
namespace {

std::string Config(const std::string& cluster, const std::string& user) {
  return "apiVersion: v1\nkind: Config\ncurrent-context: here\n"
         "contexts: [{name: here, context: {cluster: c, user: u, namespace: team}}]\n"
         "clusters: [{name: c, cluster: {" +
         cluster + "}}]\nusers: [{name: u, user: {" + user + "}}]\n";
}
Result<ApiTarget> Parse(const std::string& text, const std::string& context = "") {
  return ParseKubeconfig({{"/etc/kube/config", text}}, context);
}
Status Fault(const std::string& cluster, const std::string& user) {
  return Parse(Config(cluster, user)).status();
}
constexpr const char* kServer = "server: https://h:6443";

TEST(Kubeconfig, ReadsTheCurrentContext) {
  const auto target =
      Parse(Config("server: https://h:6443, tls-server-name: api, proxy-url: socks5://p:1080, "
                   "certificate-authority-data: YWJj",
                   "token: abc"));
  ASSERT_TRUE(target.ok()) << target.status().ToString();
  EXPECT_EQ(target->server, "https://h:6443");
  EXPECT_EQ(target->tls_server_name, "api");
  EXPECT_EQ(target->proxy, "socks5://p:1080");
  EXPECT_EQ(target->ns, "team");
  EXPECT_EQ(target->credentials.ca_pem, "abc");
  EXPECT_EQ(target->credentials.token, "abc");
  EXPECT_FALSE(target->insecure);
}

TEST(Kubeconfig, TakesUntaggedValuesAsText) {
  const auto target = Parse(
      "current-context: 1.10\ncontexts: [{name: 1.10, context: {cluster: 007, user: true}}]\n"
      "clusters: [{name: 007, cluster: {server: https://h, insecure-skip-tls-verify: true}}]\n"
      "users: [{name: true, user: {token: 0123456789}}]\n");
  ASSERT_TRUE(target.ok()) << target.status().ToString();
  EXPECT_EQ(target->credentials.token, "0123456789");
  EXPECT_TRUE(target->insecure);
}

TEST(Kubeconfig, PathsStartAtTheirFileAndDataGoesFirst) {
  const auto target =
      Parse(Config("server: https://h, certificate-authority: ca.crt",
                   "tokenFile: sub/token, token: abc, client-certificate: /abs/crt, "
                   "client-key: key.pem, client-key-data: YWJj"));
  ASSERT_TRUE(target.ok()) << target.status().ToString();
  EXPECT_EQ(target->credentials.ca_file, "/etc/kube/ca.crt");
  EXPECT_EQ(target->credentials.token_file, "/etc/kube/sub/token");
  EXPECT_EQ(target->credentials.certificate_file, "/abs/crt");
  EXPECT_EQ(target->credentials.key_file, "/etc/kube/key.pem");
  EXPECT_EQ(target->credentials.key_pem, "abc");
}

TEST(Kubeconfig, FirstFileThatSaysSomethingWins) {
  const std::vector<KubeconfigText> files = {
      {"/a/one", "users: [{name: u, user: {token: first}}]\n"},
      {"/b/two", "current-context: here\n" + Config(kServer, "token: second, tokenFile: t")},
      {"/c/three",
       "current-context: other\ncontexts: [{name: other, context: {cluster: c, user: v}}]\n"
       "clusters: [{name: c, cluster: {server: https://third}}]\n"
       "users: [{name: v, user: {tokenFile: t}}]\n"}};
  std::vector<KubeconfigText> valid = files;
  valid[1].text = Config(kServer, "token: second, tokenFile: t");
  const auto target = ParseKubeconfig(valid);
  ASSERT_TRUE(target.ok()) << target.status().ToString();
  EXPECT_EQ(target->credentials.token, "first") << "and nothing of the second's user";
  EXPECT_TRUE(target->credentials.token_file.empty());
  const auto other = ParseKubeconfig(valid, "other");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->server, "https://h:6443");
  EXPECT_EQ(other->credentials.token_file, "/c/t");
  EXPECT_FALSE(ParseKubeconfig(files).ok()) << "a key twice in one file";
}

TEST(Kubeconfig, SaysWhatIsWrongAndWhere) {
  const auto expect = [](const Status& status, std::initializer_list<const char*> parts) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    for (const char* part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status.message();
    }
  };
  expect(Fault("x: y", "token: a"), {"/etc/kube/config", "cluster \"c\"", "server: absent"});
  expect(Fault("server: http://h", "token: a"), {"clear text"});
  expect(Fault("server: https://h, insecure-skip-tls-verify: true, certificate-authority: x", ""),
         {"insecure-skip-tls-verify"});
  expect(Fault("server: https://h, insecure-skip-tls-verify: maybe", ""), {"true or false"});
  expect(Fault("server: https://h, certificate-authority-data: '!'", ""),
         {"authority-data", "base64"});
  expect(Fault("server: https://h, proxy-url: ftp://x", ""), {"proxy-url"});
  expect(Fault(kServer, "auth-provider: {name: gcp}"), {"user \"u\"", "auth-provider", "exec"});
  expect(Fault(kServer, "username: me, password: secret-word"), {"username"});
  expect(Fault(kServer, "as: root"), {"as: "});
  expect(Fault(kServer, "client-certificate: x"), {"give both"});
  expect(Fault(kServer, "exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: x}"),
         {"v1alpha1", "newer version"});
  expect(Fault(kServer, "exec: {apiVersion: client.authentication.k8s.io/v1}"), {"command"});
  expect(Fault(kServer,
               "exec: {apiVersion: client.authentication.k8s.io/v1, command: x, "
               "interactiveMode: Always}"),
         {"terminal"});
  expect(Parse("clusters: []\n").status(), {"no current context"});
  expect(Parse(Config(kServer, ""), "nowhere").status(), {"no current context", "nowhere"});
  expect(Parse("current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n").status(),
         {"cluster \"c\"", "nowhere"});
  expect(Parse("clusters: {}\n").status(), {"clusters: must be a list"});
  expect(Parse("clusters: [{name: c}]\n").status(), {"a name and a cluster"});
  expect(Parse("users: [{name: u, user: {}}, {name: u, user: {}}]\n").status(), {"stands twice"});
  expect(Parse("a: b\n---\nc: d\n").status(), {"more than one"});
  expect(Parse("[1\n").status(), {"/etc/kube/config", "line"});
  expect(Parse(std::string((1U << 20U) + 1, ' ')).status(), {"1 MiB"});
  EXPECT_EQ(Fault(kServer, "username: me, password: secret-word").message().find("secret-word"),
            std::string::npos);
}

TEST(Kubeconfig, ReadsExecPlugins) {
  const auto target = Parse(Config(
      "server: https://h, certificate-authority-data: YWJj",
      "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: bin/get, args: [a, 1], "
      "env: [{name: A, value: b}], provideClusterInfo: true, installHint: get it, "
      "interactiveMode: IfAvailable}"));
  ASSERT_TRUE(target.ok()) << target.status().ToString();
  const ExecConfig& exec = *target->credentials.exec;
  EXPECT_EQ(exec.command, "/etc/kube/bin/get");
  EXPECT_EQ(exec.args, (std::vector<std::string>{"a", "1"}));
  EXPECT_EQ(exec.env.at(0), (std::pair<std::string, std::string>{"A", "b"}));
  EXPECT_NE(exec.cluster_json.find("https://h"), std::string::npos);
  const auto named = Parse(Config(
      kServer, "exec: {apiVersion: client.authentication.k8s.io/v1, command: get, args: null}"));
  EXPECT_EQ(named->credentials.exec->command, "get") << "for PATH to find";
  EXPECT_TRUE(named->credentials.exec->cluster_json.empty());
}

TEST(Kubeconfig, ListsFilesAsKubectlDoes) {
  using Paths = std::vector<std::filesystem::path>;
  EXPECT_EQ(KubeconfigFiles("/a::/b:/a", "/home/x"), (Paths{"/a", "/b"}));
  EXPECT_EQ(KubeconfigFiles("", "/home/x"), (Paths{"/home/x/.kube/config"}));
  EXPECT_TRUE(KubeconfigFiles("", "").empty());
  const TempDir dir;
  std::ofstream(dir.path() / "b") << Config(kServer, "tokenFile: t");
  const auto loaded = LoadKubeconfig({dir.path() / "absent", dir.path() / "b"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->credentials.token_file, dir.path() / "t");
  EXPECT_EQ(LoadKubeconfig({dir.path() / "absent"}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(LoadKubeconfig({dir.path() / "x", dir.path() / "y"}).status().code(),
            StatusCode::kNotFound);
}

TEST(InClusterTarget, ReadsWhatAPodFindsMounted) {
  const TempDir dir;
  std::ofstream(dir.path() / "namespace") << "kvfabric-system\n";
  const auto v6 = InClusterTarget({"fd00::1", "443", dir.path()});
  ASSERT_TRUE(v6.ok()) << v6.status().ToString();
  EXPECT_EQ(v6->server, "https://[fd00::1]:443");
  EXPECT_EQ(v6->ns, "kvfabric-system");
  EXPECT_EQ(v6->credentials.token_file, dir.path() / "token");
  EXPECT_EQ(v6->credentials.ca_file, dir.path() / "ca.crt");
  EXPECT_EQ(InClusterTarget({"10.0.0.1", "443", dir.path()})->server, "https://10.0.0.1:443");
  EXPECT_EQ(InClusterTarget({"", "", dir.path()}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(InClusterTarget({"h", "443", dir.path() / "x"}).status().code(), StatusCode::kNotFound);
}

TEST(Pem, Base64GoesBothWays) {
  for (const std::string text : {"", "a", "ab", "abc", "abcd"}) {
    EXPECT_EQ(*DecodeBase64(EncodeBase64(text)), text);
  }
  const std::string zeros(4, '\0');
  EXPECT_EQ(*DecodeBase64(EncodeBase64(zeros)), zeros) << "padding is not data";
  EXPECT_EQ(*DecodeBase64(" YW\nJj \n"), "abc");
  for (const char* text : {"YWJ", "YW!j", "====="}) EXPECT_FALSE(DecodeBase64(text).ok()) << text;
}

TEST(Pem, ChecksCertificatesAndKeys) {
  const TlsIdentity one = *MakeLoopbackIdentity();
  const TlsIdentity two = *MakeLoopbackIdentity();
  EXPECT_TRUE(CheckCertificates(one.certificate_pem + "\n# and\n" + two.certificate_pem).ok());
  EXPECT_FALSE(CheckCertificates("").ok());
  EXPECT_FALSE(CheckCertificates(one.certificate_pem.substr(0, 200)).ok());
  EXPECT_FALSE(CheckCertificates(one.certificate_pem + two.certificate_pem.substr(0, 200)).ok());
  EXPECT_TRUE(CheckKeyPair(one.certificate_pem, one.key_pem).ok());
  EXPECT_FALSE(CheckKeyPair(one.certificate_pem, two.key_pem).ok());
  EXPECT_FALSE(CheckKeyPair(one.certificate_pem, "").ok());
}

}  // namespace
}  // namespace kvfabric::kube
