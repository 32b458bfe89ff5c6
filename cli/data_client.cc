#include "cli/data_client.h"

#include <map>

#include "cli/fabric_directory.h"
#include "cli/local_fabric.h"
#include "cli/pool_files.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace kvfabric::cli {
namespace {

Result<std::string> FingerprintOf(const std::vector<std::string>& fields) {
  std::map<std::string, std::string> pairs;
  for (const std::string& field : fields) {
    const auto equals = field.find('=');
    if (equals == std::string::npos)
      return InvalidArgument("--fingerprint " + field +
                             ": must be NAME=VALUE, e.g. --fingerprint model=llama-3-8b");
    pairs[field.substr(0, equals)] = field.substr(equals + 1);
  }
  if (pairs.empty()) pairs["client"] = "kvctl";
  return EncodeFingerprint(pairs);
}

Result<std::string> FromHex(const std::string& text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = digit(text[i]);
    const int low = digit(text[i + 1]);
    if (high < 0 || low < 0) break;
    bytes.push_back(static_cast<char>(high * 16 + low));
  }
  if (text.empty() || bytes.size() * 2 != text.size())
    return InvalidArgument("key " + text + ": --hex takes pairs of hexadecimal digits");
  return bytes;
}

}  // namespace

void AddDataOptions(DataOptions& options, Command& command) {
  const auto add = [&](const char* names, Option::Target target, const char* help) {
    command.options.push_back(
        {.names = names, .target = target, .help = help, .required = false, .choices = {}});
  };
  command.options.push_back(DirectoryOption(&options.directory));
  add("--pool", &options.pool, "NAMESPACE/NAME of the pool (default: the only one)");
  add("--tenant", &options.tenant, "whose keys they are");
  add("--node", &options.node, "ask this node's agent (default: the first that runs)");
  add("--fingerprint", &options.fingerprint,
      "NAME=VALUE of the namespace's fingerprint, repeatable (default: client=kvctl)");
  add("--hex", &options.hex, "keys are hexadecimal");
  add("--timeout", &options.timeout_s, "seconds to wait for an answer");
}

std::string NoAnswer(const DataOptions& options) {
  return "no agent answered within " + FormatNumber(options.timeout_s, 1) +
         " s: see kvctl status whether one runs, or wait longer with --timeout";
}

Result<std::unique_ptr<Client>> OpenDataClient(const DataOptions& options) {
  KVF_ASSIGN_OR_RETURN(const FabricDirectory directory, FabricDirectory::At(options.directory));
  KVF_ASSIGN_OR_RETURN(const FabricSettings settings, directory.LoadSettings());
  ClientOptions client;
  KVF_ASSIGN_OR_RETURN(client.pool, ChoosePool(directory, options.pool));
  KVF_ASSIGN_OR_RETURN(client.token, directory.TokenOf(options.tenant));
  KVF_ASSIGN_OR_RETURN(client.fingerprint, FingerprintOf(options.fingerprint));
  client.kind = NamespaceKind::kSingle;
  for (const FabricNode& node : settings.nodes) {
    if (options.node.empty() ? StateOf(directory.agent_pid(node.name)) == ProcessState::kRunning
                             : node.name == options.node)
      client.endpoints.push_back("unix:" + directory.agent_socket(node.name).string());
  }
  if (client.endpoints.empty()) {
    if (options.node.empty())
      return Unavailable("no agent runs in " + directory.root().string() +
                         ": kvctl up starts them again");
    return NotFound("node " + options.node + ": not in this fabric: see kvctl node list");
  }
  KVF_ASSIGN_OR_RETURN(std::unique_ptr<Client> opened, Client::Create(std::move(client)));
  KVF_RETURN_IF_ERROR(opened->WaitConnected(options.budget()));
  return opened;
}

Result<Chain> KeysOf(const DataOptions& options, const std::vector<std::string>& keys) {
  std::vector<std::string> bytes;
  for (const std::string& key : keys) {
    if (!options.hex) {
      bytes.push_back(key);
      continue;
    }
    KVF_ASSIGN_OR_RETURN(bytes.emplace_back(), FromHex(key));
  }
  return Chain::Create(std::move(bytes));
}

}  // namespace kvfabric::cli
