#pragma once

// CrdSchema: a CustomResourceDefinition of ours (api/crd), read once, and what an API server does
// with it: fills in defaults, refuses unknown fields, checks types, bounds, lists and CEL rules.
// Every fault is reported at once. The CEL rules are the ones of the file, texts included; each has
// its C++ counterpart in cel_rules.cc, found by the text of the rule, so that neither can change
// alone.
//
// Immutable after construction; any thread.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "operator/kube/api_error.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/kube/object.h"

namespace kvfabric {

struct SchemaNode;

class CrdSchema {
 public:
  // The schema of a kind of ours; Pool or ShardMap.
  static const CrdSchema& Of(kube::Kind kind);

  // From the text of a CRD. INVALID_ARGUMENT: a keyword or rule nobody here implements.
  static Result<std::unique_ptr<CrdSchema>> Parse(std::string_view yaml);
  ~CrdSchema();
  CrdSchema(const CrdSchema&) = delete;  // shared by reference
  CrdSchema& operator=(const CrdSchema&) = delete;

  // The object with defaults filled in, whatever its faults; each fault goes to `faults`.
  // `old_json`: the stored object on an update, null at creation. INVALID_ARGUMENT: not JSON.
  Result<std::string> Check(std::string_view json, const std::string* old_json,
                            std::vector<kube::Cause>* faults) const;
  // The lists that are sets or maps.
  std::vector<kube::ListRule> list_rules() const;
  // For the test that none is left out: rules with their places.
  std::vector<std::string> rules() const;

 private:
  explicit CrdSchema(std::unique_ptr<SchemaNode> root);
  std::unique_ptr<SchemaNode> root_;
};

// openAPIV3Schema of a kind of ours as JSON text; "" for other kinds.
std::string CrdOpenApi(kube::Kind kind);

// The embedded API's admission: the schemas of our two kinds; other kinds are taken as they are.
class CrdAdmission final : public kube::Admission {
 public:
  Result<std::string> Admit(kube::Kind kind, const std::string& json,
                            const std::string* old_json) const override;
  std::vector<kube::ListRule> ListRules(kube::Kind kind) const override;
};

}  // namespace kvfabric
