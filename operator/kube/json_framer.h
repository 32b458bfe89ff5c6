#pragma once

// Cutting JSON objects out of a byte stream without a DOM of the whole: the events of a watch
// (EventFramer) and the items of a list (ListFramer), whatever the pieces they arrive in.
//
// One thread each, owned by a stream. Memory is bounded by one object. They check what a cut needs
// (strings, escapes, brackets, commas between items); whether an object itself is JSON is its
// parser's to say. A body that is cut off, or goes on after its end, is an error: never a shorter
// list.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "operator/kube/object.h"

namespace kvfabric::kube {

// Finds the end of one bracketed value.
class BracketScanner {
 public:
  // Starts anew; the first byte given to Scan must open a bracket.
  void Reset();
  // How many of `bytes` belong to the value; fewer than all only when done or wrong.
  std::size_t Scan(std::string_view bytes);
  bool done() const { return done_; }
  // Brackets that do not match, or deeper than kMaxJsonDepth.
  bool wrong() const { return wrong_; }

 private:
  void Open(bool curly);
  void Close(bool curly);

  std::uint64_t curly_ = 0;  // bit = kind of the bracket at that depth
  std::size_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool done_ = false;
  bool wrong_ = false;
};

struct FramerLimits {
  std::size_t object_bytes = std::size_t{16} << 20U;
  std::size_t envelope_bytes = std::size_t{1} << 20U;  // of a list: all but its items
};

// Called for each object in order; what it answers ends the framing.
using ObjectSink = std::function<Status(std::string object)>;

// Objects one after the other, with white space between them.
class EventFramer {
 public:
  EventFramer(ObjectSink sink, FramerLimits limits = {});

  // UNAVAILABLE for what is no such sequence, or the sink's own error; the same again afterwards.
  Status Feed(std::string_view bytes);
  // At the end of the body: was it cut off?
  Status Finish() const;

 private:
  const ObjectSink sink_;
  const FramerLimits limits_;
  BracketScanner scanner_;
  std::string object_;
  bool inside_ = false;
  Status failed_;
};

// One object whose member `items` is an array of objects, or null.
class ListFramer {
 public:
  ListFramer(ObjectSink sink, FramerLimits limits = {});

  Status Feed(std::string_view bytes);
  // At the end of the body: was it whole?
  Status Finish() const;
  // After Finish: the list with `items` left empty. Its reader checks that it is JSON.
  const std::string& envelope() const { return envelope_; }
  bool saw_items() const { return saw_items_; }

 private:
  enum class At : std::uint8_t {
    kStart,
    kBetweenMembers,
    kKey,
    kColon,
    kValue,
    kScalar,
    kString,
    kNested,
    kFirstItem,  // or the end of none
    kNextItem,
    kItem,
    kAfterItem,
    kEnd,
  };
  // Takes at least one byte of `bytes` and says how many.
  Result<std::size_t> Take(std::string_view bytes);
  Result<std::size_t> TakeBracketed(std::string_view bytes);
  Status TakeByte(char c);
  Status StartValue(char c);
  Status TakeItemByte(char c);
  Status Keep(std::string_view bytes);

  const ObjectSink sink_;
  const FramerLimits limits_;
  At at_ = At::kStart;
  BracketScanner scanner_;
  std::string key_;
  std::string item_;
  std::string envelope_;
  bool escaped_ = false;
  bool saw_items_ = false;
  Status failed_;
};

// The members of a whole object in order; keys as they are written, escapes and all. UNAVAILABLE
// when the text is no object.
Status ForEachMember(
    std::string_view object,
    const std::function<void(std::string_view key, std::string_view value)>& member);

// The object with the `kind` and `apiVersion` that servers leave out of list items.
Result<std::string> WithTypeMeta(Kind kind, std::string object);

}  // namespace kvfabric::kube
