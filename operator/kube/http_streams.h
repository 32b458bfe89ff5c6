#pragma once

// The list and watch of HttpKube over a StreamTask each. Private to HttpKube.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "operator/kube/json_framer.h"
#include "operator/kube/kube_api.h"
#include "operator/kube/stream_task.h"

namespace kvfabric::kube {

// Pages of a list, or one answer with everything in it. An expired continue token ends it with Gone
// (what was given cannot be taken back); the next list of the same scope is then asked for whole.
class ListTask final : public StreamTask {
 public:
  ListTask(std::shared_ptr<ApiSession> session, Kind kind, Scope scope,
           std::optional<std::uint64_t> not_older_than, std::function<void()> on_ready);
  Result<ListBatch> Poll() EXCLUDES(mu_);

 private:
  std::string Target() override;
  void Begin() override;
  Status Take(std::string_view bytes) override EXCLUDES(mu_);
  void Ended(const Status& status, HttpFault fault) override;
  bool MayRetry() const override { return page_items_ == 0; }
  Status Add(std::string item) EXCLUDES(mu_);
  Status EndPage() EXCLUDES(mu_);

  const Kind kind_;
  const Scope scope_;
  const std::optional<std::uint64_t> not_older_than_;
  const std::string memory_;  // under which the session remembers not to page

  // The transport's thread and, between requests, the session's.
  std::optional<ListFramer> framer_;
  std::string continue_;
  std::size_t page_items_ = 0;
  bool paged_ = false;

  std::vector<ObjectPtr> items_ GUARDED_BY(mu_);
  std::uint64_t version_ GUARDED_BY(mu_) = 0;
  bool done_ GUARDED_BY(mu_) = false;
  bool given_ GUARDED_BY(mu_) = false;  // `done` was answered
};

class WatchTask final : public StreamTask {
 public:
  WatchTask(std::shared_ptr<ApiSession> session, Kind kind, Scope scope, const WatchFrom& from,
            std::function<void()> on_ready);
  Result<WatchBatch> Poll() EXCLUDES(mu_);

 private:
  std::string Target() override;
  void Begin() override;
  Status Take(std::string_view bytes) override EXCLUDES(mu_);
  void Ended(const Status& status, HttpFault fault) override;
  bool MayRetry() const override { return false; }  // its caller knows what to do instead
  Status Add(std::string event) EXCLUDES(mu_);
  Status AddObject(EventType type, std::string object) EXCLUDES(mu_);
  Status AddBookmark(std::string_view object) EXCLUDES(mu_);
  Status ReadError(std::string_view object);

  const Kind kind_;
  const Scope scope_;
  const WatchFrom from_;

  // The transport's thread.
  std::optional<EventFramer> framer_;
  bool unordered_;              // what comes now has no order yet: the version stands still
  bool news_ = false;           // since the last Notify
  std::optional<Status> said_;  // an ERROR event

  std::vector<WatchEvent> events_ GUARDED_BY(mu_);
  std::uint64_t version_ GUARDED_BY(mu_);
  std::uint64_t given_version_ GUARDED_BY(mu_);
  bool initial_done_ GUARDED_BY(mu_) = false;
};

}  // namespace kvfabric::kube
