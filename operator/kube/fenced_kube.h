#pragma once

// FencedKube passes calls on, and refuses those that write while this process does not lead: what
// every controller writes through, so that none can forget to ask. kAborted: leadership is over.
//
// The API's own guard (resourceVersion) catches a write that was under way when leadership ended;
// the deadline of such a call must be shorter than what the Lease still has when the leader stops
// (lease_duration less renew_deadline).

#include <string>

#include "operator/kube/elector.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

class FencedKube final : public KubeClient {
 public:
  FencedKube(KubeClient& api, const Elector& elector) : api_(api), elector_(elector) {}

  Result<ObjectList> List(Kind kind, const std::string& ns) override { return api_.List(kind, ns); }
  Result<ObjectPtr> Get(Kind kind, const ObjectName& name) override { return api_.Get(kind, name); }
  Result<ObjectPtr> Create(Kind kind, const std::string& json) override {
    KVF_RETURN_IF_ERROR(MayWrite(kind));
    return api_.Create(kind, json);
  }
  Result<ObjectPtr> Update(Kind kind, const std::string& json) override {
    KVF_RETURN_IF_ERROR(MayWrite(kind));
    return api_.Update(kind, json);
  }
  Result<ObjectPtr> UpdateStatus(Kind kind, const std::string& json) override {
    KVF_RETURN_IF_ERROR(MayWrite(kind));
    return api_.UpdateStatus(kind, json);
  }
  Result<ObjectPtr> Apply(Kind kind, const std::string& json,
                          const ApplyOptions& options) override {
    KVF_RETURN_IF_ERROR(MayWrite(kind));
    return api_.Apply(kind, json, options);
  }
  Result<ObjectPtr> Patch(Kind kind, const ObjectName& name, PatchType type,
                          const std::string& patch, bool status) override {
    KVF_RETURN_IF_ERROR(MayWrite(kind));
    return api_.Patch(kind, name, type, patch, status);
  }
  Status Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions) override {
    KVF_RETURN_IF_ERROR(MayWrite(kind));
    return api_.Delete(kind, name, preconditions);
  }

 private:
  Status MayWrite(Kind kind) const {
    if (elector_.leading()) return Status::Ok();
    return Aborted("write of a " + std::string(TraitsOf(kind).name) +
                   ": leadership is over; the next leader does it");
  }

  KubeClient& api_;         // borrowed
  const Elector& elector_;  // borrowed
};

}  // namespace kvfabric::kube
