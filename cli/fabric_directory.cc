#include "cli/fabric_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "cli/files.h"
#include "common/bytes.h"
#include "common/checksum.h"
#include "common/clock.h"

namespace kvfabric::cli {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kLockBudget{30};

Status MakePrivateDirectory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory.parent_path(), error);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return ErrnoStatus(errno, directory.string() + ": make directory");
  struct stat found {};
  if (::stat(directory.c_str(), &found) != 0)
    return ErrnoStatus(errno, directory.string() + ": stat");
  if (!S_ISDIR(found.st_mode))
    return FailedPrecondition(directory.string() + ": is not a directory: name another with --dir");
  if (found.st_uid != ::geteuid())
    return PermissionDenied(directory.string() + ": belongs to another user: name another");
  if (::access(directory.c_str(), R_OK | W_OK | X_OK) != 0)
    return ErrnoStatus(errno, directory.string() + ": not writable: name another with --dir");
  return Status::Ok();
}

Result<std::string> FreshToken() {
  std::array<std::byte, 24> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return ErrnoStatus(errno, "getrandom");
  return ToHex(random);
}

Result<Json> ParseFile(const std::filesystem::path& file) {
  KVF_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  Json parsed = Json::parse(text, nullptr, false);
  if (!parsed.is_object())
    return DataLoss(file.string() + ": is not a JSON object: remove it and run kvctl up again");
  return parsed;
}

// The port of `HOST:PORT`; 0 where there is none.
std::uint16_t PortOf(const std::string& address) {
  const auto colon = address.rfind(':');
  unsigned port = 0;
  const char* const end = address.data() + address.size();
  if (colon == std::string::npos ||
      std::from_chars(address.data() + colon + 1, end, port).ptr != end || port > 65'535)
    return 0;
  return static_cast<std::uint16_t>(port);
}

}  // namespace

const FabricNode* FabricSettings::Find(const std::string& name) const {
  for (const FabricNode& node : nodes) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

FabricNode* FabricSettings::Find(const std::string& name) {
  for (FabricNode& node : nodes) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

Result<FabricDirectory> FabricDirectory::At(const std::string& path) {
  std::filesystem::path root = path;
  if (path.empty()) {
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home == '\0')
      return FailedPrecondition("HOME is not set: name the fabric's directory with --dir");
    root = std::filesystem::path(home) / ".kvfabric";
  }
  std::error_code error;
  root = std::filesystem::absolute(root, error).lexically_normal();
  if (error) return InvalidArgument(path + ": " + error.message());
  if (!root.has_filename()) root = root.parent_path();  // a trailing slash
  return FabricDirectory(root);
}

Status FabricDirectory::Make() const {
  KVF_RETURN_IF_ERROR(MakePrivateDirectory(root_));
  KVF_RETURN_IF_ERROR(MakePrivateDirectory(root_ / "agents"));
  KVF_RETURN_IF_ERROR(MakePrivateDirectory(pools()));
  return Status::Ok();
}

Result<UniqueFd> FabricDirectory::Lock() const {
  const std::filesystem::path file = root_ / "kvctl.lock";
  UniqueFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return ErrnoStatus(errno, file.string() + ": open");
  const Deadline deadline = Deadline::After(Clock::System(), kLockBudget);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoStatus(errno, file.string() + ": lock");
    if (deadline.Passed(Clock::System()))
      return Unavailable(root_.string() + ": another kvctl has been changing it for 30 s");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // flock has no deadline
  }
  return fd;
}

Result<FabricSettings> FabricDirectory::LoadSettings() const {
  Result<Json> json = ParseFile(settings());
  if (!json.ok()) {
    if (json.status().code() != StatusCode::kNotFound) return json.status();
    return NotFound(root_.string() + ": no fabric here: start one with kvctl up -f POOL.yaml" +
                    " --agents 3 --dir " + root_.string());
  }
  FabricSettings settings;
  try {
    settings.arena_bytes = json->at("arenaBytes").get<std::uint64_t>();
    settings.zones = json->at("zones").get<std::uint32_t>();
    settings.next_node = json->at("nextNode").get<std::uint32_t>();
    for (const Json& node : json->at("nodes")) {
      settings.nodes.push_back({.name = node.at("name").get<std::string>(),
                                .zone = node.at("zone").get<std::string>(),
                                .ports = {.grpc = node.at("grpc").get<std::uint16_t>(),
                                          .bulk = node.at("bulk").get<std::uint16_t>(),
                                          .http = node.at("http").get<std::uint16_t>()}});
    }
  } catch (const Json::exception& error) {
    return DataLoss(this->settings().string() + ": " + error.what() +
                    ": mend this field, or remove the file and run kvctl up -f POOL.yaml again");
  }
  return settings;
}

