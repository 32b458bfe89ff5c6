#include "operator/kube/yaml.h"

#include <gtest/gtest.h>

#include "operator/kube/object.h"

namespace kvfabric::kube {
namespace {

std::string Json(const std::string& yaml) {
  const auto documents = YamlToJson(yaml);
  if (!documents.ok()) return documents.status().ToString();
  return documents->size() == 1 ? documents->front() : std::to_string(documents->size());
}

TEST(Yaml, TypesPlainScalarsByTheCoreSchema) {
  EXPECT_EQ(Json("a: 64Mi\nb: 12\nc: -7\nd: 1.5\ne: true\nf: ~\ng: null\nh: \"12\"\ni: '1'\n"),
            R"({"a":"64Mi","b":12,"c":-7,"d":1.5,"e":true,"f":null,"g":null,"h":"12","i":"1"})");
  EXPECT_EQ(Json("a: yes\nb: on\nc: 0x1F\nd: 0o17\ne: 1e3\nf: 12e\ng: .5\nh: 010\n"),
            R"({"a":"yes","b":"on","c":31,"d":15,"e":1000.0,"f":"12e","g":0.5,"h":10})");
  EXPECT_EQ(Json("a: 99999999999999999999\n"), R"({"a":1e+20})");
  EXPECT_EQ(Json("a: !!str 5\nb: !!int \"5\"\n"), R"({"a":"5","b":5})");
}

TEST(Yaml, ReadsJsonAsIs) {
  EXPECT_EQ(Json(R"({"a": [1, "b", {"c": null}]})"), R"({"a":[1,"b",{"c":null}]})");
}

TEST(Yaml, ReadsSeveralDocuments) {
  const auto documents = YamlToJson("a: 1\n---\n---\nb: 2\n");
  ASSERT_TRUE(documents.ok());
  ASSERT_EQ(documents->size(), 2U);
  EXPECT_EQ((*documents)[1], R"({"b":2})");
}

TEST(Yaml, NamesTheLineOfAFault) {
  for (const char* text : {"a: 1\nb: [1, 2\n", "a: 1\n a: 2: 3\n", "a: 1\nb: 2\na: 3\n",
                           "a: {b: 1}\n? [x]\n: 2\n", "a: !!int x\n"}) {
    const auto documents = YamlToJson(text);
    ASSERT_FALSE(documents.ok()) << text;
    EXPECT_EQ(documents.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(documents.status().message().find("line "), std::string::npos)
        << documents.status().message();
  }
}

TEST(Yaml, BoundsDepthAndAliases) {
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "[";
  EXPECT_FALSE(YamlToJson(deep + std::string(200, ']')).ok());
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) bomb += (j == 0 ? "" : ", ") + before;
    bomb += "]\n";
  }
  EXPECT_FALSE(YamlToJson(bomb).ok());
  EXPECT_FALSE(YamlToJson(std::string(kMaxObjectBytes + 1, ' ')).ok());
}

TEST(Yaml, CopiesAliasesAndBoundsTheirBytes) {
  EXPECT_EQ(Json("a: &x {b: [1, 2]}\nc: *x\nd: &y text\ne: *y\n"),
            R"({"a":{"b":[1,2]},"c":{"b":[1,2]},"d":"text","e":"text"})");
  EXPECT_FALSE(YamlToJson("a: &x [*x]\n").ok());
  std::string flood = "a: &x " + std::string(10'000, 'y') + "\nb: [";
  for (int i = 0; i < 1000; ++i) flood += "*x, ";
  EXPECT_FALSE(YamlToJson(flood + "*x]\n").ok());
}

// The parser's own loop over documents never ends on such texts and takes all memory.
TEST(Yaml, EndsOnGarbageBetweenDocuments) {
  for (const char* text : {"a: 1\n]\n", "a: 1\n---\nb: 1\n}\n", "]", "}\n---\n"}) {
    const auto documents = YamlToJson(text);
    EXPECT_EQ(documents.status().code(), StatusCode::kInvalidArgument) << text;
  }
  std::string many;
  for (int i = 0; i < 2000; ++i) many += "---\na: 1\n";
  EXPECT_FALSE(YamlToJson(many).ok());
}

TEST(Yaml, WritesWhatItReads) {
  const std::string json =
      R"({"a":"yes","b":"12","c":12,"d":"true","e":true,"f":null,"g":"null","h":"","i":[],)"
      R"("j":{},"k":"a: b # c","l":"line\nbreak","m":1.5,"n":"0x10","o":"~","p":" lead","q":"-",)"
      R"("r":["- x",{"s":"*t"}],"u":"\u0001\u007fé","v":"a\r","w":"\t","x":"a\n\nb\r\n","12":"key"})";
  const auto yaml = JsonToYaml(json);
  ASSERT_TRUE(yaml.ok()) << yaml.status().ToString();
  const auto back = YamlToJson(*yaml);
  ASSERT_TRUE(back.ok()) << back.status().ToString() << *yaml;
  const auto canonical = YamlToJson(json);
  EXPECT_EQ(back->front(), canonical->front()) << *yaml;
}

TEST(Yaml, RefusesToWriteKeysItCouldNotRead) {
  const std::string longest(512, 'k');
  EXPECT_TRUE(YamlToJson(*JsonToYaml(R"({")" + longest + R"(":1})")).ok());
  EXPECT_FALSE(JsonToYaml(R"({"a":[{")" + longest + R"(k":1}]})").ok());
}

}  // namespace
}  // namespace kvfabric::kube
