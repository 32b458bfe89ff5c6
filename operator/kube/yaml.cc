#include "operator/kube/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "operator/kube/json.h"
#include "operator/kube/object.h"

namespace kvfabric::kube {
namespace {

constexpr std::size_t kMaxValues = 100'000;
// YAML readers take no longer key without a `?` before it; the standard says 1024 characters.
constexpr std::size_t kMaxKeyBytes = 512;
// Before it writes a text plain, the emitter tries each place of it against what would end it: half
// of the time a shard map takes to be stored.
constexpr std::size_t kLongestPlain = 1024;
constexpr std::size_t kMaxDocuments = 1'000;

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

[[noreturn]] void Refuse(const YAML::Mark& mark, const std::string& why) {
  throw YAML::RepresentationException(mark, why);
}

// A scalar by its tag: "?" = plain, "!" = quoted, others were written.
Json TypedScalar(const YAML::Mark& mark, const std::string& tag, const std::string& text) {
  if (tag == "?" || tag.empty()) return PlainScalar(text);
  if (tag == "!" || tag == "tag:yaml.org,2002:str") return text;
  const Json plain = PlainScalar(text);
  const bool fits = (tag == "tag:yaml.org,2002:int" && plain.is_number_integer()) ||
                    (tag == "tag:yaml.org,2002:bool" && plain.is_boolean()) ||
                    (tag == "tag:yaml.org,2002:float" && plain.is_number()) ||
                    (tag == "tag:yaml.org,2002:null" && plain.is_null());
  if (!fits) Refuse(mark, "unknown tag " + tag);
  return plain;
}

// Builds the JSON of one document from the parser's events, under limits. Fails by exception, as
// the parser itself does; YamlToJson catches both.
class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(YamlScalars scalars) : scalars_(scalars) {}
  const Json& root() const { return root_; }
  int start() const { return start_; }

  void OnDocumentStart(const YAML::Mark& mark) override { start_ = mark.pos; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (ExpectsKey()) Refuse(mark, "a key must be a plain word");
    Add(mark, nullptr, {1, 0}, anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto it = anchors_.find(anchor);
    if (it == anchors_.end()) Refuse(mark, "an alias inside what it stands for");
    if (ExpectsKey()) Refuse(mark, "a key must be a plain word");
    Add(mark, it->second.value, it->second.size, YAML::NullAnchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    if (ExpectsKey()) {
      Frame& map = stack_.back();
      if (map.value.contains(text)) Refuse(mark, "key \"" + text + "\" stands twice");
      map.key = text;
      Count(mark, {1, text.size()});
    } else {
      const bool plain = scalars_ == YamlScalars::kStrings && (tag == "?" || tag.empty());
      Add(mark, plain ? Json(text) : TypedScalar(mark, tag, text), {1, text.size()}, anchor);
    }
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    Open(mark, Json::array(), anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    Open(mark, Json::object(), anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Size {
    std::size_t values = 0;
    std::size_t bytes = 0;
  };
  struct Frame {
    YAML::Mark mark;
    Json value;
    YAML::anchor_t anchor = YAML::NullAnchor;
    std::optional<std::string> key;  // of the member to come
    Size before;                     // the totals when it was opened
  };
  struct Anchored {
    Json value;
    Size size;
  };

  bool ExpectsKey() const {
    return !stack_.empty() && stack_.back().value.is_object() && !stack_.back().key.has_value();
  }

  // Aliases count as what they stand for, so that a few lines cannot become a flood.
  void Count(const YAML::Mark& mark, const Size& size) {
    total_.values += size.values;
    total_.bytes += size.bytes;
    if (total_.values > kMaxValues) Refuse(mark, "too many values");
    if (total_.bytes > kMaxObjectBytes) Refuse(mark, "too long");
  }

  void Add(const YAML::Mark& mark, Json value, const Size& size, YAML::anchor_t anchor) {
    Count(mark, size);
    if (anchor != YAML::NullAnchor) anchors_[anchor] = {value, size};
    Attach(std::move(value));
  }

  void Attach(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().value.is_array()) {
      stack_.back().value.push_back(std::move(value));
    } else {
      stack_.back().value[*stack_.back().key] = std::move(value);
      stack_.back().key.reset();
    }
  }

  void Open(const YAML::Mark& mark, Json empty, YAML::anchor_t anchor) {
    if (ExpectsKey()) Refuse(mark, "a key must be a plain word");
    if (stack_.size() >= kMaxJsonDepth) Refuse(mark, "nested too deep");
    Frame frame{mark, std::move(empty), anchor, std::nullopt, total_};
    Count(mark, {1, 0});
    stack_.push_back(std::move(frame));
  }

  void Close() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    if (frame.anchor != YAML::NullAnchor) {
      const Size size{total_.values - frame.before.values, total_.bytes - frame.before.bytes};
      anchors_[frame.anchor] = {frame.value, size};
      Count(frame.mark, size);  // the copy is memory too
    }
    Attach(std::move(frame.value));
  }

  const YamlScalars scalars_;
  Json root_;
  int start_ = -1;
  Size total_;
  std::vector<Frame> stack_;
  std::map<YAML::anchor_t, Anchored> anchors_;
};

// What is written must be readable again.
bool HasLongKey(const Json& value) {
  if (!value.is_structured()) return false;
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      if (key.size() > kMaxKeyBytes) return true;
    }
  }
  return std::any_of(value.begin(), value.end(), HasLongKey);
}

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
      // The emitter writes a carriage return as it is, and its reader takes it for a line's end.
      const bool control = std::any_of(text.begin(), text.end(),
                                       [](char c) { return static_cast<unsigned char>(c) < 0x20; });
      const bool quoted = control || text.size() > kLongestPlain || !PlainScalar(text).is_string();
      if (quoted) out << YAML::DoubleQuoted;
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

Result<std::vector<std::string>> YamlToJson(std::string_view yaml, YamlScalars scalars) {
  if (yaml.size() > kMaxObjectBytes) {
    return InvalidArgument("yaml: read: too long (" + std::to_string(yaml.size()) +
                           " bytes, limit " + std::to_string(kMaxObjectBytes) + ")");
  }
  std::vector<std::string> out;
  try {
    std::istringstream stream{std::string(yaml)};
    YAML::Parser parser(stream);
    int last = -1;
    for (std::size_t documents = 0;; ++documents) {
      Builder builder(scalars);
      if (!parser.HandleNextDocument(builder)) break;
      // On some garbage the parser gives empty documents at one place for ever.
      if (builder.start() <= last || documents >= kMaxDocuments) {
        return InvalidArgument("yaml: character " + std::to_string(builder.start()) +
                               ": text that belongs to no document, or too many documents");
      }
      last = builder.start();
      if (!builder.root().is_null()) out.push_back(DumpJson(builder.root()));
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
  if (HasLongKey(value)) {
    return InvalidArgument("yaml: write: a key is too long (limit " + std::to_string(kMaxKeyBytes) +
                           " bytes)");
  }
  YAML::Emitter out;
  out.SetIndent(2);
  out.SetNullFormat(YAML::LowerNull);
  Emit(out, value);
  if (!out.good()) return Internal("yaml: write: " + out.GetLastError());
  return std::string(out.c_str()) + "\n";
}

}  // namespace kvfabric::kube
