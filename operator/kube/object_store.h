#pragma once

// ObjectStore keeps the embedded API's objects on disk: one YAML file an object,
// DIR/PLURAL/[NAMESPACE/]NAME.yaml, and DIR/revision, the high-water mark of resource versions.
//
// Owned by EmbeddedKubeApi, one thread at a time. A flock on DIR/.lock makes the directory this
// process's alone. Each write is tmp + fsync + rename + fsync of the directory, so kill -9 at any
// step leaves the old object or the new one, and left-over tmp files are removed at open. Versions
// are reserved on disk in steps of kReserve before they are given out, so they never repeat.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/unique_fd.h"
#include "operator/kube/object.h"

namespace kvfabric::kube {

// Where a fault can be put: called before each step with its name, and the step fails with what
// it returns. A test may also end the process there.
using StoreFault = std::function<Status(const char* step)>;

class ObjectStore {
 public:
  static constexpr std::uint64_t kReserve = 1024;
  struct Options {
    std::filesystem::path directory;
    StoreFault fault;  // null = none
    // False: no fsync, so safe from kill -9 but not from a power cut. For tests.
    bool sync = true;
  };

  // Makes the directory when it is absent. FAILED_PRECONDITION: another process holds it.
  // DATA_LOSS: a file cannot be read back; names it.
  static Result<std::unique_ptr<ObjectStore>> Open(Options options);
  ObjectStore(const ObjectStore&) = delete;  // holds the lock
  ObjectStore& operator=(const ObjectStore&) = delete;

  // What was found at Open; once.
  std::vector<Object> TakeLoaded() { return std::move(loaded_); }
  // The version that every later one exceeds.
  std::uint64_t last_revision() const { return last_revision_; }

  // The next version, never given before.
  Result<std::uint64_t> NextRevision();
  // After an error the old object is still there, unless `*renamed`: then the new one is, but a
  // power cut may still undo it. INVALID_ARGUMENT: what a YAML file cannot hold to the letter.
  Status Write(Kind kind, const ObjectName& name, const std::string& json, bool* renamed);
  // As Write: with `*removed` the file is gone even if the call failed.
  Status Remove(Kind kind, const ObjectName& name, bool* removed);

 private:
  ObjectStore(Options options, UniqueFd lock);
  Status Load();
  Status LoadFile(Kind kind, const std::filesystem::path& path);
  Status LoadRevision();
  Status ReplaceFile(const std::filesystem::path& path, const std::string& text, bool* renamed);
  std::filesystem::path PathOf(Kind kind, const ObjectName& name) const;
  Status Step(const char* step) const;

  const std::filesystem::path directory_;
  const StoreFault fault_;
  const bool sync_;
  const UniqueFd lock_;
  std::vector<Object> loaded_;
  std::uint64_t last_revision_ = 0;
  std::uint64_t reserved_ = 0;  // on disk; last_revision_ <= reserved_
};

// Replaces `path` so that a reader, and a start after kill -9, sees the old text or the new one.
// `mode` as open(2).
Status WriteFileAtomically(const std::filesystem::path& path, const std::string& text,
                           unsigned mode);

}  // namespace kvfabric::kube
