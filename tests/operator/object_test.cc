#include "operator/kube/object.h"

#include <gtest/gtest.h>

#include "operator/kube/api_error.h"
#include "operator/kube/api_path.h"
#include "operator/kube/api_responses.h"
#include "operator/kube/conditions.h"
#include "operator/kube/timestamp.h"
#include "tests/operator/test_objects.h"

namespace kvfabric::kube {
namespace {

TEST(Object, ParsesMetadata) {
  const auto object =
      ParseObject(Kind::kNode, NodeJson("n1", R"(,"uid":"u","resourceVersion":"42","generation":3,)"
                                              R"("labels":{"a":"b"},"annotations":{"c":"d"})"));
  ASSERT_TRUE(object.ok()) << object.status().ToString();
  EXPECT_EQ(object->meta.name, (ObjectName{"", "n1"}));
  EXPECT_EQ(object->meta.uid, "u");
  EXPECT_EQ(object->meta.resource_version, 42U);
  EXPECT_EQ(object->meta.generation, 3);
  EXPECT_EQ(object->meta.labels.at("a"), "b");
  EXPECT_EQ(object->meta.annotations.at("c"), "d");
}

TEST(Object, RefusesWhatItIsNot) {
  EXPECT_FALSE(ParseObject(Kind::kPod, NodeJson("n1")).ok());
  EXPECT_FALSE(ParseObject(Kind::kNode, "[]").ok());
  EXPECT_FALSE(ParseObject(Kind::kNode, "{").ok());
  EXPECT_FALSE(ParseObject(Kind::kNode, NodeJson("n", R"(,"resourceVersion":"x1")")).ok());
  EXPECT_FALSE(ParseObject(Kind::kNode, NodeJson("n", R"(,"namespace":"default")")).ok());
}

TEST(ApiError, CausesSurviveTheText) {
  const std::vector<Cause> causes = {{"spec.a", "1: must be 2; write 2 instead"},
                                     {"spec.b[0]", "x: y"}};
  const Status status = Invalid(Kind::kPool, {"ns", "p"}, causes);
  EXPECT_EQ(CausesOf(status), causes);
  EXPECT_TRUE(CausesOf(InvalidArgument("a\nb: c")).empty());
  const Status back = StatusOfAnswer(422, StatusBody(status));
  EXPECT_EQ(back, status);
}

TEST(ApiError, CodesGoThroughHttpAndBack) {
  for (const Status& status :
       {Conflict(Kind::kPool, {"a", "b"}, "changed"), ObjectNotFound(Kind::kPool, {"a", "b"}),
        ObjectExists(Kind::kPool, {"a", "b"}), Status(StatusCode::kOutOfRange, "old"),
        Unauthenticated("who"), PermissionDenied("no"), Unavailable("later"), Internal("broken"),
        Unimplemented("not yet"), DeadlineExceeded("late"), InvalidArgument("bad")}) {
    EXPECT_EQ(StatusOfAnswer(HttpReasonOf(status).code, StatusBody(status)), status);
  }
  EXPECT_EQ(StatusOfAnswer(404, "<html>").code(), StatusCode::kNotFound);
  EXPECT_TRUE(StatusOfAnswer(201, "anything").ok());
}

TEST(ApiError, AnswersKeepWhatTheApiSaysBesides) {
  const Status lagging = StatusOfAnswer(
      504,
      R"({"kind":"Status","apiVersion":"v1","reason":"Timeout","message":"Too large resource )"
      R"(version","details":{"retryAfterSeconds":1,"causes":[{"reason":"ResourceVersionTooLarge",)"
      R"("message":"Too large resource version"}]}})");
  EXPECT_TRUE(IsResourceVersionTooLarge(lagging.WithContext("list")));
  EXPECT_EQ(RetryAfterOf(lagging), std::chrono::milliseconds(1000));
  EXPECT_EQ(ApiDetailOf(lagging)->http_code, 504);

  const Status field = StatusOfAnswer(
      409, R"({"kind":"Status","reason":"Conflict","message":"Apply failed","details":{"causes":)"
           R"([{"reason":"FieldManagerConflict","field":".data.a","message":"owned"}]}})");
  EXPECT_TRUE(IsFieldConflict(field));
  const Status stale =
      StatusOfAnswer(409, R"({"kind":"Status","reason":"Conflict","message":"modified"})");
  EXPECT_TRUE(IsConflict(stale) && !IsFieldConflict(stale));

  const Status busy = StatusOfAnswer(429, "slow down", std::chrono::milliseconds(5000));
  EXPECT_EQ(busy.code(), StatusCode::kUnavailable);
  EXPECT_EQ(RetryAfterOf(busy), std::chrono::milliseconds(5000));
  EXPECT_FALSE(RetryAfterOf(Unavailable("not from an answer")).has_value());
  // A number nobody would wait for is bounded.
  const Status absurd = StatusOfAnswer(
      503, R"({"kind":"Status","message":"","details":{"retryAfterSeconds":99999999999999}})");
  EXPECT_EQ(RetryAfterOf(absurd), std::chrono::hours(1));
}

TEST(ApiPath, GoesBothWays) {
  for (const char* path : {"/api/v1/nodes", "/api/v1/nodes/n1", "/api/v1/nodes/n1/status",
                           "/api/v1/pods", "/api/v1/namespaces/kvfabric-system/pods/p",
                           "/api/v1/namespaces/x", "/apis/apps/v1/namespaces/x/daemonsets/d",
                           "/apis/kvfabric.io/v1alpha1/namespaces/default/kvcachepools/main/status",
                           "/apis/coordination.k8s.io/v1/namespaces/kvfabric-system/leases/x"}) {
    const auto parsed = ParseApiPath(path);
    ASSERT_TRUE(parsed.has_value()) << path;
    EXPECT_EQ(FormatApiPath(*parsed), path);
  }
  for (const char* path :
       {"", "/", "/api/v1", "/api/v1/services", "/api/v1/pods/p", "/api/v1/namespaces/X",
        "/api/v1/namespaces/x/nodes", "/api/v1/nodes/n1/log", "/api/v1/nodes/n1/status/x",
        "/api/v1/namespaces/../pods/p", "/apis/coordination.k8s.io/v1/namespaces/a/leases/x/status",
        "/apis/kvfabric.io/v1/kvcachepools"}) {
    EXPECT_FALSE(ParseApiPath(path).has_value()) << path;
  }
}

TEST(Conditions, TimeMovesOnlyWhenTheStatusFlips) {
  constexpr std::int64_t kHour = 3'600'000'000;
  std::vector<Condition> conditions;
  Condition ready{"Ready", ConditionStatus::kTrue, "AllWell", "3 of 3", "", 1};
  EXPECT_EQ(SetCondition(conditions, ready, kHour), ConditionChange::kFlip);
  EXPECT_EQ(SetCondition(conditions, ready, 2 * kHour), ConditionChange::kNone);
  ready.message = "4 of 4";
  EXPECT_EQ(SetCondition(conditions, ready, 3 * kHour), ConditionChange::kText);
  EXPECT_EQ(FindCondition(conditions, "Ready")->last_transition_time, "1970-01-01T01:00:00Z");
  ready.status = ConditionStatus::kFalse;
  EXPECT_EQ(SetCondition(conditions, ready, 4 * kHour), ConditionChange::kFlip);
  EXPECT_EQ(FindCondition(conditions, "Ready")->last_transition_time, "1970-01-01T04:00:00Z");
  EXPECT_EQ(FindCondition(conditions, "Other"), nullptr);
}

TEST(Timestamp, GoesBothWays) {
  const std::int64_t at = 1'795'000'000'123'456;
  EXPECT_EQ(FormatMicroTime(at), "2026-11-18T11:06:40.123456Z");
  EXPECT_EQ(ParseTime(FormatMicroTime(at)), at);
  EXPECT_EQ(ParseTime(FormatTime(at)), at / 1'000'000 * 1'000'000);
  for (const char* bad :
       {"", "2026", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T25:00:00Z",
        "2026-01-01T00:00:00", "2026-01-01T00:00:00.Z", "2026-01-01 00:00:00Z"}) {
    EXPECT_FALSE(ParseTime(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace kvfabric::kube
