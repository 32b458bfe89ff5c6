#pragma once

// FieldSet: a set of fields of an object, as server-side apply keeps them in managedFields
// (FieldsV1): a tree whose edges are `f:NAME` (a member), `k:{"type":"Ready"}` (an item of a list
// that is a map) and `v:"x"` (an item of a list that is a set). A value.
//
// Private to this module: it speaks JSON.

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "operator/kube/json.h"

namespace kvfabric::kube {

class FieldSet {
 public:
  // INVALID_ARGUMENT: an edge of another form.
  static Result<FieldSet> FromFieldsV1(const Json& fields);
  Json ToFieldsV1() const;

  // Holds no field, neither here nor below.
  bool empty() const { return !member_ && children_.empty(); }
  // This very field is in the set.
  bool member() const { return member_; }
  const FieldSet* child(std::string_view edge) const;
  const std::map<std::string, FieldSet, std::less<>>& children() const { return children_; }

  void set_member() { member_ = true; }
  // For filling in; an edge that stays empty must be dropped by DropEmpty.
  FieldSet& Child(std::string_view edge) { return children_[std::string(edge)]; }
  void DropEmpty();

  FieldSet Union(const FieldSet& other) const;
  FieldSet Minus(const FieldSet& other) const;
  FieldSet Intersection(const FieldSet& other) const;
  bool operator==(const FieldSet&) const = default;

  // Each field as people write it: `.status.conditions[type="Ready"].reason`.
  void ForEach(const std::function<void(const std::string&)>& visit) const;

 private:
  void ForEachFrom(const std::string& path,
                   const std::function<void(const std::string&)>& visit) const;

  bool member_ = false;
  std::map<std::string, FieldSet, std::less<>> children_;
};

}  // namespace kvfabric::kube
