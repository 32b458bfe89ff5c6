#include "cli/replay_conductor.h"

#include <signal.h>

#include <algorithm>

#include "cli/local_fabric.h"
#include "operator/kube/kube_api.h"

namespace kvfabric::cli {
namespace {

// A stop with a duration is two events.
std::vector<ReplayEvent> InOrder(std::vector<ReplayEvent> events) {
  const std::size_t given = events.size();
  for (std::size_t i = 0; i < given; ++i) {
    if (events[i].kind != EventKind::kStop || !events[i].for_s) continue;
    ReplayEvent on = events[i];
    on.kind = EventKind::kContinue;
    on.at_s += *on.for_s;
    events.push_back(on);
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const ReplayEvent& a, const ReplayEvent& b) { return a.at_s < b.at_s; });
  return events;
}

}  // namespace

ReplayConductor::~ReplayConductor() {
  if (thread_.joinable()) Finish();
}

void ReplayConductor::Start(std::vector<ReplayEvent> events) {
  thread_ = std::thread([this, ordered = InOrder(std::move(events))] { Conduct(ordered); });
}

std::vector<EventOutcome> ReplayConductor::Finish() {
  clock_.Stop();
  if (thread_.joinable()) thread_.join();
  for (const std::string& node : stopped_nodes_)
    static_cast<void>(Signal(node, SIGCONT));  // it may have been killed meanwhile
  stopped_nodes_.clear();
  return outcomes();
}

std::vector<EventOutcome> ReplayConductor::outcomes() const {
  const MutexLock lock(mu_);
  return outcomes_;
}

void ReplayConductor::Conduct(const std::vector<ReplayEvent>& events) {
  for (const ReplayEvent& event : events) {
    const bool due = clock_.WaitFor(event.at_s);
    // What Finish does anyway.
    if (!due && event.kind == EventKind::kContinue) continue;
    EventOutcome outcome;
    outcome.event = event;
    outcome.node = event.node.empty() ? default_node_ : event.node;
    outcome.wall_s = clock_.WallSeconds();
    outcome.status =
        due ? Happen(event, outcome.node)
            : FailedPrecondition("the replay ended before trace second " +
                                 std::to_string(static_cast<std::uint64_t>(event.at_s)) +
                                 ": write an earlier one, or play more requests");
    outcome.done_s = clock_.WallSeconds();
    const MutexLock lock(mu_);
    outcomes_.push_back(std::move(outcome));
  }
}

Status ReplayConductor::Happen(const ReplayEvent& event, std::string& node) {
  switch (event.kind) {
    case EventKind::kKill: {
      KVF_ASSIGN_OR_RETURN(const LocalFabric fabric, LocalFabric::Open(directory_));
      return fabric.KillAgent(node);
    }
    case EventKind::kStop:
      stopped_nodes_.push_back(node);
      return Signal(node, SIGSTOP);
    case EventKind::kContinue:
      return Signal(node, SIGCONT);
    case EventKind::kDrain:
      return Drain(node);
    case EventKind::kAdd:
      return AddNode(node);
  }
  return Status::Ok();
}

Status ReplayConductor::Signal(const std::string& node, int signal) {
  KVF_ASSIGN_OR_RETURN(const LocalFabric fabric, LocalFabric::Open(directory_));
  return fabric.SignalAgent(node, signal);
}

Status ReplayConductor::Drain(const std::string& node) {
  KVF_ASSIGN_OR_RETURN(const auto api, ConnectApi(directory_));
  return SetDrain(*api, node, true);
}

Status ReplayConductor::AddNode(std::string& node) {
  node.clear();
  KVF_ASSIGN_OR_RETURN(const UniqueFd lock, directory_.Lock());
  KVF_ASSIGN_OR_RETURN(LocalFabric fabric, LocalFabric::Open(directory_));
  std::vector<ReplayEndpoint> endpoints(1);
  for (const FabricNode& other : fabric.settings().nodes)
    endpoints.push_back({.node = other.name, .socket = directory_.agent_socket(other.name)});
  KVF_ASSIGN_OR_RETURN(node, fabric.AddNode(""));
  endpoints[0] = {.node = node, .socket = directory_.agent_socket(node)};
  KVF_RETURN_IF_ERROR(fabric.StartAgent(node));
  KVF_ASSIGN_OR_RETURN(const auto api, ConnectApi(directory_));
  KVF_RETURN_IF_ERROR(fabric.Publish(*api, node));
  return engines_.Add(endpoints);
}

}  // namespace kvfabric::cli
