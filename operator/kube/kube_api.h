#pragma once

// KubeClient reads and writes objects; KubeApi can also watch. Implementations: EmbeddedKubeApi
// (in this process, part 1), RemoteKube (KubeClient over HTTPS, for kvctl), and from part 2 on
// the HTTP KubeApi for a real API server. Tests script faults around any of them.
//
// Any thread may call; calls block for disk or network, at most until the implementation's own
// deadline. Errors: operator/kube/api_error.h.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "operator/kube/object.h"

namespace kvfabric::kube {

struct ObjectList {
  std::uint64_t resource_version = 0;  // watch from here
  std::vector<ObjectPtr> items;        // by name
};

struct Preconditions {
  std::string uid;                     // "" = any
  std::uint64_t resource_version = 0;  // 0 = any
};

class KubeClient {
 public:
  virtual ~KubeClient() = default;

  // `ns` empty = all namespaces.
  virtual Result<ObjectList> List(Kind kind, const std::string& ns) = 0;
  virtual Result<ObjectPtr> Get(Kind kind, const ObjectName& name) = 0;
  // The JSON names kind, namespace and name; uid, resourceVersion and generation are the API's to
  // give. Answers the object as stored, defaults filled in.
  virtual Result<ObjectPtr> Create(Kind kind, const std::string& json) = 0;
  // Replaces everything but the status. Conflict unless metadata.resourceVersion is the stored
  // one; a write that changes nothing leaves the resourceVersion alone.
  virtual Result<ObjectPtr> Update(Kind kind, const std::string& json) = 0;
  // Replaces the status only, under the same guard. The generation stays.
  virtual Result<ObjectPtr> UpdateStatus(Kind kind, const std::string& json) = 0;
  // NotFound when it is not there: success for most callers.
  virtual Status Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions) = 0;
};

enum class EventType : std::uint8_t { kAdded, kModified, kDeleted };

struct WatchEvent {
  EventType type = EventType::kAdded;
  ObjectPtr object;  // kDeleted: as it was, under the resourceVersion of the deletion
};

// What happened since the last call, in order. `resource_version` covers everything up to here,
// events or not, so it moves as a bookmark would.
struct WatchBatch {
  std::vector<WatchEvent> events;
  std::uint64_t resource_version = 0;
};

// A watch in progress; destroying it ends it, after which its on_ready is not called again.
class WatchStream {
 public:
  virtual ~WatchStream() = default;
  // Never blocks. Gone: the watcher was too slow or started too far back; list again. Any other
  // error: the stream ended; watch again from the last resource_version.
  virtual Result<WatchBatch> Poll() = 0;
};

class KubeApi : public KubeClient {
 public:
  // Events after `resource_version`, which a List gave. `on_ready` says that Poll has something;
  // it is called on any thread, must be quick, and must not call back into the API or destroy
  // the stream.
  virtual Result<std::unique_ptr<WatchStream>> Watch(Kind kind, const std::string& ns,
                                                     std::uint64_t resource_version,
                                                     std::function<void()> on_ready) = 0;
};

}  // namespace kvfabric::kube
