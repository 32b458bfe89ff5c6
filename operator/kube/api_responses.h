#pragma once

// Bodies of the embedded API's answers: Status objects, lists, discovery. Pure; JSON texts.

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

// A failure as Kubernetes' Status object, with causes for an invalid one.
std::string StatusBody(const Status& status);
// What a deletion answers. `uid`: by which kubectl waits until the object is gone.
std::string DeletedBody(Kind kind, const ObjectName& name, const std::string& uid);
std::string ListBody(Kind kind, const ObjectList& list);
// Discovery: "" when `path` is none of /version, /api, /apis, /api/v1, /apis/GROUP[/VERSION].
std::string DiscoveryBody(std::string_view path, std::string_view version);

// The Status of an HTTP answer, with an ApiDetail: what StatusBody says, or what can be made of
// any other body. `retry_after`: of the answer's header, which goes before the body's.
Status StatusOfAnswer(int http_code, std::string_view body,
                      std::optional<std::chrono::milliseconds> retry_after = std::nullopt);

}  // namespace kvfabric::kube
