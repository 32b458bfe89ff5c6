#pragma once

// ReplayConductor: makes the events of a replay happen when trace time reaches them, on a thread of
// its own, and keeps what came of each.
//
// Owned by the replay verb; Start once, Finish once. Whatever was stopped goes on at Finish, also
// when the replay was cut short.

#include <string>
#include <thread>
#include <vector>

#include "cli/fabric_directory.h"
#include "cli/replay_clock.h"
#include "cli/replay_engines.h"
#include "cli/replay_events.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvfabric::cli {

struct EventOutcome {
  ReplayEvent event;
  std::string node;   // that it happened to
  double wall_s = 0;  // when it began
  double done_s = 0;  // when what kvctl does for it was done
  Status status;      // why it could not be done
};

class ReplayConductor {
 public:
  // `default_node` is where events without one go. All borrowed; outlive this.
  ReplayConductor(const FabricDirectory& directory, ReplayEngines& engines, ReplayClock& clock,
                  std::string default_node)
      : directory_(directory),
        engines_(engines),
        clock_(clock),
        default_node_(std::move(default_node)) {}
  ~ReplayConductor();
  ReplayConductor(const ReplayConductor&) = delete;  // owns a thread
  ReplayConductor& operator=(const ReplayConductor&) = delete;

  void Start(std::vector<ReplayEvent> events);
  // Events that were not due yet do not happen and are told as such. Stops the clock.
  std::vector<EventOutcome> Finish() EXCLUDES(mu_);
  std::vector<EventOutcome> outcomes() const EXCLUDES(mu_);

 private:
  void Conduct(const std::vector<ReplayEvent>& events) EXCLUDES(mu_);
  Status Happen(const ReplayEvent& event, std::string& node);
  Status AddNode(std::string& node);
  Status Signal(const std::string& node, int signal);
  Status Drain(const std::string& node);

  const FabricDirectory& directory_;
  ReplayEngines& engines_;
  ReplayClock& clock_;
  const std::string default_node_;
  std::thread thread_;
  std::vector<std::string> stopped_nodes_;  // the thread's, then Finish's
  mutable Mutex mu_;
  std::vector<EventOutcome> outcomes_ GUARDED_BY(mu_);
};

}  // namespace kvfabric::cli
