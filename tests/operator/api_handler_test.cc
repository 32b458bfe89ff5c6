#include "operator/kube/api_handler.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "operator/kube/api_error.h"
#include "operator/kube/api_responses.h"
#include "operator/kube/json.h"
#include "tests/fakes/temp_dir.h"
#include "tests/operator/test_objects.h"

namespace kvfabric::kube {
namespace {

constexpr const char* kMaps = "/api/v1/namespaces/default/configmaps";
constexpr const char* kPools = "/apis/kvfabric.io/v1alpha1/namespaces/default/kvcachepools";

class ApiHandlerTest : public ::testing::Test {
 protected:
  ApiHandlerTest() {
    EmbeddedKubeApi::Options options;
    options.directory = dir_.path() / "api";
    options.sync = false;
    api_ = std::move(EmbeddedKubeApi::Open(std::move(options))).value();
    options_.tokens = {{"admin", "secret"}, {"team", "other"}};
    options_.table = [](Kind, const ObjectList& list) {
      return R"({"kind":"Table","rows":)" + std::to_string(list.items.size()) + "}";
    };
    options_.schema = [](Kind kind) {
      return kind == Kind::kPool ? R"({"type":"object","properties":{"spec":{"type":"object"}}})"
                                 : "";
    };
    handler_ = std::make_unique<ApiHandler>(*api_, options_);
  }

  // `target` may carry parameters.
  ApiRequest Request(const std::string& method, const std::string& target,
                     const std::string& body = "") const {
    ApiRequest out;
    out.method = method;
    out.path = target.substr(0, target.find('?'));
    std::string rest = target.size() > out.path.size() ? target.substr(out.path.size() + 1) : "";
    while (!rest.empty()) {
      const std::string pair = rest.substr(0, rest.find('&'));
      out.query.emplace(pair.substr(0, pair.find('=')), pair.substr(pair.find('=') + 1));
      rest = rest.size() > pair.size() ? rest.substr(pair.size() + 1) : "";
    }
    out.authorization = "Bearer secret";
    out.user_agent = "kubectl/v1.35.0 (linux/amd64)";
    out.body = body;
    return out;
  }
  ApiAnswer Ask(const std::string& method, const std::string& target,
                const std::string& body = "") const {
    return handler_->Serve(Request(method, target, body));
  }
  ApiAnswer Patch(const std::string& target, const std::string& type,
                  const std::string& body) const {
    ApiRequest request = Request("PATCH", target, body);
    request.content_type = type;
    return handler_->Serve(request);
  }
  static Json Body(const ApiAnswer& answer) { return Json::parse(answer.body, nullptr, false); }
  // Creates ConfigMap a.
  void MakeMap() { ASSERT_EQ(Ask("POST", kMaps, ConfigMapJson("a", "1")).status, 201); }

