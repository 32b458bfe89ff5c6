#include "operator/kube/object_patch.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvfabric::kube {
namespace {

Json Parsed(const std::string& text) { return Json::parse(text); }

Json Strategic(Kind kind, const std::string& target, const std::string& patch) {
  Json out = Parsed(target);
  const Status done = ApplyStrategicPatch(MergeNode::Of(kind, {}), Parsed(patch), out);
  EXPECT_TRUE(done.ok()) << done.ToString();
  return out;
}

TEST(ObjectPatch, MergeRemovesNulls) {
  Json target = Parsed(R"({"a":1,"b":{"c":1,"d":2},"l":[1,2]})");
  ASSERT_TRUE(ApplyMergePatch(Parsed(R"({"a":null,"b":{"c":3},"l":[9]})"), target).ok());
  EXPECT_EQ(target, Parsed(R"({"b":{"c":3,"d":2},"l":[9]})"));
  EXPECT_FALSE(ApplyMergePatch(Parsed("[1]"), target).ok());
}

TEST(ObjectPatch, JsonPatchNamesTheOperationThatFailed) {
  Json target = Parsed(R"({"a":1})");
  const Status failed = ApplyJsonPatch(
      Parsed(R"([{"op":"test","path":"/a","value":1},{"op":"test","path":"/a","value":2}])"),
      target);
  EXPECT_NE(failed.message().find("operation 1 (test /a)"), std::string::npos) << failed.ToString();
  EXPECT_FALSE(ApplyJsonPatch(Parsed(R"([{"op":"jump","path":"/a"}])"), target).ok());
  EXPECT_FALSE(ApplyJsonPatch(Parsed(R"({"op":"test"})"), target).ok());
}

TEST(ObjectPatch, CopiesThatDoubleAreStopped) {
  Json target = Parsed(R"({"a":{"t":")" + std::string(1000, 'x') + R"("}})");
  Json patch = Json::array();
  for (int i = 0; i < 200; ++i) {
    patch.push_back({{"op", "copy"}, {"from", "/a"}, {"path", "/a/n" + std::to_string(i)}});
  }
  EXPECT_FALSE(ApplyJsonPatch(patch, target).ok());
  EXPECT_LT(target.dump().size(), 2 * kMaxObjectBytes + 4096);
  const Json many(kMaxPatchOperations + 1, {{"op", "test"}, {"path", "/a"}, {"value", 1}});
  EXPECT_FALSE(ApplyJsonPatch(many, target).ok());
}

TEST(ObjectPatch, StrategicMergesListsByTheirKeys) {
  const std::string node =
      R"({"spec":{"taints":[{"key":"a"}]},"status":{"conditions":[{"type":"Ready","status":"True"},)"
      R"({"type":"DiskPressure","status":"False"}]}})";
  EXPECT_EQ(
      Strategic(Kind::kNode, node,
                R"({"status":{"$setElementOrder/conditions":[{"type":"Ready"}],"conditions":)"
                R"([{"type":"Ready","status":"False"},{"type":"DiskPressure","$patch":"delete"},)"
                R"({"type":"New","status":"True"}]}})")["status"]["conditions"],
      Parsed(R"([{"type":"Ready","status":"False"},{"type":"New","status":"True"}])"));
  EXPECT_EQ(Strategic(Kind::kNode, node, R"({"spec":{"taints":[{"key":"b"}]}})")["spec"]["taints"],
            Parsed(R"([{"key":"b"}])"))
      << "a list without a rule is replaced";
}

TEST(ObjectPatch, StrategicObeysItsDirectives) {
  const std::string pod =
      R"({"metadata":{"finalizers":["a","b"],"labels":{"x":"1"}},"spec":{"v":{"emptyDir":{},"n":1}}})";
  EXPECT_EQ(Strategic(Kind::kPod, pod,
                      R"({"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],)"
                      R"("finalizers":["c"],"labels":{"x":null}}})")["metadata"],
            Parsed(R"({"finalizers":["b","c"],"labels":{}})"));
  EXPECT_EQ(
      Strategic(Kind::kPod, pod,
                R"({"spec":{"v":{"$retainKeys":["hostPath"],"hostPath":{"path":"/"}}}})")["spec"],
      Parsed(R"({"v":{"hostPath":{"path":"/"}}})"));
  EXPECT_EQ(Strategic(Kind::kPod, pod, R"({"spec":{"v":{"$patch":"replace","n":2}}})")["spec"],
            Parsed(R"({"v":{"n":2}})"));
  EXPECT_FALSE(
      Strategic(Kind::kPod, pod, R"({"spec":{"v":{"$patch":"delete"}}})")["spec"].contains("v"));
  EXPECT_EQ(Strategic(Kind::kPod, R"({"spec":{}})",
                      R"({"spec":{"containers":[{"name":"c","$patch":"delete"},{"name":"d"}]}})"),
            Parsed(R"({"spec":{"containers":[{"name":"d"}]}})"));
}

}  // namespace
}  // namespace kvfabric::kube
