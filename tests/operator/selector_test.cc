#include "operator/kube/selector.h"

#include <gtest/gtest.h>

namespace kvfabric::kube {
namespace {

Object Pod(const std::string& labels) {
  return *ParseObject(
      Kind::kPod, R"({"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"n","name":"p",)"
                  R"("labels":{)" +
                      labels + R"(}},"spec":{"nodeName":"node-1"},"status":{"phase":"Running"}})");
}

bool Selects(const std::string& labels, const std::string& fields = "") {
  const auto selector = ObjectSelector::Parse(Kind::kPod, {"", labels, fields});
  EXPECT_TRUE(selector.ok()) << selector.status().ToString();
  return selector.ok() && selector->Matches(Pod(R"("app":"kvf","x":"1","example.com/k":"")"));
}

TEST(ObjectSelector, SelectsByLabels) {
  for (const char* yes : {"", "app=kvf", "app==kvf,x=1", "app!=other", "x", "!y", "y!=1",
                          "app in (kvf, b)", "app notin (a,b)", "y notin (a)",
                          " app = kvf , x in (1) ", "example.com/k=", "example.com/k in ()"}) {
    EXPECT_TRUE(Selects(yes)) << yes;
  }
  for (const char* no : {"app=other", "app=kvf,x=2", "y", "!x", "x!=1", "app in (a)", "y in (a)",
                         "app notin (kvf)", "app="}) {
    EXPECT_FALSE(Selects(no)) << no;
  }
}

TEST(ObjectSelector, SelectsByFields) {
  for (const char* yes : {"metadata.name=p", "metadata.namespace==n", "metadata.name!=q",
                          "spec.nodeName=node-1,status.phase!=Failed"}) {
    EXPECT_TRUE(Selects("", yes)) << yes;
  }
  EXPECT_FALSE(Selects("", "spec.nodeName=node-2"));
  EXPECT_FALSE(Selects("", "metadata.name=q"));
}

TEST(ObjectSelector, RefusesByName) {
  for (const char* bad : {"a b", "=x", "a in b", "a in (b", "a within (b)", ",", "a>1", "!"}) {
    const auto selector = ObjectSelector::Parse(Kind::kPod, {"", bad, ""});
    EXPECT_EQ(selector.status().code(), StatusCode::kInvalidArgument) << bad;
  }
  const auto field = ObjectSelector::Parse(Kind::kPool, {"", "", "spec.nodeName=x"});
  EXPECT_NE(field.status().message().find("spec.nodeName"), std::string::npos);
  EXPECT_FALSE(ObjectSelector::Parse(Kind::kPod, {"", "", "metadata.name"}).ok());
}

}  // namespace
}  // namespace kvfabric::kube
