#include "agent/cluster/push_call.h"

#include <algorithm>
#include <utility>

namespace kvfabric {

PushCall::PushCall(Private, Args args, Done done)
    : done_(std::move(done)),
      args_(std::move(args)),
      outcomes_(args_.blocks.size(), PushOutcome::kFailed) {}

void PushCall::Start(const Clock& clock, Args args, Done done) {
  auto call = std::make_shared<PushCall>(Private{}, std::move(args), std::move(done));
  if (call->args_.link == nullptr || call->args_.blocks.empty()) {
    call->done_(call->outcomes_);
    return;
  }
  if (call->args_.offer_first) {
    call->Offer(clock);
    return;
  }
  for (std::size_t at = 0; at < call->args_.blocks.size(); ++at) call->pushed_.push_back(at);
  call->Push();
}

void PushCall::Offer(const Clock& clock) {
  const std::int64_t now_us =
      std::chrono::duration_cast<std::chrono::microseconds>(clock.Now().time_since_epoch()).count();
  OfferRequest request;
  request.pool_uid = args_.pool_uid;
  request.reason = args_.reason;
  for (const PinnedBlock& block : args_.blocks) {
    const BlockHeader& header = block.header();
    request.ids.push_back(header.id);
    request.lengths.push_back(header.length_bytes);
    request.ages.emplace_back(std::max<std::int64_t>(now_us - header.last_touch_us, 0));
  }
  args_.link->Offer(
      std::move(request), args_.deadline,
      [self = shared_from_this()](const Result<OfferReply>& reply) { self->OnOffered(reply); });
}

void PushCall::OnOffered(const Result<OfferReply>& reply) {
  if (!reply.ok() || reply->answers.size() != args_.blocks.size()) {
    done_(outcomes_);
    return;
  }
  for (std::size_t at = 0; at < args_.blocks.size(); ++at) {
    switch (reply->answers[at]) {
      case OfferAnswer::kNo:
        outcomes_[at] = PushOutcome::kRefused;
        break;
      case OfferAnswer::kHasIt:
        outcomes_[at] = PushOutcome::kHadIt;
        break;
      case OfferAnswer::kPush:
        pushed_.push_back(at);
        break;
    }
  }
  if (pushed_.empty()) {
    done_(outcomes_);
    return;
  }
  Push();
}

void PushCall::Push() {
  std::vector<PinnedBlock> blocks;
  blocks.reserve(pushed_.size());
  for (const std::size_t at : pushed_) blocks.push_back(args_.blocks[at]);
  args_.link->Push(
      args_.pool_uid, args_.reason, std::move(blocks), args_.deadline,
      [self = shared_from_this()](const Result<PushResult>& result) { self->OnPushed(result); });
}

void PushCall::OnPushed(const Result<PushResult>& result) {
  for (std::size_t at = 0; at < pushed_.size(); ++at) {
    const bool stored = result.ok() && at < result->stored.size() && result->stored[at];
    outcomes_[pushed_[at]] = stored ? PushOutcome::kStored : PushOutcome::kFailed;
  }
  done_(outcomes_);
}

}  // namespace kvfabric
