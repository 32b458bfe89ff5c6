#include "operator/kube/json.h"

#include <nlohmann/json.hpp>

#include "operator/kube/object.h"

namespace kvfabric::kube {
namespace {

// The deepest nesting of brackets outside strings. The parser itself is not recursive, but
// writing and comparing a value are, so depth is bounded before a value exists.
std::size_t NestingOf(std::string_view text) {
  std::size_t depth = 0;
  std::size_t deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<Json> ParseJson(std::string_view text) {
  if (text.size() > kMaxObjectBytes) {
    return InvalidArgument("json: parse: too long (" + std::to_string(text.size()) +
                           " bytes, limit " + std::to_string(kMaxObjectBytes) + ")");
  }
  if (NestingOf(text) > kMaxJsonDepth) {
    return InvalidArgument("json: parse: nested too deep (limit " + std::to_string(kMaxJsonDepth) +
                           ")");
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& e) {
    return InvalidArgument(std::string("json: parse: ") + e.what());
  }
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const Json* Find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

std::string StringAt(const Json& object, std::string_view key) {
  const Json* value = Find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

}  // namespace kvfabric::kube
