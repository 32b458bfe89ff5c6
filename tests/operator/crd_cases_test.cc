// The table in api/crd/cases, which e2e/test_crds.py runs unchanged on a real API server.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "operator/kube/json.h"
#include "operator/kube/yaml.h"
#include "operator/specs/crd_schema.h"

namespace kvfabric {
namespace {

using kube::Cause;
using kube::Kind;

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::filesystem::path> Cases(const char* kind) {
  std::vector<std::filesystem::path> out;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string("api/crd/cases/") + kind)) {
    if (entry.path().extension() == ".yaml") out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Checks every document as the one before it was stored; the faults of the last, and what would be
// stored of it.
std::vector<Cause> FaultsOfLast(const std::filesystem::path& path, std::string* last = nullptr) {
  const auto documents = kube::YamlToJson(ReadAll(path));
  EXPECT_TRUE(documents.ok()) << path << ": " << documents.status().ToString();
  std::vector<Cause> faults;
  std::string stored;
  for (std::size_t i = 0; documents.ok() && i < documents->size(); ++i) {
    EXPECT_TRUE(faults.empty()) << path << ": only the last document may have faults: "
                                << faults.front().field << ": " << faults.front().message;
    const auto checked =
        CrdSchema::Of(Kind::kPool).Check((*documents)[i], i == 0 ? nullptr : &stored, &faults);
    EXPECT_TRUE(checked.ok()) << path << ": " << checked.status().ToString();
    if (checked.ok()) stored = *checked;
  }
  if (last != nullptr) *last = stored;
  return faults;
}

// Every API server puts the value before the text of a rule in its own way, so the table has the
// text alone: cut what stands before it when the field and the rest are as expected.
std::set<std::string> Lines(const std::vector<Cause>& causes,
                            const std::set<std::string>& expected = {}) {
  std::set<std::string> out;
  for (const Cause& cause : causes) {
    std::string line = cause.field + ": " + cause.message;
    for (std::size_t at = 0; (at = cause.message.find(": ", at)) != std::string::npos; ++at) {
      const std::string cut = cause.field + ": " + cause.message.substr(at + 2);
      if (expected.count(cut) != 0) line = cut;
    }
    out.insert(line);
  }
  return out;
}

std::set<std::string> Expected(const std::filesystem::path& path) {
  std::set<std::string> out;
  std::istringstream lines(ReadAll(path));
  for (std::string line; std::getline(lines, line);) {
    for (const std::string mark : {"# expect: ", "# expect-schema: "}) {
      if (line.compare(0, mark.size(), mark) == 0) out.insert(line.substr(mark.size()));
    }
  }
  return out;
}

TEST(CrdCases, GoodPoolsAreTaken) {
  const auto cases = Cases("good");
  EXPECT_GE(cases.size(), 7U);
  for (const auto& path : cases)
    EXPECT_EQ(Lines(FaultsOfLast(path)), std::set<std::string>()) << path;
}

TEST(CrdCases, GoodPoolsAreFilledInAsByAnApiServer) {
  for (const auto& path : Cases("good")) {
    std::string last;
    FaultsOfLast(path, &last);
    const auto expected =
        kube::ParseJson(ReadAll("api/crd/cases/stored/" + path.stem().string() + ".json"));
    ASSERT_TRUE(expected.ok()) << path << ": " << expected.status().ToString() << ": write "
                               << kube::Json::parse(last)["spec"].dump(2);
    EXPECT_EQ(kube::Json::parse(last)["spec"].dump(2), expected->dump(2)) << path;
  }
}

TEST(CrdCases, BadPoolsAreRefusedWithEveryFault) {
  const auto cases = Cases("bad");
  EXPECT_GE(cases.size(), 30U);
  for (const auto& path : cases) {
    const auto expected = Expected(path);
    EXPECT_FALSE(expected.empty()) << path;
    EXPECT_EQ(Lines(FaultsOfLast(path), expected), expected) << path;
  }
}

TEST(CrdCases, FaultsOfRulesShowTheValueTheyAreAbout) {
  std::vector<Cause> faults;
  ASSERT_TRUE(CrdSchema::Of(Kind::kPool)
                  .Check(R"({"spec":{"tiers":[{"name":"d","type":"DRAM","capacityPerNode":"0",)"
                         R"("lowWatermarkPercent":95}],"sharding":{"acks":"Replicated"}}})",
                         nullptr, &faults)
                  .ok());
  std::set<std::string> starts;
  for (const Cause& cause : faults) {
    starts.insert(cause.field + ": " + cause.message.substr(0, cause.message.find(':')));
  }
  EXPECT_EQ(starts, (std::set<std::string>{"spec.sharding.acks: \"Replicated\"",
                                           "spec.tiers[0].capacityPerNode: \"0\""}));
}

// A rule that no bad case breaks is a rule nobody has seen work.
TEST(CrdCases, EveryRuleOfThePoolIsBrokenByACase) {
  std::string all;
  for (const auto& path : Cases("bad")) all += ReadAll(path);
  std::ifstream crd("api/crd/kvcachepools.yaml");
  std::size_t rules = 0;
  for (std::string line; std::getline(crd, line);) {
    const std::string mark = "message: \"";
    const std::size_t at = line.find(mark);
    if (at == std::string::npos) continue;
    ++rules;
    const std::string text = line.substr(at + mark.size(), line.size() - at - mark.size() - 1);
    EXPECT_NE(all.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(rules, CrdSchema::Of(Kind::kPool).rules().size());
}

TEST(CrdSchema, RefusesWhatItDoesNotImplement) {
  const std::string head =
      "spec: {versions: [{schema: {openAPIV3Schema: {type: object, properties: {spec: ";
  const std::string tail = "}}}}]}";
  EXPECT_TRUE(CrdSchema::Parse(head + "{type: string, maxLength: 5}" + tail).ok());
  for (const char* bad :
       {"{type: number}", "{type: string, oneOf: []}", "{type: array}",
        "{type: string, pattern: a}",
        "{type: string, x-kubernetes-validations: [{rule: 'self != 1', message: no}]}"}) {
    EXPECT_FALSE(CrdSchema::Parse(head + bad + tail).ok()) << bad;
  }
}

TEST(CrdSchema, FillsDefaultsParentsFirst) {
  std::vector<Cause> faults;
  const auto pool = CrdSchema::Of(Kind::kPool)
                        .Check(R"({"spec":{"tiers":[{"name":"d","type":"DRAM",)"
                               R"("capacityPerNode":"1Gi"}],"sharding":{"replicas":2}}})",
                               nullptr, &faults);
  ASSERT_TRUE(pool.ok());
  EXPECT_TRUE(faults.empty());
  for (const char* part :
       {R"("nodeLossGracePeriod":"5m")", R"("slots":16384)", R"("replicas":2)", R"("acks":"Local")",
        R"("evictionPolicy":"ReuseAware")", R"("tenants":[])", R"("transport":"MTLS")"}) {
    EXPECT_NE(pool->find(part), std::string::npos) << part << " in " << *pool;
  }
}

TEST(CrdSchema, ChecksTwiceAlike) {
  const auto documents = kube::YamlToJson(ReadAll("api/crd/cases/good/everything.yaml"));
  std::vector<Cause> faults;
  const std::string once = *CrdSchema::Of(Kind::kPool).Check(documents->front(), nullptr, &faults);
  EXPECT_EQ(*CrdSchema::Of(Kind::kPool).Check(once, &once, &faults), once);
  EXPECT_TRUE(faults.empty());
}

TEST(CrdAdmission, SaysWhatIsWrongWithTheObject) {
  const CrdAdmission admission;
  const auto refused =
      admission.Admit(Kind::kPool,
                      R"({"apiVersion":"kvfabric.io/v1alpha1","kind":"KVCachePool",)"
                      R"("metadata":{"namespace":"a","name":"b"},"spec":{"tiers":[]}})",
                      nullptr);
  ASSERT_TRUE(kube::IsInvalid(refused.status()));
  EXPECT_NE(
      refused.status().message().find("KVCachePool \"a/b\" is invalid: 1 fault\nspec.tiers: "),
      std::string::npos)
      << refused.status().message();
  EXPECT_EQ(*admission.Admit(Kind::kNode, "anything", nullptr), "anything");
}

}  // namespace
}  // namespace kvfabric
