#pragma once

// One request to the embedded API and its parameters, free of any HTTP library. Values.
//
// Parameters that would have to be obeyed and are not served are refused, never ignored.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "operator/kube/api_path.h"
#include "operator/kube/embedded_kube_api.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

struct ApiRequest {
  std::string method;
  std::string path;
  std::multimap<std::string, std::string> query;
  std::string accept;
  std::string authorization;
  std::string content_type;
  std::string user_agent;
  std::string body;

  // The first value; "" when it is absent.
  std::string Parameter(const std::string& name) const;
};

// The form an answer is wanted in.
enum class AnswerForm : std::uint8_t { kJson, kTable };
// The first form of the Accept header that is served; a 406 when none is.
Result<AnswerForm> ReadAccept(std::string_view accept, bool table_is_served);

struct ListParameters {
  Scope scope;
  std::optional<std::uint64_t> not_older_than;
  bool exact = false;  // resourceVersionMatch=Exact
};
Result<ListParameters> ReadListParameters(const ApiPath& path, const ApiRequest& request);

bool WantsWatch(const ApiRequest& request);
struct WatchParameters {
  Kind kind = Kind::kNode;
  Scope scope;
  WatchFrom from;
  bool initial_end = false;  // a bookmark tells that the initial events are over
  bool bookmarks = false;
  std::optional<std::chrono::seconds> timeout;
  AnswerForm form = AnswerForm::kJson;
};
Result<WatchParameters> ReadWatchParameters(const ApiPath& path, const ApiRequest& request);

// dryRun, fieldManager (else what the User-Agent begins with), fieldValidation.
Result<WriteOptions> ReadWriteOptions(const ApiRequest& request);
// Of `force`.
Result<bool> ReadFlag(const ApiRequest& request, const std::string& name);

}  // namespace kvfabric::kube
