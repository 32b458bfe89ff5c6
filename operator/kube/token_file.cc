#include "operator/kube/token_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "operator/kube/object.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kMinTokenBytes = 8;
constexpr std::size_t kMaxLines = 4096;

// "" = a good line, or an empty one.
std::string ReadLine(const std::string& line, std::map<std::string, std::string>* tokens) {
  std::istringstream words(line);
  std::string tenant;
  std::string token;
  std::string rest;
  words >> tenant >> token >> rest;
  if (tenant.empty() || tenant.front() == '#') return "";
  if (token.empty() || !rest.empty()) return "must be `tenant token`";
  if (!IsDnsLabel(tenant)) return "tenant must be lower-case letters, digits and '-'";
  if (token.size() < kMinTokenBytes) return "token must have at least 8 characters";
  if (token.find_first_of("\"\\") != std::string::npos) return "token must not hold quotes";
  if (!tokens->emplace(tenant, token).second) return "tenant " + tenant + " stands twice";
  return "";
}

}  // namespace

Result<std::map<std::string, std::string>> ReadTokenFile(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path.string() + ": read tokens");
  if ((info.st_mode & 0077U) != 0) {
    return PermissionDenied(path.string() + ": read tokens: others may read it; chmod 600 it");
  }
  std::ifstream in(path);
  std::map<std::string, std::string> tokens;
  std::string faults;
  std::string line;
  for (std::size_t number = 1; std::getline(in, line) && number <= kMaxLines; ++number) {
    const std::string fault = ReadLine(line, &tokens);
    if (!fault.empty()) faults += "\n  line " + std::to_string(number) + ": " + fault;
  }
  if (tokens.count("admin") == 0) faults += "\n  no line for admin; add `admin TOKEN`";
  if (!faults.empty()) return InvalidArgument(path.string() + ": read tokens:" + faults);
  return tokens;
}

}  // namespace kvfabric::kube
