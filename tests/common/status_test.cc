#include "common/status.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvfabric {
namespace {

Status Fail() { return NotFound("pool a/b: not known here"); }
Result<int> Twice(Result<int> in) {
  KVF_ASSIGN_OR_RETURN(const int value, std::move(in));
  return value * 2;
}
Status Chain(bool fail) {
  if (fail) KVF_RETURN_IF_ERROR(Fail());
  return Status::Ok();
}

TEST(Status, CarriesCodeAndText) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().ToString(), "OK");
  EXPECT_EQ(Fail().code(), StatusCode::kNotFound);
  EXPECT_EQ(Fail().ToString(), "NOT_FOUND: pool a/b: not known here");
  EXPECT_EQ(Fail().WithContext("hello").message(), "hello: pool a/b: not known here");
  EXPECT_EQ(Chain(true), Fail());
  EXPECT_TRUE(Chain(false).ok());
}

struct RetryIn final : StatusDetail {
  explicit RetryIn(int s) : seconds(s) {}
  const int seconds;
};

TEST(Status, CarriesADetailThroughContext) {
  const Status status(StatusCode::kUnavailable, "busy", std::make_shared<const RetryIn>(3));
  const auto* detail = dynamic_cast<const RetryIn*>(status.WithContext("api").detail());
  ASSERT_NE(detail, nullptr);
  EXPECT_EQ(detail->seconds, 3);
  EXPECT_EQ(Fail().detail(), nullptr);
  EXPECT_EQ(Status().detail(), nullptr);
  EXPECT_EQ(Status(StatusCode::kUnavailable, "", std::make_shared<const RetryIn>(1)).ToString(),
            "UNAVAILABLE");
}

TEST(Result, PropagatesValueAndError) {
  EXPECT_EQ(*Twice(21), 42);
  EXPECT_EQ(Twice(Fail()).status(), Fail());
  EXPECT_EQ(Result<int>(Fail()).value_or(7), 7);
}

TEST(Status, MapsErrnoToACodeACallerCanActOn) {
  EXPECT_EQ(ErrnoStatus(ENOSPC, "write").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(ECONNREFUSED, "connect").code(), StatusCode::kUnavailable);
  EXPECT_NE(ErrnoStatus(EACCES, "open /x").message().find("open /x: "), std::string::npos);
}

}  // namespace
}  // namespace kvfabric
