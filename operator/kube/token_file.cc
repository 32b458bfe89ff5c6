#include "operator/kube/token_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>

#include "common/check.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kMinTokenBytes = 8;
constexpr std::size_t kMaxTokenBytes = 4096;
constexpr std::size_t kMaxLines = 4096;

// "" = a good line, or an empty one.
std::string ReadLine(const std::string& line, Tokens* tokens, std::set<std::string>* seen) {
  std::istringstream words(line);
  std::string tenant;
  std::string token;
  std::string rest;
  words >> tenant >> token >> rest;
  if (tenant.empty() || tenant.front() == '#') return "";
  if (token.empty() || !rest.empty()) return "must be `tenant token`";
  if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) {
    return "the token must have 8 to 4096 characters";
  }
  // It stands between quotes in the kubeconfig.
  if (tenant == "admin" && token.find_first_of("\"\\") != std::string::npos) {
    return "admin's token must not hold quotes or backslashes";
  }
  if (!seen->insert(token).second) {
    return "the token of an earlier line: give each tenant its own";
  }
  tokens->emplace(tenant, token);
  return "";
}

}  // namespace

Result<Tokens> ReadTokenFile(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path.string() + ": read tokens");
  if ((info.st_mode & 0077U) != 0) {
    return PermissionDenied(path.string() + ": read tokens: others may read it; chmod 600 it");
  }
  std::ifstream in(path);
  Tokens tokens;
  std::set<std::string> seen;
  std::string faults;
  std::string line;
  for (std::size_t number = 1; std::getline(in, line) && number <= kMaxLines; ++number) {
    const std::string fault = ReadLine(line, &tokens, &seen);
    if (!fault.empty()) faults += "\n  line " + std::to_string(number) + ": " + fault;
  }
  if (tokens.count("admin") == 0) faults += "\n  no line for admin; add `admin TOKEN`";
  if (!faults.empty()) return InvalidArgument(path.string() + ": read tokens:" + faults);
  return tokens;
}

const std::string& FirstToken(const Tokens& tokens, const std::string& tenant) {
  const auto found = tokens.lower_bound(tenant);
  KVF_CHECK(found != tokens.end() && found->first == tenant, "the tenant has no token");
  return found->second;
}

}  // namespace kvfabric::kube
