#include "operator/kube/yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "operator/kube/json.h"
#include "operator/kube/object.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kMaxValues = 100'000;

bool IsOneOf(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool AllDigits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string_view WithoutSign(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  return text;
}

// [-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?
bool IsFloat(std::string_view text) {
  text = WithoutSign(text);
  const std::size_t exponent = text.find_first_of("eE");
  if (exponent != std::string_view::npos) {
    if (!AllDigits(WithoutSign(text.substr(exponent + 1)))) return false;
    text = text.substr(0, exponent);
  }
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos) return AllDigits(text);
  const std::string_view whole = text.substr(0, dot);
  const std::string_view fraction = text.substr(dot + 1);
  if (whole.empty()) return AllDigits(fraction);
  return AllDigits(whole) && (fraction.empty() || AllDigits(fraction));
}

// 0x1F and 0o17; false when it is none or does not fit.
bool ReadBased(std::string_view text, std::int64_t* value) {
  if (text.size() < 3 || text.front() != '0') return false;
  const int base = text[1] == 'x' ? 16 : text[1] == 'o' ? 8 : 0;
  if (base == 0) return false;
  text.remove_prefix(2);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, base);
  return error == std::errc() && end == text.data() + text.size() && text.front() != '-';
}

Json PlainScalar(const std::string& text) {
  if (IsOneOf(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (IsOneOf(text, {"true", "True", "TRUE"})) return true;
  if (IsOneOf(text, {"false", "False", "FALSE"})) return false;
  std::int64_t integer = 0;
  if (AllDigits(WithoutSign(text))) {
    const char* begin = text.data() + (text.front() == '+' ? 1 : 0);
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), integer);
    if (error == std::errc() && end == text.data() + text.size()) return integer;
  } else if (ReadBased(text, &integer)) {
    return integer;
  }
  if (IsFloat(text)) {
    const double number = std::strtod(text.c_str(), nullptr);
    if (std::isfinite(number)) return number;
  }
  return text;
}

class Reader {
 public:
  // Fails by exception, which YamlToJson catches: yaml-cpp does so itself.
  Json Convert(const YAML::Node& node, std::size_t depth) {
    if (depth > kMaxJsonDepth) throw YAML::RepresentationException(node.Mark(), "nested too deep");
    if (++values_ > kMaxValues) throw YAML::RepresentationException(node.Mark(), "too many values");
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        return nullptr;
      case YAML::NodeType::Scalar:
        return ConvertScalar(node);
      case YAML::NodeType::Sequence: {
        Json out = Json::array();
        for (const YAML::Node& item : node) out.push_back(Convert(item, depth + 1));
        return out;
      }
      case YAML::NodeType::Map:
        return ConvertMap(node, depth);
    }
    return nullptr;
  }

 private:
  static Json ConvertScalar(const YAML::Node& node) {
    // "?" = plain; "!" = quoted; others are written tags.
    const std::string& tag = node.Tag();
    if (tag == "?" || tag.empty()) return PlainScalar(node.Scalar());
    if (tag == "!" || tag == "tag:yaml.org,2002:str") return node.Scalar();
    const Json plain = PlainScalar(node.Scalar());
    const bool fits = (tag == "tag:yaml.org,2002:int" && plain.is_number_integer()) ||
                      (tag == "tag:yaml.org,2002:bool" && plain.is_boolean()) ||
                      (tag == "tag:yaml.org,2002:float" && plain.is_number()) ||
                      (tag == "tag:yaml.org,2002:null" && plain.is_null());
    if (!fits) throw YAML::RepresentationException(node.Mark(), "unknown tag " + tag);
    return plain;
  }

  Json ConvertMap(const YAML::Node& node, std::size_t depth) {
    Json out = Json::object();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        throw YAML::RepresentationException(entry.first.Mark(), "a key must be a plain word");
      }
      const std::string& key = entry.first.Scalar();
      if (out.contains(key)) {
        throw YAML::RepresentationException(entry.first.Mark(), "key \"" + key + "\" stands twice");
      }
      out[key] = Convert(entry.second, depth + 1);
    }
    return out;
  }

  std::size_t values_ = 0;
};

void Emit(YAML::Emitter& out, const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      out << (value.empty() ? YAML::Flow : YAML::Block) << YAML::BeginMap;
      for (const auto& [key, item] : value.items()) {
        out << YAML::Key;
        Emit(out, Json(key));
        out << YAML::Value;
        Emit(out, item);
      }
      out << YAML::EndMap;
      return;
    case Json::value_t::array:
      out << (value.empty() ? YAML::Flow : YAML::Block) << YAML::BeginSeq;
      for (const Json& item : value) Emit(out, item);
      out << YAML::EndSeq;
      return;
    case Json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      if (!PlainScalar(text).is_string()) out << YAML::DoubleQuoted;
      out << text;
      return;
    }
    case Json::value_t::null:
      out << YAML::Null;
      return;
    default:
      out << value.dump();
      return;
  }
}

}  // namespace

Result<std::vector<std::string>> YamlToJson(std::string_view yaml) {
  if (yaml.size() > kMaxObjectBytes) {
    return InvalidArgument("yaml: read: too long (" + std::to_string(yaml.size()) +
                           " bytes, limit " + std::to_string(kMaxObjectBytes) + ")");
  }
  std::vector<std::string> out;
  try {
    Reader reader;
    for (const YAML::Node& document : YAML::LoadAll(std::string(yaml))) {
      const Json json = reader.Convert(document, 1);
      if (!json.is_null()) out.push_back(DumpJson(json));
    }
  } catch (const YAML::Exception& e) {
    return InvalidArgument("yaml: line " + std::to_string(e.mark.line + 1) + ", column " +
                           std::to_string(e.mark.column + 1) + ": " + e.msg);
  } catch (const std::exception& e) {
    return InvalidArgument(std::string("yaml: read: ") + e.what());
  }
  return out;
}

Result<std::string> JsonToYaml(std::string_view json) {
  KVF_ASSIGN_OR_RETURN(const Json value, ParseJson(json));
  YAML::Emitter out;
  out.SetIndent(2);
  out.SetNullFormat(YAML::LowerNull);
  Emit(out, value);
  if (!out.good()) return Internal("yaml: write: " + out.GetLastError());
  return std::string(out.c_str()) + "\n";
}

}  // namespace kvfabric::kube
