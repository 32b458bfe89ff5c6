#include <gtest/gtest.h>

#include <string>

#include "trace/trace_reader.h"

namespace kvfabric {
namespace {

std::string CauseOf(const std::string& line) {
  TraceRequest request;
  return ParseTraceLine(line, request).message();
}

TEST(ParseTraceLine, ReadsTheFieldsInAnyOrder) {
  TraceRequest request;
  const Status status = ParseTraceLine(
      R"({"hash_ids":[0, 18446744073709551615,7],"output_length":4294967295,"timestamp":1234,)"
      R"("input_length": 1100})",
      request);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(request.timestamp_ms, 1234);
  EXPECT_EQ(request.input_length, 1100U);
  EXPECT_EQ(request.output_length, 4294967295U);
  EXPECT_EQ(request.block_ids, (std::vector<std::uint64_t>{0, ~0ULL, 7}));
}

TEST(ParseTraceLine, IgnoresFurtherFieldsOfAnyKind) {
  TraceRequest request;
  const Status status = ParseTraceLine(
      R"({"stop":"tool_use","timestamp":0.5,"meta":{"hash_ids":[9],"timestamp":"x","a":[[-1.5]]},)"
      R"("input_length":1,"output_length":2,"hash_ids":[3],"n":null,"b":true,"l":[1,[2]],"z":-3})",
      request);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(request.timestamp_ms, 0.5);
  EXPECT_EQ(request.block_ids, std::vector<std::uint64_t>{3});
}

TEST(ParseTraceLine, ForgetsThePreviousRequest) {
  TraceRequest request;
  request.block_ids = {1, 2, 3};
  ASSERT_TRUE(
      ParseTraceLine(R"({"timestamp":0,"input_length":0,"output_length":0,"hash_ids":[]})", request)
          .ok());
  EXPECT_TRUE(request.block_ids.empty());
}

TEST(ParseTraceLine, NamesAMissingOrRepeatedField) {
  EXPECT_EQ(CauseOf(R"({"timestamp":0,"input_length":1,"hash_ids":[]})"), "output_length: missing");
  EXPECT_EQ(CauseOf("{}"), "timestamp: missing");
  EXPECT_EQ(CauseOf(R"({"timestamp":0,"timestamp":1})"), "timestamp: given twice");
}

TEST(ParseTraceLine, RefusesValuesOfTheWrongKind) {
  EXPECT_EQ(CauseOf(R"({"timestamp":-1})"),
            "timestamp: not a number >= 0 (found a negative number)");
  EXPECT_EQ(CauseOf(R"({"timestamp":-0.5})"), "timestamp: not finite or negative");
  EXPECT_EQ(CauseOf(R"({"input_length":"7"})"),
            "input_length: not a whole number >= 0 (found a string)");
  EXPECT_EQ(CauseOf(R"({"input_length":1.5})"),
            "input_length: not a whole number >= 0 (found a fraction)");
  EXPECT_EQ(CauseOf(R"({"output_length":4294967296})"),
            "output_length: too large (4294967296, limit 4294967295)");
  for (const char* ids : {"5", "null", "{}", "[-1]", "[1.0]", "[[1]]", "[\"1\"]", "[null]"}) {
    EXPECT_NE(CauseOf(std::string(R"({"hash_ids":)") + ids + "}")
                  .find("hash_ids: not an array of whole numbers >= 0"),
              std::string::npos)
        << ids;
  }
  EXPECT_NE(CauseOf(R"({"hash_ids":[18446744073709551616]})"), "");
}

TEST(ParseTraceLine, RefusesWhatIsNotAnObject) {
  for (const char* line : {"", "[]", "7", "null", "\"x\"", "{", "{\"timestamp\":1e999}", "{}{}",
                           "{\"a\":\"\xff\"}", "not json"}) {
    EXPECT_EQ(CauseOf(line).rfind("not a JSON object", 0), 0U) << line << " -> " << CauseOf(line);
  }
}

TEST(ParseTraceLine, KeepsItsErrorShortForALongToken) {
  EXPECT_LT(CauseOf("{\"a\":\"" + std::string(1 << 20, 'x')).size(), 300U);
}

}  // namespace
}  // namespace kvfabric
