#pragma once

// AgentMailbox carries what links tell from their threads to the control loop. Bounded by the
// number of links: of each kind of news only the latest is kept.
//
// Any thread posts; the loop takes.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/mutex.h"
#include "operator/controllers/agent_link.h"

namespace kvfabric {

using AgentLinkId = std::uint64_t;

struct AgentNews {
  std::optional<AgentIntroduction> introduction;
  std::optional<AgentReport> report;
  std::optional<std::string> refused;
  std::uint64_t known_term = 0;  // highest that came with a refusal
  std::optional<std::string> certificate_request;
  std::optional<Status> closed;
  Clock::TimePoint heard{};  // when the last of these came
};

class AgentMailbox {
 public:
  AgentMailbox(const Clock& clock, std::function<void()> on_news);
  AgentMailbox(const AgentMailbox&) = delete;  // listeners point to it
  AgentMailbox& operator=(const AgentMailbox&) = delete;

  // A listener for one link; the mailbox must outlive the link.
  std::shared_ptr<AgentLinkListener> ListenerFor(AgentLinkId link);
  std::map<AgentLinkId, AgentNews> Take() EXCLUDES(mu_);

 private:
  class Listener;
  // Changes the news of a link; true when the loop should wake.
  void Post(AgentLinkId link, const std::function<void(AgentNews&)>& change) EXCLUDES(mu_);

  const Clock& clock_;  // borrowed
  const std::function<void()> on_news_;
  Mutex mu_;
  std::map<AgentLinkId, AgentNews> news_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