  TempDir dir_;
  std::unique_ptr<EmbeddedKubeApi> api_;
  EmbeddedApiServer::Options options_;
  std::unique_ptr<ApiHandler> handler_;
};

TEST_F(ApiHandlerTest, PatchesByTheirContentTypes) {
  MakeMap();
  const std::string a = std::string(kMaps) + "/a";
  ApiAnswer answer = Patch(a, "application/merge-patch+json", R"({"data":{"m":"1"}})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  answer = Patch(a, "application/json-patch+json; charset=utf-8",
                 R"([{"op":"add","path":"/data/j","value":"1"}])");
  EXPECT_EQ(answer.status, 200) << answer.body;
  answer = Patch(a, "application/strategic-merge-patch+json", R"({"data":{"s":"1"}})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(Body(answer)["data"], Json({{"k", "1"}, {"m", "1"}, {"j", "1"}, {"s", "1"}}));
  answer =
      Patch(a, "application/json-patch+json", R"([{"op":"test","path":"/data/j","value":"2"}])");
  EXPECT_EQ(answer.status, 422) << answer.body;
  EXPECT_EQ(StringAt(Body(answer), "reason"), "Invalid");
  EXPECT_EQ(Patch(a, "text/plain", "{}").status, 415);
  EXPECT_EQ(Patch(a, "application/merge-patch+json", "{").status, 400);
}

TEST_F(ApiHandlerTest, StrategicPatchOfOursIsUnknown) {
  ASSERT_EQ(Ask("POST", kPools, BarePoolJson("p", "{}")).status, 201);
  const ApiAnswer answer =
      Patch(std::string(kPools) + "/p", "application/strategic-merge-patch+json", R"({"spec":{}})");
  EXPECT_EQ(answer.status, 415);
  EXPECT_EQ(StringAt(Body(answer), "reason"), "UnsupportedMediaType");
}

TEST_F(ApiHandlerTest, AppliesYamlAndJson) {
  const std::string p = std::string(kPools) + "/p";
  constexpr const char* kType = "application/apply-patch+yaml";
  const std::string yaml =
      "apiVersion: kvfabric.io/v1alpha1\nkind: KVCachePool\nmetadata: {name: p}\n"
      "spec: {a: 1}\n";
  EXPECT_EQ(Patch(p, kType, yaml).status, 400) << "without a fieldManager";
  ApiAnswer answer = Patch(p + "?fieldManager=one", kType, yaml);
  EXPECT_EQ(answer.status, 201) << answer.body;
  answer = Patch(p + "?fieldManager=one", kType, BarePoolJson("p", R"({"a":1})"));
  EXPECT_EQ(answer.status, 200) << answer.body;
  answer = Patch(p + "?fieldManager=two", kType, BarePoolJson("p", R"({"a":2})"));
  EXPECT_EQ(answer.status, 409) << answer.body;
  const Json causes = Body(answer)["details"]["causes"];
  ASSERT_EQ(causes.size(), 1U) << answer.body;
  EXPECT_EQ(StringAt(causes[0], "reason"), "FieldManagerConflict");
  EXPECT_EQ(StringAt(causes[0], "field"), ".spec.a");
  EXPECT_NE(StringAt(causes[0], "message").find("\"one\""), std::string::npos);
  const Status understood = StatusOfAnswer(answer.status, answer.body);
  EXPECT_TRUE(IsFieldConflict(understood)) << "as our own client reads it";
  answer = Patch(p + "?fieldManager=two&force=true", kType, BarePoolJson("p", R"({"a":2})"));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(Patch(p + "?fieldManager=two&force=perhaps", kType, "{}").status, 400);
}

TEST_F(ApiHandlerTest, DryRunStoresNothing) {
  MakeMap();
  const std::string a = std::string(kMaps) + "/a";
  const std::string before = (*api_->Get(Kind::kConfigMap, {"default", "a"}))->json;
  EXPECT_EQ(Ask("POST", std::string(kMaps) + "?dryRun=All", ConfigMapJson("b", "1")).status, 201);
  EXPECT_TRUE(IsNotFound(api_->Get(Kind::kConfigMap, {"default", "b"}).status()));
  ApiAnswer answer = Ask("PUT", a + "?dryRun=All", ConfigMapJson("a", "2"));
  EXPECT_EQ(Body(answer)["data"]["k"], "2") << answer.body;
  answer = Patch(a + "?dryRun=All", "application/merge-patch+json", R"({"data":{"k":"3"}})");
  EXPECT_EQ(Body(answer)["data"]["k"], "3") << answer.body;
  answer = Patch(a + "?dryRun=All&fieldManager=m&force=true", "application/apply-patch+yaml",
                 ConfigMapJson("a", "4"));
  EXPECT_EQ(Body(answer)["data"]["k"], "4") << answer.body;
  EXPECT_EQ(Ask("DELETE", a + "?dryRun=All").status, 200);
  EXPECT_EQ(Ask("DELETE", a, R"({"dryRun":["All"]})").status, 200);
  EXPECT_EQ((*api_->Get(Kind::kConfigMap, {"default", "a"}))->json, before);
  EXPECT_EQ(Ask("DELETE", a + "?dryRun=Some").status, 400);
  EXPECT_EQ(Ask("POST", std::string(kMaps) + "?fieldValidation=Loose", "{}").status, 400);
}

TEST_F(ApiHandlerTest, WritersAreNamedByTheirUserAgent) {
  const std::string a = std::string(kMaps) + "/a";
  ASSERT_EQ(Patch(a + "?fieldManager=one", "application/apply-patch+yaml", ConfigMapJson("a", "1"))
                .status,
            201);
  ApiAnswer answer = Patch(a, "application/merge-patch+json", R"({"data":{"k":"2"}})");
  EXPECT_NE(answer.body.find(R"("manager":"kubectl","operation":"Update")"), std::string::npos)
      << answer.body;
  answer = Patch(a + "?fieldManager=kubectl-edit", "application/merge-patch+json",
                 R"({"data":{"k":"3"}})");
  EXPECT_NE(answer.body.find(R"("manager":"kubectl-edit")"), std::string::npos) << answer.body;
}

TEST_F(ApiHandlerTest, AnswersInTheFormThatIsAskedFor) {
  MakeMap();
  ApiRequest request = Request("GET", kMaps);
  const auto answer = [&](const std::string& accept) {
    request.accept = accept;
    return handler_->Serve(request);
  };
  constexpr const char* kKubectl =
      "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;"
      "g=meta.k8s.io,application/json";
  EXPECT_EQ(StringAt(Body(answer(kKubectl)), "kind"), "Table");
  EXPECT_EQ(StringAt(Body(answer("application/json")), "kind"), "ConfigMapList");
  EXPECT_EQ(StringAt(Body(answer("")), "kind"), "ConfigMapList");
  EXPECT_EQ(StringAt(Body(answer("application/vnd.kubernetes.protobuf, */*")), "kind"),
            "ConfigMapList");
  EXPECT_EQ(answer("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").status, 406);
  EXPECT_EQ(answer("application/vnd.kubernetes.protobuf").status, 406);
  EXPECT_EQ(StringAt(Body(answer("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,"
                                 "application/json")),
                     "kind"),
            "ConfigMapList");
}

TEST_F(ApiHandlerTest, ListsObeyTheirParameters) {
  MakeMap();
  const std::string list = kMaps;
  const auto items = [&](const std::string& parameters) {
    return Body(Ask("GET", list + parameters))["items"].size();
  };
  EXPECT_EQ(items("?limit=500&resourceVersion=0"), 1U);
  EXPECT_EQ(items("?fieldSelector=metadata.name=b"), 0U);
  EXPECT_EQ(items("?labelSelector=!x"), 1U);
  EXPECT_EQ(Ask("GET", list + "?fieldSelector=data.k=1").status, 400);
  EXPECT_EQ(Ask("GET", list + "?continue=token").status, 410);
  EXPECT_EQ(Ask("GET", list + "?resourceVersion=x").status, 400);
  const ApiAnswer late = Ask("GET", list + "?resourceVersion=999999999");
  EXPECT_EQ(late.status, 504) << late.body;
  EXPECT_EQ(late.retry_after_s, 1U);
  EXPECT_TRUE(IsResourceVersionTooLarge(StatusOfAnswer(late.status, late.body)));
  const std::string version = StringAt(Body(Ask("GET", list))["metadata"], "resourceVersion");
  EXPECT_EQ(Ask("GET", list + "?resourceVersionMatch=Exact&resourceVersion=" + version).status,
            200);
  ASSERT_EQ(Ask("POST", kMaps, ConfigMapJson("b", "1")).status, 201);
  EXPECT_EQ(Ask("GET", list + "?resourceVersionMatch=Exact&resourceVersion=" + version).status,
            410);
}

TEST_F(ApiHandlerTest, WatchesAreReadAndHandedOn) {
  const std::string list = kMaps;
  const auto watch = [&](const std::string& parameters) {
    return Ask("GET", list + "?watch=1" + parameters);
  };
  ApiAnswer answer = watch("&resourceVersion=7&timeoutSeconds=30&allowWatchBookmarks=true");
  ASSERT_TRUE(answer.watch.has_value()) << answer.body;
  EXPECT_EQ(answer.watch->from.resource_version, 7U);
  EXPECT_FALSE(answer.watch->from.initial_events);
  EXPECT_TRUE(answer.watch->bookmarks);
  EXPECT_EQ(answer.watch->timeout, std::chrono::seconds(30));
  EXPECT_EQ(answer.watch->scope.ns, "default");
  for (const char* parameters : {"", "&resourceVersion=0"}) {
    answer = watch(parameters);
    ASSERT_TRUE(answer.watch.has_value());
    EXPECT_TRUE(answer.watch->from.initial_events) << "what is there comes first";
    EXPECT_FALSE(answer.watch->initial_end);
  }
  answer =
      watch("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
  ASSERT_TRUE(answer.watch.has_value()) << answer.body;
  EXPECT_TRUE(answer.watch->from.initial_events && answer.watch->initial_end);
  EXPECT_EQ(watch("&sendInitialEvents=true").status, 400);
  EXPECT_EQ(watch("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan").status, 400);
}

TEST_F(ApiHandlerTest, DeletionTellsWhichObjectWentAndRefusesCollections) {
  MakeMap();
  const std::string uid = (*api_->Get(Kind::kConfigMap, {"default", "a"}))->meta.uid;
  const ApiAnswer all = Ask("DELETE", kMaps);
  EXPECT_EQ(all.status, 405);
  EXPECT_NE(all.body.find("delete objects by their names"), std::string::npos) << all.body;
  const ApiAnswer answer = Ask("DELETE", std::string(kMaps) + "/a");
  EXPECT_EQ(StringAt(Body(answer)["details"], "uid"), uid) << answer.body;
}

TEST_F(ApiHandlerTest, DiscoveryNamesWhatIsServed) {
  const Json resources = Body(Ask("GET", "/apis/kvfabric.io/v1alpha1"))["resources"];
  ASSERT_EQ(resources.size(), 3U);
  EXPECT_EQ(resources[0]["verbs"],
            Json({"create", "delete", "get", "list", "patch", "update", "watch"}));
  EXPECT_EQ(resources[1]["verbs"], Json({"get", "patch", "update"}));
}

TEST_F(ApiHandlerTest, OpenApiDescribesOurKindsAndThePatch) {
  const Json index = Body(Ask("GET", "/openapi/v3"))["paths"];
  const std::string address = StringAt(index["apis/kvfabric.io/v1alpha1"], "serverRelativeURL");
  ASSERT_NE(address.find("?hash="), std::string::npos) << index.dump();
  const Json document = Body(Ask("GET", address));
  const Json schema = document["components"]["schemas"]["kvfabric.io.v1alpha1.KVCachePool"];
  EXPECT_EQ(schema["properties"]["spec"]["type"], "object") << document.dump();
  EXPECT_EQ(schema["x-kubernetes-group-version-kind"][0]["kind"], "KVCachePool");
  const Json patch = document["paths"][std::string(
      "/apis/kvfabric.io/v1alpha1/namespaces/{namespace}/kvcachepools/{name}")]["patch"];
  EXPECT_NE(patch.dump().find("fieldValidation"), std::string::npos);
  EXPECT_EQ(Ask("GET", "/openapi/v3/apis/none/v1").status, 404);
  EXPECT_EQ(Ask("GET", "/openapi/v2").status, 404);
}

}  // namespace
}  // namespace kvfabric::kube
