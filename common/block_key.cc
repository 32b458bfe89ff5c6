#include "common/block_key.h"

namespace kvfabric {

Result<std::string> EncodeFingerprint(const std::map<std::string, std::string>& fields) {
  std::string text;
  for (const auto& [name, value] : fields) {
    if (name.empty() || name.find_first_of("=\n") != std::string::npos) {
      return InvalidArgument("fingerprint: name '" + name +
                             "' is empty or holds '=' or a line feed");
    }
    if (value.find('\n') != std::string::npos) {
      return InvalidArgument("fingerprint: value of '" + name + "' holds a line feed");
    }
    text.append(name).append("=").append(value).append("\n");
  }
  return text;
}

Status ValidateKey(std::string_view key) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return InvalidArgument("key: " + std::to_string(key.size()) + " bytes (must be 1 to " +
                           std::to_string(kMaxKeyBytes) + ")");
  }
  return Status::Ok();
}

}  // namespace kvfabric
