#include "agent/service/agent_config.h"

#include <arpa/inet.h>
#include <sys/un.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace kvfabric {

namespace {

constexpr std::uint64_t kMinArenaBytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t kMaxArenaBytes = std::uint64_t{1} << 50U;
constexpr std::size_t kMaxShownValue = 80;
constexpr std::size_t kMaxNameBytes = 253;  // of a Kubernetes node name

class Faults {
 public:
  void Add(const std::string& path, const std::string& value, const std::string& rule) {
    if (text_.size() > AgentConfig::kMaxTextBytes) return;
    if (!text_.empty()) text_ += '\n';
    text_ +=
        "config: " + path + ": " + (value.empty() ? std::string() : Quote(value) + ": ") + rule;
  }
  bool empty() const { return text_.empty(); }
  const std::string& text() const { return text_; }

 private:
  static std::string Quote(const std::string& value) {
    std::string shown = "\"";
    for (const char c : value.substr(0, kMaxShownValue)) {
      shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    }
    return shown + (value.size() > kMaxShownValue ? "...\"" : "\"");
  }

  std::string text_;
};

// One mapping of the document. Each known key is taken once; Finish reports the others.
class Section {
 public:
  Section(YAML::Node node, std::string prefix, Faults& faults)
      : node_(std::move(node)), prefix_(std::move(prefix)), faults_(faults) {
    if (node_.IsDefined() && !node_.IsNull() && !node_.IsMap()) {
      faults_.Add(prefix_.empty() ? "(document)" : prefix_.substr(0, prefix_.size() - 1),
                  Text(node_), "must be a mapping: write `key: value` lines");
      node_ = YAML::Node();
    }
  }

  // The scalar text of `key`; nullopt when it is not there.
  std::optional<std::string> Take(const std::string& key) {
    known_.push_back(key);
    const YAML::Node found = Find(key);
    if (!found.IsDefined() || found.IsNull()) return std::nullopt;
    if (!found.IsScalar()) {
      faults_.Add(prefix_ + key, "", "must be a single value: write `" + key + ": VALUE`");
      return std::nullopt;
    }
    return found.Scalar();
  }

  Section TakeSection(const std::string& key) {
    known_.push_back(key);
    return {Find(key), prefix_ + key + ".", faults_};
  }

  void Finish() {
    if (!node_.IsMap()) return;
    std::set<std::string> seen;
    for (const auto& entry : node_) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?";
      if (!seen.insert(key).second) {
        faults_.Add(prefix_ + key, "", "stands twice: keep one");
      } else if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        faults_.Add(prefix_ + key, "", "unknown key: remove it, or use one of " + Known());
      }
    }
  }

  void Fault(const std::string& key, const std::string& value, const std::string& rule) {
    faults_.Add(prefix_ + key, value, rule);
  }

 private:
  YAML::Node Find(const std::string& key) const {
    if (!node_.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
    for (const auto& entry : node_) {
      if (entry.first.IsScalar() && entry.first.Scalar() == key) return entry.second;
    }
    return YAML::Node(YAML::NodeType::Undefined);
  }
  static std::string Text(const YAML::Node& node) { return node.IsScalar() ? node.Scalar() : ""; }
  std::string Known() const {
    std::string list;
    for (const std::string& key : known_) list += (list.empty() ? "" : ", ") + key;
    return list;
  }

  YAML::Node node_;
  std::string prefix_;
  Faults& faults_;
  std::vector<std::string> known_;
};

