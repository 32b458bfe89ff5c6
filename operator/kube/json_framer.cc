#include "operator/kube/json_framer.h"

#include <algorithm>
#include <utility>

namespace kvfabric::kube {
namespace {

static_assert(kMaxJsonDepth <= 64, "BracketScanner keeps one bit a level");

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

Status Malformed(const std::string& what) { return Unavailable("answer: " + what); }

Status Unexpected(char c, const char* where) {
  const auto code = static_cast<unsigned char>(c);
  const std::string shown =
      code >= 0x20 && code < 0x7F ? std::string("'") + c + "'" : "byte " + std::to_string(code);
  return Malformed(shown + " " + where);
}

std::size_t SkipSpace(std::string_view text, std::size_t at) {
  while (at < text.size() && IsSpace(text[at])) ++at;
  return at;
}

// The position behind the string that starts at `at`, or npos.
std::size_t EndOfString(std::string_view text, std::size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

// The position behind the value that starts at `at`, or npos.
std::size_t EndOfValue(std::string_view text, std::size_t at) {
  if (at >= text.size()) return std::string_view::npos;
  if (text[at] == '"') return EndOfString(text, at);
  if (text[at] == '{' || text[at] == '[') {
    BracketScanner scanner;
    const std::size_t size = scanner.Scan(text.substr(at));
    return scanner.done() ? at + size : std::string_view::npos;
  }
  const std::size_t end = text.find_first_of(",}] \t\r\n", at);
  return end == at ? std::string_view::npos : end;
}

}  // namespace

void BracketScanner::Reset() { *this = BracketScanner(); }

void BracketScanner::Open(bool curly) {
  if (depth_ >= kMaxJsonDepth) {
    wrong_ = true;
    return;
  }
  const std::uint64_t bit = std::uint64_t{1} << depth_++;
  curly_ = curly ? curly_ | bit : curly_ & ~bit;
}

void BracketScanner::Close(bool curly) {
  if (depth_ == 0) {
    wrong_ = true;
    return;
  }
  const bool opened_curly = (curly_ >> --depth_ & 1U) != 0;
  wrong_ = opened_curly != curly;
  done_ = depth_ == 0 && !wrong_;
}

std::size_t BracketScanner::Scan(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size() && !done_ && !wrong_) {
    const char c = bytes[at++];
    if (escaped_) {
      escaped_ = false;
    } else if (in_string_) {
      if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      } else {
        at = std::min(bytes.find_first_of("\"\\", at), bytes.size());
      }
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      Open(c == '{');
    } else if (c == '}' || c == ']') {
      Close(c == '}');
    }
    if (depth_ == 0 && !done_) wrong_ = true;  // began without a bracket
  }
  return at;
}

EventFramer::EventFramer(ObjectSink sink, FramerLimits limits)
    : sink_(std::move(sink)), limits_(limits) {}

Status EventFramer::Feed(std::string_view bytes) {
  while (failed_.ok() && !bytes.empty()) {
    if (!inside_) {
      bytes.remove_prefix(SkipSpace(bytes, 0));
      if (bytes.empty()) break;
      if (bytes.front() != '{') {
        failed_ = Unexpected(bytes.front(), "where an event must begin");
        break;
      }
      inside_ = true;
      scanner_.Reset();
    }
    const std::size_t size = scanner_.Scan(bytes);
    if (scanner_.wrong()) {
      failed_ = Malformed("an event whose brackets do not match, or nest too deep");
    } else if (object_.size() + size > limits_.object_bytes) {
      failed_ = ResourceExhausted("answer: an event is longer than " +
                                  std::to_string(limits_.object_bytes) + " bytes");
    } else {
      object_.append(bytes.substr(0, size));
      bytes.remove_prefix(size);
      if (!scanner_.done()) continue;
      inside_ = false;
      failed_ = sink_(std::exchange(object_, {}));
    }
  }
  return failed_;
}

Status EventFramer::Finish() const {
  if (!failed_.ok() || !inside_) return failed_;
  return Malformed("cut off inside an event");
}

ListFramer::ListFramer(ObjectSink sink, FramerLimits limits)
    : sink_(std::move(sink)), limits_(limits) {}

Status ListFramer::Feed(std::string_view bytes) {
  while (failed_.ok() && !bytes.empty()) {
    const Result<std::size_t> taken = Take(bytes);
    if (taken.ok()) {
      bytes.remove_prefix(*taken);
    } else {
      failed_ = taken.status();
    }
  }
  return failed_;
}

Status ListFramer::Finish() const {
  if (!failed_.ok() || at_ == At::kEnd) return failed_;
  return Malformed("cut off inside the list");
}

Status ListFramer::Keep(std::string_view bytes) {
  if (envelope_.size() + bytes.size() > limits_.envelope_bytes) {
    return ResourceExhausted("answer: a list with more than " +
                             std::to_string(limits_.envelope_bytes) + " bytes around its items");
  }
  envelope_.append(bytes);
  return Status::Ok();
}

Result<std::size_t> ListFramer::Take(std::string_view bytes) {
  if (at_ == At::kItem || at_ == At::kNested) return TakeBracketed(bytes);
  KVF_RETURN_IF_ERROR(TakeByte(bytes.front()));
  // The byte that opens a bracket is the scanner's.
  return std::size_t{at_ == At::kItem || at_ == At::kNested ? 0U : 1U};
}

