#include "operator/kube/api_path.h"

#include <vector>

namespace kvfabric::kube {
namespace {

// The rest of `path` after `prefix`, or nullopt.
std::optional<std::string_view> After(std::string_view path, std::string_view prefix) {
  if (path.substr(0, prefix.size()) != prefix) return std::nullopt;
  return path.substr(prefix.size());
}

std::string PrefixOf(Kind kind) {
  return (TraitsOf(kind).group.empty() ? "/api/" : "/apis/") + ApiVersionOf(kind) + "/";
}

std::vector<std::string> Split(std::string_view path) {
  std::vector<std::string> out;
  for (;;) {
    const std::size_t slash = path.find('/');
    out.emplace_back(path.substr(0, slash));
    if (slash == std::string_view::npos) return out;
    path.remove_prefix(slash + 1);
  }
}

// `parts` = what follows the group and version.
std::optional<ApiPath> ParseParts(const KindTraits& traits, std::vector<std::string> parts) {
  ApiPath out;
  out.kind = traits.kind;
  if (traits.namespaced && parts.size() >= 3 && parts[0] == "namespaces") {
    out.ns = parts[1];
    if (!IsDnsLabel(out.ns)) return std::nullopt;
    parts.erase(parts.begin(), parts.begin() + 2);
  }
  if (parts.empty() || parts[0] != traits.plural || parts.size() > 3) return std::nullopt;
  if (parts.size() == 1) return out;
  // An object of a namespaced kind has a namespace.
  if (traits.namespaced && out.ns.empty()) return std::nullopt;
  out.name = parts[1];
  if (!IsDnsSubdomain(out.name)) return std::nullopt;
  out.status = parts.size() == 3;
  if (out.status && (parts[2] != "status" || !traits.has_status)) return std::nullopt;
  return out;
}

}  // namespace

std::optional<ApiPath> ParseApiPath(std::string_view path) {
  for (const KindTraits& traits : AllKinds()) {
    const std::optional<std::string_view> rest = After(path, PrefixOf(traits.kind));
    if (!rest.has_value()) continue;
    if (std::optional<ApiPath> parsed = ParseParts(traits, Split(*rest))) return parsed;
  }
  return std::nullopt;
}

std::string FormatApiPath(const ApiPath& path) {
  std::string out = PrefixOf(path.kind);
  if (!path.ns.empty()) out += "namespaces/" + path.ns + "/";
  out += TraitsOf(path.kind).plural;
  if (!path.name.empty()) out += "/" + path.name;
  if (path.status) out += "/status";
  return out;
}

}  // namespace kvfabric::kube