std::optional<std::uint64_t> ParseNumber(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// Bytes as Kubernetes writes quantities: 1073741824, 1Gi, 1G.
std::optional<std::uint64_t> ParseQuantity(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, std::uint64_t>, 8> kUnits = {{
      {"Ki", 1ULL << 10U},
      {"Mi", 1ULL << 20U},
      {"Gi", 1ULL << 30U},
      {"Ti", 1ULL << 40U},
      {"k", 1'000ULL},
      {"M", 1'000'000ULL},
      {"G", 1'000'000'000ULL},
      {"T", 1'000'000'000'000ULL},
  }};
  std::uint64_t unit = 1;
  for (const auto& [suffix, factor] : kUnits) {
    if (text.size() > suffix.size() && text.substr(text.size() - suffix.size()) == suffix) {
      text.remove_suffix(suffix.size());
      unit = factor;
      break;
    }
  }
  const std::optional<std::uint64_t> number = ParseNumber(text);
  if (!number || *number > std::numeric_limits<std::uint64_t>::max() / unit) return std::nullopt;
  return *number * unit;
}

bool IsNodeName(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  const auto alphanumeric = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return alphanumeric(name.front()) && alphanumeric(name.back()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return alphanumeric(c) || c == '-' || c == '.'; });
}

std::optional<ListenAddress> ParseAddress(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = text.substr(0, colon);
  const std::optional<std::uint64_t> port = ParseNumber(std::string_view(text).substr(colon + 1));
  if (!port || *port > 65'535) return std::nullopt;
  std::array<std::byte, sizeof(in6_addr)> address{};
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    if (::inet_pton(AF_INET6, host.c_str(), address.data()) != 1) return std::nullopt;
  } else if (::inet_pton(AF_INET, host.c_str(), address.data()) != 1) {
    return std::nullopt;
  }
  return ListenAddress{host, static_cast<std::uint16_t>(*port)};
}

// `missing` is what a required path's fault says; empty = optional.
void TakePath(Section& section, const std::string& key, const std::string& missing,
              std::string& to) {
  const std::optional<std::string> text = section.Take(key);
  if (!text) {
    if (!missing.empty()) section.Fault(key, "", "is required: write " + missing);
    return;
  }
  if (text->empty() || text->front() != '/' || text->find('\0') != std::string::npos) {
    section.Fault(key, *text, "must be an absolute path: write /DIR/NAME");
    return;
  }
  to = *text;
}

void TakeListen(Section& listen, const std::string& key, bool loopback_only, ListenAddress& to) {
  const std::optional<std::string> text = listen.Take(key);
  if (!text) return;
  const std::optional<ListenAddress> address = ParseAddress(*text);
  const std::string example = FormatAddress({"127.0.0.1", to.port});
  if (!address) {
    listen.Fault(
        key, *text,
        "must be ADDRESS:PORT with a numeric address and a port from 0 to 65535: write " + example);
    return;
  }
  if (loopback_only && !IsLoopback(address->host)) {
    listen.Fault(key, *text,
                 "must be a loopback address, as localMode serves clients in clear: write " +
                     example + ", or localMode: false with tls.bootstrapDir");
    return;
  }
  to = *address;
}

void DecodeDram(Section dram, AgentConfig& config) {
  if (const auto text = dram.Take("arenaBytes"); !text) {
    dram.Fault("arenaBytes", "", "is required: write the memory this node offers, e.g. 1Gi");
  } else if (const auto bytes = ParseQuantity(*text);
             !bytes || *bytes < kMinArenaBytes || *bytes > kMaxArenaBytes) {
    dram.Fault("arenaBytes", *text,
               "must be bytes from 1Mi to 1024Ti, as an integer or with Ki, Mi, Gi, Ti: write 1Gi");
  } else {
    config.arena_bytes = *bytes;
  }
  dram.Finish();
}

void DecodeNames(Section& top, AgentConfig& config) {
  if (const auto text = top.Take("nodeName"); !text) {
    top.Fault("nodeName", "", "is required: write the name of this node, e.g. node-0");
  } else if (!IsNodeName(*text)) {
    top.Fault("nodeName", *text,
              "must be 1 to 253 of a-z, 0-9, '-' and '.', starting and ending with a letter or "
              "digit: write e.g. node-0");
  } else {
    config.node_name = *text;
  }
  if (const auto text = top.Take("zone"); text) {
    if (text->size() > 63 || text->find_first_of("\n\r") != std::string::npos) {
      top.Fault("zone", *text, "must be one line of at most 63 bytes: write e.g. zone-a");
    } else {
      config.zone = *text;
    }
  }
}

void DecodePaths(Section& top, AgentConfig& config) {
  TakePath(top, "stateDir", "a directory of this agent alone", config.state_dir);
  TakePath(top, "tokensFile", "the file of `tenant token` lines", config.tokens_file);
  TakePath(top, "socketPath", "", config.socket_path);
  if (config.socket_path.empty() && !config.state_dir.empty()) {
    config.socket_path = config.state_dir + "/agent.sock";
  }
  // A Unix socket's name has 108 bytes, the last of them 0.
  if (config.socket_path.size() >= sizeof(sockaddr_un::sun_path)) {
    top.Fault("socketPath", config.socket_path,
              "must have at most 107 bytes (default: stateDir/agent.sock): write a shorter path");
  }
}

void DecodeMode(Section& top, AgentConfig& config) {
  Section tls = top.TakeSection("tls");
  TakePath(tls, "bootstrapDir", "", config.tls_bootstrap_dir);
  tls.Finish();
  const auto text = top.Take("localMode");
  if (!text) return;
  if (*text != "true" && *text != "false") {
    top.Fault("localMode", *text, "must be true or false: write true, or leave it out");
  } else if (*text == "false" && config.tls_bootstrap_dir.empty()) {
    top.Fault("localMode", *text, "needs TLS: write tls.bootstrapDir too, or leave it out");
  } else {
    config.local_mode = *text == "true";
  }
}

AgentConfig Decode(const YAML::Node& document, Faults& faults) {
  AgentConfig config;
  Section top(document, "", faults);
  DecodeNames(top, config);
  DecodePaths(top, config);
  DecodeMode(top, config);
  Section listen = top.TakeSection("listen");
  TakeListen(listen, "grpc", config.local_mode, config.grpc);
  TakeListen(listen, "bulk", config.local_mode, config.bulk);
  TakeListen(listen, "http", false, config.http);
  listen.Finish();
  DecodeDram(top.TakeSection("dram"), config);

  Section log = top.TakeSection("log");
  if (const auto text = log.Take("level"); text && !ParseLogLevel(*text, &config.log_level)) {
    log.Fault("level", *text, "must be debug, info, warn or error: write info");
  }
  log.Finish();
  if (const auto text = top.Take("workers"); text) {
    const auto workers = ParseNumber(*text);
    if (!workers || *workers < 1 || *workers > 256) {
      top.Fault("workers", *text, "must be an integer from 1 to 256: write 2");
    } else {
      config.workers = static_cast<std::uint32_t>(*workers);
    }
  }
  top.Finish();
  return config;
}

}  // namespace

Result<AgentConfig> ParseAgentConfig(std::string_view yaml) {
  if (yaml.size() > AgentConfig::kMaxTextBytes) {
    return InvalidArgument("config: " + std::to_string(yaml.size()) + " bytes (limit " +
                           std::to_string(AgentConfig::kMaxTextBytes) + "): write a shorter file");
  }
  Faults faults;
  AgentConfig config;
  try {
    config = Decode(YAML::Load(std::string(yaml)), faults);
  } catch (const YAML::Exception& error) {
    return InvalidArgument("config: line " + std::to_string(error.mark.line + 1) + ", column " +
                           std::to_string(error.mark.column + 1) + ": not YAML: " + error.msg +
                           ": correct this line");
  }
  if (!faults.empty()) return InvalidArgument(faults.text());
  return config;
}

Result<AgentConfig> LoadAgentConfig(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const Status why = ErrnoStatus(errno, "config: open " + path);
    return Status(why.code(),
                  why.message() + ": write agent.yaml there, readable to the agent's user");
  }
  std::string text(AgentConfig::kMaxTextBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return ErrnoStatus(errno, "config: read " + path);
  text.resize(static_cast<std::size_t>(file.gcount()));
  Result<AgentConfig> config = ParseAgentConfig(text);
  if (!config.ok()) return config.status().WithContext(path);
  return config;
}

std::string FormatAddress(const ListenAddress& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

bool IsLoopback(const std::string& host) { return host == "::1" || host.rfind("127.", 0) == 0; }

}  // namespace kvfabric
