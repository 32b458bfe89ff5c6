#include "operator/kube/apply_merge.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "operator/kube/api_error.h"
#include "operator/kube/managed_fields.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric::kube {
namespace {

const MergeNode& Schema() {
  static const std::vector<ListRule> rules = {{"items", ListMerge::kMap, {"name"}},
                                              {"items[].tags", ListMerge::kSet, {}},
                                              {"by.*.ports", ListMerge::kMap, {"port", "proto"}},
                                              {"words", ListMerge::kSet, {}}};
  static const MergeNode node = MergeNode::Of(Kind::kConfigMap, rules);
  return node;
}

Json Parsed(const char* text) { return Json::parse(text); }

TEST(FieldSet, GoesThroughItsJson) {
  const Json fields =
      Parsed(R"({"f:spec":{".":{},"f:items":{"k:{\"name\":\"a\"}":{".":{},"f:v":{}}},
                                 "f:words":{"v:\"x\"":{}}},"f:data":{}})");
  const auto set = FieldSet::FromFieldsV1(fields);
  ASSERT_TRUE(set.ok()) << set.status().ToString();
  EXPECT_EQ(set->ToFieldsV1(), fields);
  std::vector<std::string> paths;
  set->ForEach([&](const std::string& path) { paths.push_back(path); });
  EXPECT_EQ(paths,
            (std::vector<std::string>{".data", ".spec", R"(.spec.items[name="a"])",
                                      R"(.spec.items[name="a"].v)", R"(.spec.words[="x"])"}));
  EXPECT_FALSE(FieldSet::FromFieldsV1(Parsed(R"({"spec":{}})")).ok());
}

TEST(FieldSet, CountsAsASet) {
  const FieldSet a = FieldsOf(Schema(), Parsed(R"({"x":1,"y":{"z":1},"words":["p","q"]})"));
  const FieldSet b = FieldsOf(Schema(), Parsed(R"({"y":{"z":2,"w":1},"words":["q"]})"));
  EXPECT_EQ(a.Union(b), b.Union(a));
  EXPECT_EQ(a.Intersection(b), FieldsOf(Schema(), Parsed(R"({"y":{"z":0},"words":["q"]})")));
  EXPECT_EQ(a.Minus(b), FieldsOf(Schema(), Parsed(R"({"x":1,"words":["p"]})")));
  EXPECT_TRUE(a.Minus(a).empty());
}

TEST(ApplyMerge, TellsItemsApartByAllTheirKeys) {
  const Json live = Parsed(R"({"by":{"n":{"ports":[{"port":1,"proto":"TCP","x":1}]}}})");
  const Json config = Parsed(R"({"by":{"n":{"ports":[{"port":1,"proto":"UDP","x":2}]}}})");
  EXPECT_EQ(MergeInto(Schema(), live, config)["by"]["n"]["ports"].size(), 2U);
}

TEST(ApplyMerge, ReplacesListsWithoutARule) {
  const Json live = Parsed(R"({"data":{"list":[1,2]},"items":[{"name":"a","v":1}]})");
  const Json config = Parsed(R"({"data":{"list":[3]},"items":[{"name":"b"}]})");
  EXPECT_EQ(MergeInto(Schema(), live, config),
            Parsed(R"({"data":{"list":[3]},"items":[{"name":"a","v":1},{"name":"b"}]})"));
}

TEST(ApplyMerge, ItemsStandInTheOrderOfTheConfig) {
  const auto merged = [](const char* live, const char* config) {
    return MergeInto(Schema(), {{"words", Parsed(live)}}, {{"words", Parsed(config)}})["words"];
  };
  EXPECT_EQ(merged(R"(["a","b"])", R"(["b","a"])"), Parsed(R"(["b","a"])"));
  EXPECT_EQ(merged(R"(["x","a","y"])", R"(["n","a"])"), Parsed(R"(["x","n","a","y"])"));
  EXPECT_EQ(merged(R"(["a","x","b"])", R"(["b","a"])"), Parsed(R"(["x","b","a"])"));
  EXPECT_EQ(merged(R"(["a"])", R"(["n","m"])"), Parsed(R"(["a","n","m"])"));
}