Status FabricDirectory::SaveSettings(const FabricSettings& settings) const {
  Json nodes = Json::array();
  for (const FabricNode& node : settings.nodes)
    nodes.push_back({{"name", node.name},
                     {"zone", node.zone},
                     {"grpc", node.ports.grpc},
                     {"bulk", node.ports.bulk},
                     {"http", node.ports.http}});
  const Json json = {{"arenaBytes", settings.arena_bytes},
                     {"zones", settings.zones},
                     {"nextNode", settings.next_node},
                     {"nodes", nodes}};
  return WriteFileAtomically(this->settings(), json.dump(2) + "\n", 0600);
}

namespace {

// The first token of each tenant; a second one is on its way in or out.
std::map<std::string, std::string> ParseTokens(const std::string& text) {
  std::map<std::string, std::string> tokens;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string tenant, token;
    if (words >> tenant >> token && tenant.front() != '#') tokens.emplace(tenant, token);
  }
  return tokens;
}

}  // namespace

Result<std::map<std::string, std::string>> FabricDirectory::EnsureTokens(
    const std::vector<std::string>& tenants) const {
  const Result<std::string> text = ReadFile(tokens());
  if (!text.ok() && text.status().code() != StatusCode::kNotFound) return text.status();
  std::map<std::string, std::string> known = ParseTokens(text.value_or(""));
  std::string lines = text.value_or("");
  if (!lines.empty() && lines.back() != '\n') lines += '\n';
  const std::size_t before = known.size();
  for (const std::string& tenant : tenants) {
    if (known.contains(tenant)) continue;
    KVF_ASSIGN_OR_RETURN(known[tenant], FreshToken());
    lines.append(tenant).append(" ").append(known[tenant]) += '\n';
  }
  if (known.size() != before) KVF_RETURN_IF_ERROR(WriteFileAtomically(tokens(), lines, 0600));
  return known;
}

Result<std::string> FabricDirectory::TokenOf(const std::string& tenant) const {
  KVF_ASSIGN_OR_RETURN(const std::string text, ReadFile(tokens()));
  const auto known = ParseTokens(text);
  const auto found = known.find(tenant);
  if (found != known.end()) return found->second;
  std::string names;
  for (const auto& entry : known) names.append(names.empty() ? "" : ", ").append(entry.first);
  return NotFound("tenant " + tenant + ": has no token in " + tokens().string() +
                  " (there are: " + names + ")");
}

Result<AgentRun> FabricDirectory::ReadAgentRun(const std::string& node) const {
  KVF_ASSIGN_OR_RETURN(const Json json, ParseFile(agent_json(node)));
  AgentRun run;
  try {
    run.process.pid = json.at("pid").get<pid_t>();
    run.process.start_ticks = json.at("start_time").get<std::uint64_t>();
    run.ports = {.grpc = PortOf(json.at("grpc").get<std::string>()),
                 .bulk = PortOf(json.at("bulk").get<std::string>()),
                 .http = PortOf(json.at("http").get<std::string>())};
  } catch (const Json::exception& error) {
    return DataLoss(agent_json(node).string() + ": " + error.what() +
                    ": the agent writes it at start: kvctl node kill " + node +
                    ", then kvctl node add " + node);
  }
  return run;
}

std::filesystem::path FabricDirectory::short_directory() const {
  const std::string digest = std::to_string(Hash64(AsBytes(root_.string())));
  return std::filesystem::path("/tmp") / ("kvfabric-" + std::to_string(::geteuid()) + "-" + digest);
}

std::filesystem::path FabricDirectory::agent_socket(const std::string& node) const {
  const std::filesystem::path socket = agent(node) / "agent.sock";
  if (socket.string().size() < sizeof(sockaddr_un::sun_path)) return socket;
  // The name may be too long as well.
  return short_directory() / (std::to_string(Hash64(AsBytes(node))) + ".sock");
}

Status FabricDirectory::MakeAgentDirectories(const std::string& node) const {
  KVF_RETURN_IF_ERROR(MakePrivateDirectory(agent(node)));
  KVF_RETURN_IF_ERROR(MakePrivateDirectory(agent_state(node)));
  if (agent_socket(node).parent_path() == short_directory())
    KVF_RETURN_IF_ERROR(MakePrivateDirectory(short_directory()));
  return Status::Ok();
}

}  // namespace kvfabric::cli
