#pragma once

// ForwardingKube passes every call on: what a test's fault script overrides a few methods of.

#include <memory>
#include <string>
#include <utility>

#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

class ForwardingKube : public KubeApi {
 public:
  explicit ForwardingKube(KubeApi& api) : api_(api) {}

  Result<ObjectList> List(Kind kind, const std::string& ns) override { return api_.List(kind, ns); }
  Result<ObjectPtr> Get(Kind kind, const ObjectName& name) override { return api_.Get(kind, name); }
  Result<ObjectPtr> Create(Kind kind, const std::string& json) override {
    return api_.Create(kind, json);
  }
  Result<ObjectPtr> Update(Kind kind, const std::string& json) override {
    return api_.Update(kind, json);
  }
  Result<ObjectPtr> UpdateStatus(Kind kind, const std::string& json) override {
    return api_.UpdateStatus(kind, json);
  }
  Result<ObjectPtr> Apply(Kind kind, const std::string& json,
                          const ApplyOptions& options) override {
    return api_.Apply(kind, json, options);
  }
  Result<ObjectPtr> Patch(Kind kind, const ObjectName& name, PatchType type,
                          const std::string& patch, bool status) override {
    return api_.Patch(kind, name, type, patch, status);
  }
  Status Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions) override {
    return api_.Delete(kind, name, preconditions);
  }
  Result<std::unique_ptr<ListStream>> StartList(Kind kind, const Scope& scope,
                                                std::optional<std::uint64_t> not_older_than,
                                                std::function<void()> on_ready) override {
    return api_.StartList(kind, scope, not_older_than, std::move(on_ready));
  }
  Result<std::unique_ptr<WatchStream>> Watch(Kind kind, const Scope& scope, const WatchFrom& from,
                                             std::function<void()> on_ready) override {
    return api_.Watch(kind, scope, from, std::move(on_ready));
  }

 private:
  KubeApi& api_;  // borrowed
};

}  // namespace kvfabric::kube