TEST(ApplyMerge, EmptyKeyedListsAreNobodys) {
  EXPECT_EQ(FieldsOf(Schema(), Parsed(R"({"words":[],"other":[],"o":{}})")).ToFieldsV1(),
            Parsed(R"({"f:o":{},"f:other":{}})"));
}

TEST(ApplyMerge, FaultsOfListsAreNamed) {
  const Status missing = CheckLists(Schema(), Parsed(R"({"items":[{"v":1}]})"));
  EXPECT_EQ(missing.message(), "items: each item needs name");
  const Status twice = CheckLists(Schema(), Parsed(R"({"items":[{"name":"a","tags":["x","x"]}]})"));
  EXPECT_EQ(twice.message(), R"(items[0].tags: v:"x": is there twice)");
  EXPECT_TRUE(CheckLists(Schema(), Parsed(R"({"other":[1,1]})")).ok());
}

TEST(ApplyMerge, ComparesPartByPart) {
  const Comparison compared = Compare(Schema(), Parsed(R"({"a":1,"b":{"c":1},"words":["x"]})"),
                                      Parsed(R"({"a":2,"d":{"e":1},"words":["x","y"]})"));
  EXPECT_EQ(compared.modified.ToFieldsV1(), Parsed(R"({"f:a":{}})"));
  EXPECT_EQ(compared.added.ToFieldsV1(),
            Parsed(R"({"f:d":{".":{},"f:e":{}},"f:words":{"v:\"y\"":{}}})"));
  EXPECT_EQ(compared.removed.ToFieldsV1(), Parsed(R"({"f:b":{".":{},"f:c":{}}})"));
}

// What server-side apply promises, written down without trees: each field has a value and owners.
class Oracle {
 public:
  using Fields = std::map<std::string, std::string>;

  explicit Oracle(const Fields& live) {
    for (const auto& [path, value] : live) fields_[path] = {value, {"before-first-apply"}};
  }

  bool Conflicts(const std::string& manager, const Fields& config) const {
    return std::any_of(config.begin(), config.end(), [&](const auto& wanted) {
      const auto it = fields_.find(wanted.first);
      return it != fields_.end() && it->second.value != wanted.second &&
             (it->second.owners.size() > 1 || it->second.owners.count(manager) == 0);
    });
  }

  void Apply(const std::string& manager, const Fields& config) {
    for (const auto& [path, value] : config) {
      Field& field = fields_[path];
      if (field.value != value) field.owners.clear();
      field.value = value;
      field.owners.insert(manager);
    }
    std::vector<std::string> orphans;
    for (auto& [path, field] : fields_) {
      if (config.count(path) != 0 || field.owners.erase(manager) == 0) continue;
      if (field.owners.empty()) orphans.push_back(path);
    }
    for (const std::string& path : orphans) Remove(path);
  }

  void Update(const std::string& manager, const Fields& now) {
    std::vector<std::string> gone;
    for (const auto& [path, field] : fields_) {
      if (now.count(path) == 0) gone.push_back(path);
    }
    for (const std::string& path : gone) fields_.erase(path);
    for (const auto& [path, value] : now) {
      const auto it = fields_.find(path);
      if (it != fields_.end() && it->second.value == value) continue;
      fields_[path] = {value, {manager}};
    }
  }

  Fields Values() const {
    Fields out;
    for (const auto& [path, field] : fields_) out[path] = field.value;
    return out;
  }

 private:
  struct Field {
    std::string value;
    std::set<std::string> owners;
  };
  // An item takes everything in it along.
  void Remove(const std::string& path) {
    fields_.erase(path);
    if (path.back() != ']') return;
    for (auto it = fields_.begin(); it != fields_.end();) {
      it = it->first.rfind(path, 0) == 0 ? fields_.erase(it) : std::next(it);
    }
  }

  std::map<std::string, Field> fields_;
};

