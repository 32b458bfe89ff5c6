#pragma once

// WatchFeed turns a watch into the lines the API sends: one JSON event a line, bookmarks, the end.
//
// Owned by one connection and used on its thread; `on_ready` comes from any thread. Holds at most
// one batch of events (shared objects), and hands out text in pieces of about kPiece.

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "operator/kube/api_request.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::kube {

class WatchFeed {
 public:
  static constexpr std::size_t kPiece = std::size_t{64} << 10U;  // plus one event
  struct Options {
    const Clock* clock = &Clock::System();  // borrowed
    std::chrono::milliseconds bookmark_every{60'000};
    std::chrono::seconds default_timeout{30 * 60};
    // An object as kubectl's table; see EmbeddedApiServer::Options.
    std::function<std::string(Kind, const ObjectList&)> table;
  };

  // Errors are those of KubeApi::Watch: nothing was sent yet.
  static Result<std::unique_ptr<WatchFeed>> Open(KubeApi& api, WatchParameters parameters,
                                                 Options options, std::function<void()> on_ready);

  // Appends what there is to send now, perhaps nothing. False: this was the last.
  bool Next(std::string* out);
  // When Next has something to do without on_ready.
  Clock::TimePoint next_due() const;

 private:
  WatchFeed(WatchParameters parameters, Options options);
  void AppendEvent(const WatchEvent& event, std::string* out) const;
  void AppendBookmark(bool initial_end, std::string* out);
  // False: the stream has ended.
  bool Refill(std::string* out);

  const WatchParameters parameters_;
  const Options options_;
  const Clock::TimePoint ends_at_;
  Clock::TimePoint bookmark_at_;
  std::unique_ptr<WatchStream> stream_;
  std::deque<WatchEvent> pending_;
  std::uint64_t version_ = 0;  // once `pending_` is sent
  std::uint64_t told_ = 0;     // what the last bookmark said
  bool initial_end_due_ = false;
};

}  // namespace kvfabric::kube
