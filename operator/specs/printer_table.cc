#include "operator/specs/printer_table.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "operator/kube/json.h"
#include "operator/kube/timestamp.h"
#include "operator/kube/yaml.h"
#include "operator/specs/crd_text.h"

namespace kvfabric {
namespace {

using kube::Find;
using kube::Json;
using kube::Kind;
using kube::StringAt;

struct Column {
  std::string name;
  std::string type;
  std::string description;
  std::string path;
  int priority = 0;
};

std::vector<Column> ReadColumns(std::string_view crd_text) {
  std::vector<Column> out;
  const auto documents = kube::YamlToJson(crd_text);
  if (!documents.ok()) return out;
  const Json crd = Json::parse(documents->front());
  for (const Json& column : crd["spec"]["versions"][0]["additionalPrinterColumns"]) {
    const Json* priority = Find(column, "priority");
    out.push_back({StringAt(column, "name"), StringAt(column, "type"),
                   StringAt(column, "description"), StringAt(column, "jsonPath"),
                   priority == nullptr ? 0 : priority->get<int>()});
  }
  return out;
}

const std::vector<Column>& ColumnsOf(Kind kind) {
  static const std::vector<Column> pool = ReadColumns(kPoolCrdText);
  static const std::vector<Column> shard_map = ReadColumns(kShardMapCrdText);
  static const std::vector<Column> others = {{"Age", "date", "", ".metadata.creationTimestamp", 0}};
  if (kind == Kind::kPool) return pool;
  return kind == Kind::kShardMap ? shard_map : others;
}

// `[0]` or `[?(@.type=="Ready")]` on a list; null when there is no such item.
const Json* Select(const Json* list, std::string_view selector) {
  if (list == nullptr || !list->is_array()) return nullptr;
  std::size_t index = 0;
  const auto [end, error] =
      std::from_chars(selector.data(), selector.data() + selector.size(), index);
  if (error == std::errc() && end == selector.data() + selector.size()) {
    return index < list->size() ? &(*list)[index] : nullptr;
  }
  constexpr std::string_view kHead = "?(@.";
  const std::size_t equals = selector.find("==\"");
  if (selector.substr(0, kHead.size()) != kHead || equals == std::string_view::npos) return nullptr;
  const std::string_view key = selector.substr(kHead.size(), equals - kHead.size());
  std::string_view value = selector.substr(equals + 3);
  value = value.substr(0, value.find('"'));
  for (const Json& item : *list) {
    if (StringAt(item, key) == value) return &item;
  }
  return nullptr;
}

// The part of JSONPath that our columns use.
const Json* Follow(const Json& root, std::string_view path) {
  const Json* at = &root;
  while (at != nullptr && !path.empty()) {
    if (path.front() == '.') {
      path.remove_prefix(1);
      const std::size_t end = path.find_first_of(".[");
      at = Find(*at, path.substr(0, end));
      path = end == std::string_view::npos ? std::string_view() : path.substr(end);
    } else {
      const std::size_t end = path.find(']');
      if (path.front() != '[' || end == std::string_view::npos) return nullptr;
      at = Select(at, path.substr(1, end - 1));
      path.remove_prefix(end + 1);
    }
  }
  return at;
}

Json Cell(const Column& column, const Json& object, std::int64_t now_unix_us) {
  const Json* value = Follow(object, column.path);
  if (value == nullptr) return column.type == "date" ? Json("<unknown>") : Json(nullptr);
  if (column.type != "date") return *value;
  const auto at = kube::ParseTime(value->is_string() ? value->get<std::string>() : "");
  if (!at.has_value()) return "<unknown>";
  return FormatAge((now_unix_us - *at) / 1'000'000);
}

Json Definition(const Column& column) {
  return {{"name", column.name},
          {"type", column.type},
          {"format", column.name == "Name" ? "name" : ""},
          {"description", column.description},
          {"priority", column.priority}};
}

}  // namespace

std::string FormatAge(std::int64_t age_s) {
  if (age_s < 0) return "0s";
  if (age_s < 120) return std::to_string(age_s) + "s";
  if (age_s < 3 * 3600) return std::to_string(age_s / 60) + "m";
  if (age_s < 48 * 3600) return std::to_string(age_s / 3600) + "h";
  return std::to_string(age_s / 86'400) + "d";
}

std::string PrinterTable(Kind kind, const kube::ObjectList& list, std::int64_t now_unix_us) {
  const std::vector<Column>& columns = ColumnsOf(kind);
  Json definitions = Json::array({Definition({"Name", "string", "", "", 0})});
  for (const Column& column : columns) definitions.push_back(Definition(column));
  Json rows = Json::array();
  for (const kube::ObjectPtr& item : list.items) {
    const auto object = kube::ParseJson(item->json);
    if (!object.ok()) continue;
    Json cells = Json::array({item->meta.name.name});
    for (const Column& column : columns) cells.push_back(Cell(column, *object, now_unix_us));
    rows.push_back({{"cells", std::move(cells)},
                    {"object",
                     {{"kind", "PartialObjectMetadata"},
                      {"apiVersion", "meta.k8s.io/v1"},
                      {"metadata", *Find(*object, "metadata")}}}});
  }
  return kube::DumpJson({{"kind", "Table"},
                         {"apiVersion", "meta.k8s.io/v1"},
                         {"metadata", {{"resourceVersion", std::to_string(list.resource_version)}}},
                         {"columnDefinitions", std::move(definitions)},
                         {"rows", std::move(rows)}});
}

}  // namespace kvfabric