// Fields of the test's objects: data.X, items[X], items[X].v, words[X].
Json ToJson(const Oracle::Fields& fields) {
  Json out = Json::object();
  for (const auto& [path, value] : fields) {
    if (path.rfind("data.", 0) == 0) {
      out["data"][path.substr(5)] = value;
    } else if (path.rfind("words[", 0) == 0) {
      out["words"].push_back(path.substr(6, 1));
    } else if (path.back() == ']') {
      out["items"].push_back({{"name", path.substr(6, 1)}});
    } else {
      for (Json& item : out["items"]) {
        if (item["name"] == path.substr(6, 1)) item["v"] = value;
      }
    }
  }
  return out;
}

Oracle::Fields ToFields(const Json& value) {
  Oracle::Fields out;
  if (const Json* data = Find(value, "data")) {
    for (const auto& [name, text] : data->items()) out["data." + name] = text.get<std::string>();
  }
  if (const Json* words = Find(value, "words")) {
    for (const Json& word : *words) out["words[" + word.get<std::string>() + "]"] = "there";
  }
  if (const Json* items = Find(value, "items")) {
    for (const Json& item : *items) {
      const std::string path = "items[" + StringAt(item, "name") + "]";
      out[path] = "there";
      if (item.contains("v")) out[path + ".v"] = StringAt(item, "v");
    }
  }
  return out;
}

Oracle::Fields RandomFields(std::mt19937_64& random) {
  Oracle::Fields out;
  const auto half = [&] { return random() % 2 == 0; };
  const auto value = [&] { return std::string(1, static_cast<char>('0' + random() % 3)); };
  for (const char* name : {"a", "b", "c"}) {
    if (half()) out["data." + std::string(name)] = value();
    if (half()) out["words[" + std::string(name) + "]"] = "there";
    if (half()) {
      out["items[" + std::string(name) + "]"] = "there";
      if (half()) out["items[" + std::string(name) + "].v"] = value();
    }
  }
  return out;
}

TEST(ApplyMerge, AgreesWithANaiveOracle) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 300; ++round) {
    const Oracle::Fields start = RandomFields(random);
    Json live = ToJson(start);
    Oracle oracle(start);
    // Nothing before the first apply: nobody to own it.
    if (live.empty()) continue;
    ManagedEntries entries;
    int applies = 0;
    for (int step = 0; step < 20; ++step) {
      const Oracle::Fields wanted = RandomFields(random);
      if (applies > 0 && random() % 4 == 0) {
        const Json now = ToJson(wanted);
        RecordUpdate(Schema(), live, now, {"editor", false, ""}, "v1", entries);
        oracle.Update("editor", wanted);
        live = now;
      } else {
        const std::string manager = random() % 2 == 0 ? "one" : "two";
        const bool force = random() % 2 == 0;
        const bool conflicts = oracle.Conflicts(manager, wanted);
        ManagedEntries after = entries;
        const Result<Json> applied =
            ApplyConfig(Schema(), {Kind::kConfigMap, {"n", "o"}, {manager, true, ""}, force}, live,
                        ToJson(wanted), after);
        ASSERT_EQ(applied.ok(), force || !conflicts)
            << "round " << round << " step " << step << " " << live.dump() << " <- "
            << ToJson(wanted).dump() << ": " << applied.status().ToString();
        if (!applied.ok()) {
          EXPECT_TRUE(IsFieldConflict(applied.status()));
          continue;
        }
        ++applies;
        oracle.Apply(manager, wanted);
        live = *applied;
        entries = after;
        const Result<Json> again =
            ApplyConfig(Schema(), {Kind::kConfigMap, {"n", "o"}, {manager, true, ""}, false}, live,
                        ToJson(wanted), after);
        ASSERT_TRUE(again.ok()) << again.status().ToString();
        EXPECT_EQ(*again, live);
        EXPECT_TRUE(SameManaged(after, entries));
      }
      ASSERT_EQ(ToFields(live), oracle.Values()) << "round " << round << " step " << step;
      Json metadata = Json::object();
      WriteManaged(entries, metadata);
      EXPECT_TRUE(SameManaged(ReadManaged(metadata), entries));
    }
  }
}

}  // namespace
}  // namespace kvfabric::kube
