#pragma once

// ObjectSelector: which objects of a kind a Scope is about, parsed once. A value; any thread.
//
// Labels as the API takes them: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`.
// Fields: metadata.name and metadata.namespace, and of Pods spec.nodeName and status.phase, with
// `=`, `==` and `!=`.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

class ObjectSelector {
 public:
  // INVALID_ARGUMENT names the term that is not served, and what is.
  static Result<ObjectSelector> Parse(Kind kind, const Scope& scope);

  bool Matches(const Object& object) const;

 private:
  enum class Test : std::uint8_t { kIn, kNotIn, kExists, kAbsent };
  struct Requirement {
    std::string key;
    Test test = Test::kExists;
    std::set<std::string, std::less<>> values;
  };
  ObjectSelector() = default;
  static Result<Requirement> ParseLabelTerm(std::string_view term);
  static Result<Requirement> ParseFieldTerm(Kind kind, std::string_view term);

  std::string ns_;  // "" = all
  std::vector<Requirement> labels_;
  std::vector<Requirement> fields_;
};

}  // namespace kvfabric::kube
