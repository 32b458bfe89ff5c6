#include "operator/controllers/agent_mailbox.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

class AgentMailbox::Listener final : public AgentLinkListener {
 public:
  Listener(AgentMailbox& mailbox, AgentLinkId link) : mailbox_(mailbox), link_(link) {}
  void OnIntroduction(AgentIntroduction introduction) override {
    mailbox_.Post(link_, [&](AgentNews& news) { news.introduction = std::move(introduction); });
  }
  void OnReport(AgentReport report) override {
    mailbox_.Post(link_, [&](AgentNews& news) { news.report = std::move(report); });
  }
  void OnRefused(std::string why, std::uint64_t known_term) override {
    mailbox_.Post(link_, [&](AgentNews& news) {
      news.refused = std::move(why);
      news.known_term = std::max(news.known_term, known_term);
    });
  }
  void OnCertificateRequest(std::string request) override {
    mailbox_.Post(link_, [&](AgentNews& news) { news.certificate_request = std::move(request); });
  }
  void OnClosed(Status why) override {
    mailbox_.Post(link_, [&](AgentNews& news) { news.closed = std::move(why); });
  }

 private:
  AgentMailbox& mailbox_;
  const AgentLinkId link_;
};

AgentMailbox::AgentMailbox(const Clock& clock, std::function<void()> on_news)
    : clock_(clock), on_news_(std::move(on_news)) {}

std::shared_ptr<AgentLinkListener> AgentMailbox::ListenerFor(AgentLinkId link) {
  return std::make_shared<Listener>(*this, link);
}

void AgentMailbox::Post(AgentLinkId link, const std::function<void(AgentNews&)>& change) {
  {
    MutexLock lock(mu_);
    AgentNews& news = news_[link];
    change(news);
    if (!news.closed.has_value()) news.heard = clock_.Now();
  }
  if (on_news_) on_news_();
}

std::map<AgentLinkId, AgentNews> AgentMailbox::Take() {
  MutexLock lock(mu_);
  return std::exchange(news_, {});
}

}  // namespace kvfabric