Result<std::size_t> ListFramer::TakeBracketed(std::string_view bytes) {
  const std::size_t size = scanner_.Scan(bytes);
  if (scanner_.wrong()) return Malformed("brackets that do not match, or nest too deep");
  if (at_ == At::kNested) {
    KVF_RETURN_IF_ERROR(Keep(bytes.substr(0, size)));
    if (scanner_.done()) at_ = At::kBetweenMembers;
    return size;
  }
  if (item_.size() + size > limits_.object_bytes) {
    return ResourceExhausted("answer: an item is longer than " +
                             std::to_string(limits_.object_bytes) + " bytes");
  }
  item_.append(bytes.substr(0, size));
  if (scanner_.done()) {
    at_ = At::kAfterItem;
    KVF_RETURN_IF_ERROR(sink_(std::exchange(item_, {})));
  }
  return size;
}

Status ListFramer::TakeByte(char c) {
  switch (at_) {
    case At::kStart:
      if (IsSpace(c)) return Status::Ok();
      if (c != '{') return Unexpected(c, "where a list must begin");
      at_ = At::kBetweenMembers;
      return Keep("{");
    case At::kEnd:
      return IsSpace(c) ? Status::Ok() : Unexpected(c, "after the end of the list");
    case At::kFirstItem:
    case At::kNextItem:
    case At::kAfterItem:
      return TakeItemByte(c);
    case At::kValue:
      return IsSpace(c) ? Status::Ok() : StartValue(c);
    case At::kColon:
      if (IsSpace(c)) return Status::Ok();
      if (c != ':') return Unexpected(c, "where a colon must be");
      at_ = At::kValue;
      return Keep(":");
    case At::kKey:
    case At::kString:
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        at_ = at_ == At::kKey ? At::kColon : At::kBetweenMembers;
        return Keep("\"");
      }
      if (at_ == At::kKey) key_ += c;
      return Keep({&c, 1});
    case At::kScalar:
    case At::kBetweenMembers:
      if (c == '}') {
        at_ = At::kEnd;
      } else if (c == ',') {
        at_ = At::kBetweenMembers;
      } else if (c == '"' && at_ == At::kBetweenMembers) {
        key_.clear();
        at_ = At::kKey;
      }
      return Keep({&c, 1});
    case At::kItem:
    case At::kNested:
      break;
  }
  return Internal("list framer: a bracketed value taken byte by byte");
}

Status ListFramer::StartValue(char c) {
  if (key_ == "items" && c != 'n') {
    if (c != '[') return Unexpected(c, "where the items must begin");
    if (saw_items_) return Malformed("items that stand twice");
    saw_items_ = true;
    at_ = At::kFirstItem;
    return Keep("[]");
  }
  if (key_ == "items") {
    if (saw_items_) return Malformed("items that stand twice");
    saw_items_ = true;  // null: a server's way to say none
  }
  if (c == '{' || c == '[') {
    at_ = At::kNested;
    scanner_.Reset();
    return Status::Ok();
  }
  at_ = c == '"' ? At::kString : At::kScalar;
  // A value that is none (`,` or `}`) is kept too: the reader of the envelope refuses it.
  if (c == '}') at_ = At::kEnd;
  if (c == ',') at_ = At::kBetweenMembers;
  return Keep({&c, 1});
}

Status ListFramer::TakeItemByte(char c) {
  if (IsSpace(c)) return Status::Ok();
  if (c == ']' && at_ != At::kNextItem) {
    at_ = At::kBetweenMembers;
    return Status::Ok();
  }
  if (at_ == At::kAfterItem) {
    if (c != ',') return Unexpected(c, "after an item");
    at_ = At::kNextItem;
    return Status::Ok();
  }
  if (c != '{') return Unexpected(c, "where an item must begin");
  at_ = At::kItem;
  scanner_.Reset();
  return Status::Ok();
}

Status ForEachMember(
    std::string_view object,
    const std::function<void(std::string_view key, std::string_view value)>& member) {
  std::size_t at = SkipSpace(object, 0);
  if (at >= object.size() || object[at] != '{') return Malformed("not an object");
  at = SkipSpace(object, at + 1);
  if (at < object.size() && object[at] == '}') return Status::Ok();
  for (;;) {
    const std::size_t key = at;
    if (key >= object.size() || object[key] != '"') return Malformed("an object without a key");
    at = EndOfString(object, key);
    if (at == std::string_view::npos) return Malformed("a key without an end");
    const std::string_view name = object.substr(key + 1, at - key - 2);
    at = SkipSpace(object, at);
    if (at >= object.size() || object[at] != ':') return Malformed("a key without a value");
    at = SkipSpace(object, at + 1);
    const std::size_t end = EndOfValue(object, at);
    if (end == std::string_view::npos) return Malformed("a value without an end");
    member(name, object.substr(at, end - at));
    at = SkipSpace(object, end);
    if (at < object.size() && object[at] == '}') return Status::Ok();
    if (at >= object.size() || object[at] != ',') return Malformed("no comma between members");
    at = SkipSpace(object, at + 1);
  }
}

Result<std::string> WithTypeMeta(Kind kind, std::string object) {
  bool has_kind = false;
  bool has_version = false;
  bool empty = true;
  KVF_RETURN_IF_ERROR(ForEachMember(object, [&](std::string_view key, std::string_view) {
    has_kind = has_kind || key == "kind";
    has_version = has_version || key == "apiVersion";
    empty = false;
  }));
  std::string added;
  if (!has_kind) added += R"("kind":")" + std::string(TraitsOf(kind).name) + "\"";
  if (!has_version) {
    added += (added.empty() ? "" : ",") + (R"("apiVersion":")" + ApiVersionOf(kind)) + "\"";
  }
  if (added.empty()) return object;
  if (!empty) added += ",";
  return object.insert(object.find('{') + 1, added);
}

}  // namespace kvfabric::kube
