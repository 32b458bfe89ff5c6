#pragma once

// KubeClient reads and writes objects; KubeApi can also list and watch as a stream that never
// blocks. Implementations: EmbeddedKubeApi (in this process), HttpKube (a real API server, or the
// embedded one served by another process). Tests script faults around either.
//
// Any thread may call; calls of KubeClient block for disk or network, at most until the
// implementation's own deadline. Errors: operator/kube/api_error.h.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

// Which fields an Apply owns, and where they are. The object holds the manager's full intent every
// time: what it owned and leaves out is removed.
struct ApplyOptions {
  std::string field_manager;  // kvfabric-operator
  bool force = true;          // false: Conflict where another manager owns a field
  bool status = false;        // the status only; a manager of its own
};

enum class PatchType : std::uint8_t {
  kMerge,  // RFC 7386: null removes, lists are replaced
  kJson,   // RFC 6902: a failed `test` is Invalid
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
  // Server-side apply: creates the object or changes the fields that differ. Needs apiVersion, kind
  // and name, no managedFields; nothing is written when nothing differs.
  virtual Result<ObjectPtr> Apply(Kind kind, const std::string& json,
                                  const ApplyOptions& options) = 0;
  // `status`: through the status call, which changes nothing else.
  virtual Result<ObjectPtr> Patch(Kind kind, const ObjectName& name, PatchType type,
                                  const std::string& patch, bool status) = 0;
  // NotFound when it is not there: success for most callers.
  virtual Status Delete(Kind kind, const ObjectName& name, const Preconditions& preconditions) = 0;
};

// Which objects of a kind. Selectors as the API writes them: `app=agent,!old`.
struct Scope {
  std::string ns;      // "" = all namespaces
  std::string labels;  // "" = all
  std::string fields;  // "" = all
};

// What came of a list since the last call.
struct ListBatch {
  std::vector<ObjectPtr> items;        // any order
  bool done = false;                   // all have been given
  std::uint64_t resource_version = 0;  // with `done`: watch from here
};

// A list in progress; destroying it ends it, after which its on_ready is not called again.
class ListStream {
 public:
  virtual ~ListStream() = default;
  // Never blocks. An error, as after `done`: the stream has ended.
  virtual Result<ListBatch> Poll() = 0;
};

enum class EventType : std::uint8_t { kAdded, kModified, kDeleted };

struct WatchEvent {
  EventType type = EventType::kAdded;
  ObjectPtr object;  // kDeleted: as it was, under the resourceVersion of the deletion
};

// What happened since the last call, in order. `resource_version` covers everything up to here,
// events or not: it moves with bookmarks too.
struct WatchBatch {
  std::vector<WatchEvent> events;
  std::uint64_t resource_version = 0;
  // Of a watch with initial events, once: everything that existed has been given.
  bool initial_done = false;
};

// A watch in progress; destroying it ends it, after which its on_ready is not called again.
class WatchStream {
 public:
  virtual ~WatchStream() = default;
  // Never blocks. Gone: the watcher was too slow or started too far back; list again. kCancelled:
  // the API ended the watch in good order, as it does every few minutes. Any other error: the
  // stream broke. After both, watch again from the last resource_version.
  virtual Result<WatchBatch> Poll() = 0;
};

struct WatchFrom {
  std::uint64_t resource_version = 0;  // that a list gave; ignored with initial_events
  // First every object there is, as kAdded in any order, then initial_done, then what happens
  // (KEP-3157). Unimplemented or Invalid where the API does not offer it: list instead.
  bool initial_events = false;
};

class KubeApi : public KubeClient {
 public:
  // `on_ready` of both says that Poll has something; it is called on any thread, must be quick,
  // and must not call back into the API or destroy the stream.

  // `not_older_than` unset: as of now, from the store itself; 0: whatever a cache holds; a version:
  // at least that new (ResourceVersionTooLarge, a kUnavailable, when a replica lags behind it).
  virtual Result<std::unique_ptr<ListStream>> StartList(Kind kind, const Scope& scope,
                                                        std::optional<std::uint64_t> not_older_than,
                                                        std::function<void()> on_ready) = 0;
  virtual Result<std::unique_ptr<WatchStream>> Watch(Kind kind, const Scope& scope,
                                                     const WatchFrom& from,
                                                     std::function<void()> on_ready) = 0;
};

}  // namespace kvfabric::kube
