#include "agent/tier/memory_check.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace kvfabric {

namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// The number that follows `name` at the start of a line.
std::optional<std::uint64_t> FigureAfter(std::string_view text, std::string_view name) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    const std::size_t first = line.find_first_not_of(" \t");
    if (first == std::string_view::npos) return std::nullopt;
    return ParseCgroupBytes(line.substr(first));
  }
  return std::nullopt;
}

// Our path in the unified hierarchy: the line `0::/path`.
std::string CgroupPath(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("0::/")) return std::string(line.substr(3));
  }
  return "/";
}

std::string MiB(std::uint64_t bytes) { return std::to_string(bytes >> 20U) + " MiB"; }

}  // namespace

Status CheckMemory(const MemoryNeed& need, const MemoryFigures& figures) {
  const std::uint64_t needed = need.arena_bytes + kProcessOverheadBytes + need.index_bytes;
  std::uint64_t headroom = figures.available_bytes;
  std::string limits = "available " + MiB(figures.available_bytes);
  if (figures.cgroup_limit_bytes.has_value()) {
    const std::uint64_t limit = *figures.cgroup_limit_bytes;
    const std::uint64_t left = limit - std::min(limit, figures.cgroup_used_bytes);
    headroom = std::min(headroom, left);
    limits += ", cgroup limit " + MiB(limit) + " with " + MiB(left) + " left";
  }
  if (needed <= headroom) return Status::Ok();
  return ResourceExhausted("memory: start: too little for the configured caps (need " +
                           MiB(needed) + " = arenas " + MiB(need.arena_bytes) + " + index " +
                           MiB(need.index_bytes) + " + " + MiB(kProcessOverheadBytes) + "; " +
                           limits +
                           "): lower the arena size in agent.yaml or raise the memory limit");
}

std::optional<std::uint64_t> ParseMemAvailable(std::string_view meminfo) {
  const std::optional<std::uint64_t> kib = FigureAfter(meminfo, "MemAvailable:");
  if (!kib.has_value()) return std::nullopt;
  return *kib * 1024;
}

std::optional<std::uint64_t> ParseCgroupBytes(std::string_view text) {
  std::uint64_t bytes = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return bytes;
}

std::uint64_t ParseInactiveFile(std::string_view memory_stat) {
  return FigureAfter(memory_stat, "inactive_file ").value_or(0);
}

MemoryFigures ReadMemoryFigures(const std::string& root) {
  MemoryFigures figures;
  figures.available_bytes = ParseMemAvailable(ReadText(root + "proc/meminfo")).value_or(0);
  std::uint64_t least_left = UINT64_MAX;
  std::string path = CgroupPath(ReadText(root + "proc/self/cgroup"));
  for (;;) {
    const std::string directory = root + "sys/fs/cgroup" + path + "/";
    const std::optional<std::uint64_t> limit = ParseCgroupBytes(ReadText(directory + "memory.max"));
    if (limit.has_value()) {
      const std::uint64_t current =
          ParseCgroupBytes(ReadText(directory + "memory.current")).value_or(0);
      const std::uint64_t cache = ParseInactiveFile(ReadText(directory + "memory.stat"));
      const std::uint64_t used = current - std::min(current, cache);
      const std::uint64_t left = *limit - std::min(*limit, used);
      if (left < least_left) {
        least_left = left;
        figures.cgroup_limit_bytes = limit;
        figures.cgroup_used_bytes = used;
      }
    }
    const std::size_t slash = path.rfind('/');
    if (path.empty() || path == "/" || slash == std::string::npos) break;
    path.resize(slash);
  }
  return figures;
}

}  // namespace kvfabric
