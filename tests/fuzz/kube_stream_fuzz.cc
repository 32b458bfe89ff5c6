// Bodies of lists and watches, in pieces of any size. Cut anywhere they must mean the same, and
// what the framer takes for a whole list must be one to a parser that sees all of it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "operator/kube/json.h"
#include "operator/kube/json_framer.h"

namespace {

using kvfabric::Status;
using kvfabric::kube::EventFramer;
using kvfabric::kube::ForEachMember;
using kvfabric::kube::FramerLimits;
using kvfabric::kube::Json;
using kvfabric::kube::ListFramer;

void Demand(bool condition) {
  if (!condition) std::abort();
}

struct Framed {
  bool ok = false;
  std::vector<std::string> objects;
  std::string envelope;
};

template <typename Framer>
Framed Frame(std::string_view body, std::size_t piece) {
  Framed out;
  Framer framer(
      [&](std::string object) {
        Demand(object.size() <= 4096 && object.front() == '{' && object.back() == '}');
        out.objects.push_back(std::move(object));
        return Status::Ok();
      },
      FramerLimits{.object_bytes = 4096, .envelope_bytes = 4096});
  while (!body.empty() && framer.Feed(body.substr(0, piece)).ok()) {
    body.remove_prefix(std::min(piece, body.size()));
  }
  out.ok = framer.Finish().ok();
  if constexpr (std::is_same_v<Framer, ListFramer>) out.envelope = framer.envelope();
  return out;
}

template <typename Framer>
Framed SameInPieces(std::string_view body, std::size_t piece) {
  Framed whole = Frame<Framer>(body, body.size() + 1);
  for (const std::size_t size : {std::size_t{1}, piece}) {
    const Framed pieces = Frame<Framer>(body, size);
    Demand(pieces.ok == whole.ok && pieces.objects == whole.objects);
    Demand(pieces.envelope == whole.envelope || !whole.ok);
  }
  return whole;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::size_t piece = 1 + data[0] % 64;
  const Framed events = SameInPieces<EventFramer>(body, piece);
  for (const std::string& event : events.objects) {
    const auto parsed = kvfabric::kube::ParseJson(event);
    std::size_t members = 0;
    const Status read = ForEachMember(event, [&](auto, auto) { ++members; });
    // What a parser takes has its members found; the other way round need not be.
    if (parsed.ok()) Demand(read.ok() && members >= parsed->size());
    static_cast<void>(kvfabric::kube::WithTypeMeta(kvfabric::kube::Kind::kNode, event));
  }
  const Framed list = SameInPieces<ListFramer>(body, piece);
  if (!list.ok) return 0;
  const bool parts_are_json =
      kvfabric::kube::ParseJson(list.envelope).ok() &&
      std::all_of(list.objects.begin(), list.objects.end(),
                  [](const std::string& item) { return kvfabric::kube::ParseJson(item).ok(); });
  if (!parts_are_json) return 0;
  const Json whole = Json::parse(body.begin(), body.end(), nullptr, false);
  Demand(whole.is_object());
  const auto items = whole.find("items");
  if (!list.objects.empty()) {
    Demand(items != whole.end() && items->is_array() && items->size() == list.objects.size());
  }
  return 0;
}
