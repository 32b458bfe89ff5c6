#include "agent/service/bulk_client.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "agent/service/bulk_channel.h"
#include "agent/service/bulk_messages.h"
#include "agent/service/bulk_transfer.h"
#include "common/mutex.h"

namespace kvfabric {

// Channels and jobs of the session that is open now.
class BulkClient::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(Options options, Environment environment)
      : options_(options), environment_(std::move(environment)) {}

  // The channels to connect; none when this generation is over already.
  std::vector<std::shared_ptr<BulkChannel>> Open(std::uint64_t generation,
                                                 const SocketAddress& peer,
                                                 const std::string& token) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (generation <= over_) return {};
    opened_ = generation;
    peer_ = peer;
    token_ = token;
    channels_ = MakeChannels(options_.tls);
    return channels_;
  }

  // Ends the jobs; the channels are the caller's to close.
  std::vector<std::shared_ptr<BulkChannel>> Close(std::uint64_t generation, const Status& why)
      EXCLUDES(mu_) {
    std::vector<std::shared_ptr<BulkChannel>> channels;
    std::vector<std::shared_ptr<BulkJob>> jobs;
    {
      MutexLock lock(mu_);
      over_ = std::max(over_, generation);
      if (opened_ > over_) return {};
      channels = std::exchange(channels_, {});
      for (auto& channel : clear_channels_) channels.push_back(std::move(channel));
      clear_channels_.clear();
      for (const auto& entry : jobs_) jobs.push_back(entry.second.job);
    }
    for (const auto& job : jobs) job->End(why);
    return channels;
  }

  void Fetch(BulkFetchJob::Args args, Deadline deadline) EXCLUDES(mu_) {
    const std::uint64_t id = NewId();
    args.done = [core = shared_from_this(), id, done = std::move(args.done)](auto result) {
      core->Forget(id);
      done(std::move(result));
    };
    const auto job = std::make_shared<BulkFetchJob>(std::move(args));
    const auto channels = Enter(id, job, job->pool_uid, deadline);
    if (channels.empty()) return;
    for (std::size_t c = 0; c < channels.size(); ++c) {
      for (auto& items : ItemsOf(*job, c, channels.size())) {
        const auto task = [channel = channels[c], job, items] { channel->Fetch(job, items); };
        if (!channels[c]->loop().Submit(task)) FailItems(*job, items);
      }
    }
  }

  void Push(BulkPushJob::Args args, Deadline deadline) EXCLUDES(mu_) {
    const std::uint64_t id = NewId();
    args.done = [core = shared_from_this(), id, done = std::move(args.done)](auto result) {
      core->Forget(id);
      done(std::move(result));
    };
    const auto job = std::make_shared<BulkPushJob>(std::move(args));
    const auto channels = Enter(id, job, job->pool_uid, deadline);
    if (channels.empty()) return;
    for (std::size_t c = 0; c < channels.size(); ++c) {
      for (auto& items : ItemsOf(*job, c, channels.size())) {
        const auto task = [channel = channels[c], job, items] { channel->Push(job, items); };
        if (!channels[c]->loop().Submit(task)) FailItems(*job, items);
      }
    }
  }

 private:
  struct Entry {
    std::shared_ptr<BulkJob> job;
    Timer::Id timer = 0;
  };

  // Item i goes over channel i mod channels, in requests of at most kMaxFetchItems.
  static std::vector<std::vector<std::size_t>> ItemsOf(const BulkJob& job, std::size_t channel,
                                                       std::size_t channels) {
    std::vector<std::vector<std::size_t>> requests;
    for (std::size_t i = channel; i < job.size(); i += channels) {
      if (requests.empty() || requests.back().size() == kMaxFetchItems) requests.emplace_back();
      requests.back().push_back(i);
    }
    return requests;
  }

  std::vector<std::shared_ptr<BulkChannel>> MakeChannels(BulkTls* tls) REQUIRES(mu_) {
    std::vector<std::shared_ptr<BulkChannel>> made;
    for (std::size_t i = 0; i < options_.connections; ++i) {
      BulkChannel::Options options;
      options.loop = environment_.loops[next_++ % environment_.loops.size()];
      options.peer = *peer_;
      options.token = token_;
      options.tls = tls;
      options.peer_identity = options_.peer_identity;
      options.connect_timeout = options_.connect_timeout;
      options.retry_after = options_.retry_after;
      options.clock = environment_.clock;
      options.metrics = environment_.metrics;
      made.push_back(std::make_shared<BulkChannel>(std::move(options)));
    }
    return made;
  }

  // Those that carry this pool. The session is open.
  const std::vector<std::shared_ptr<BulkChannel>>& ChannelsFor(const std::string& pool_uid)
      REQUIRES(mu_) {
    if (options_.tls == nullptr || !options_.tls->MayTravelInClear(pool_uid)) return channels_;
    if (clear_channels_.empty()) {
      clear_channels_ = MakeChannels(nullptr);
      for (const auto& channel : clear_channels_) {
        // Refused only when the loop stops; then the jobs end by their deadlines.
        static_cast<void>(channel->loop().Submit([channel] { channel->Connect(); }));
      }
    }
    return clear_channels_;
  }

  static void FailItems(BulkJob& job, const std::vector<std::size_t>& items) {
    for (const std::size_t item : items) job.Fail(item, Unavailable("bulk: the loop is full"));
  }

  std::uint64_t NewId() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return next_job_++;
  }

  // The channels to use: joined ones if any. Empty when the job was refused, and ended.
  std::vector<std::shared_ptr<BulkChannel>> Enter(std::uint64_t id,
                                                  const std::shared_ptr<BulkJob>& job,
                                                  const std::string& pool_uid, Deadline deadline)
      EXCLUDES(mu_) {
    Status refusal;
    std::vector<std::shared_ptr<BulkChannel>> channels;
    {
      MutexLock lock(mu_);
      if (job->size() == 0) {
        refusal = InvalidArgument("bulk: no blocks named");
      } else if (channels_.empty()) {
        refusal = Unavailable("bulk: no session with this peer");
      } else if (items_ + job->size() > options_.max_items) {
        refusal = ResourceExhausted("bulk: more than " + std::to_string(options_.max_items) +
                                    " blocks under way with this peer");
      } else {
        items_ += job->size();
        const std::weak_ptr<BulkJob> weak = job;
        const Timer::Id timer = environment_.timer->At(deadline.at(), [weak] {
          if (const auto late = weak.lock()) late->End(DeadlineExceeded("bulk: deadline passed"));
        });
        jobs_.emplace(id, Entry{job, timer});
        const auto& carrying = ChannelsFor(pool_uid);
        for (const auto& channel : carrying) {
          if (channel->joined()) channels.push_back(channel);
        }
        if (channels.empty()) channels = carrying;
      }
    }
    if (!refusal.ok()) job->End(refusal);
    return channels;
  }

  void Forget(std::uint64_t id) EXCLUDES(mu_) {
    std::shared_ptr<BulkJob> job;  // goes outside the lock
    MutexLock lock(mu_);
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    environment_.timer->Cancel(found->second.timer);
    items_ -= found->second.job->size();
    job = std::move(found->second.job);
    jobs_.erase(found);
  }

  const Options options_;
  const Environment environment_;
  Mutex mu_;
  std::vector<std::shared_ptr<BulkChannel>> channels_ GUARDED_BY(mu_);  // empty = no session
  std::vector<std::shared_ptr<BulkChannel>> clear_channels_ GUARDED_BY(mu_);
  std::optional<SocketAddress> peer_ GUARDED_BY(mu_);  // of the session
  std::string token_ GUARDED_BY(mu_);
  std::unordered_map<std::uint64_t, Entry> jobs_ GUARDED_BY(mu_);
  std::size_t items_ GUARDED_BY(mu_) = 0;
  std::uint64_t next_job_ GUARDED_BY(mu_) = 1;
  std::size_t next_ GUARDED_BY(mu_) = 0;
  std::uint64_t opened_ GUARDED_BY(mu_) = 0;  // the youngest generation
  std::uint64_t over_ GUARDED_BY(mu_) = 0;    // this one and older are closed
};

BulkClient::BulkClient(Options options, Environment environment)
    : core_(std::make_shared<Core>(options, std::move(environment))) {}

BulkClient::~BulkClient() { Shutdown(); }

void BulkClient::Shutdown() {
  const Status why = Unavailable("bulk: the link is closed");
  for (const auto& channel : core_->Close(std::numeric_limits<std::uint64_t>::max(), why)) {
    channel->loop().RunSync([&] { channel->Close(why); });
  }
}

void BulkClient::Open(std::uint64_t generation, const SocketAddress& peer,
                      const std::string& token) {
  Close(generation - 1, Unavailable("bulk: another session opened"));
  for (const auto& channel : core_->Open(generation, peer, token)) {
    // Refused only when the loop stops; then the jobs end by their deadlines.
    static_cast<void>(channel->loop().Submit([channel] { channel->Connect(); }));
  }
}

void BulkClient::Close(std::uint64_t generation, const Status& why) {
  for (const auto& channel : core_->Close(generation, why)) {
    // Refused only when the loop stops, which closes its connections too.
    static_cast<void>(channel->loop().Submit([channel, why] { channel->Close(why); }));
  }
}

void BulkClient::Fetch(std::string pool_uid, std::uint64_t lease_id, std::vector<FetchItem> items,
                       FetchSink sink, Deadline deadline, Completion<FetchResult> done) {
  BulkFetchJob::Args args;
  args.pool_uid = std::move(pool_uid);
  args.lease_id = lease_id;
  args.items = std::move(items);
  args.sink = std::move(sink);
  args.done = std::move(done);
  core_->Fetch(std::move(args), deadline);
}

void BulkClient::Push(std::string pool_uid, OfferReason reason, std::vector<PinnedBlock> blocks,
                      Deadline deadline, Completion<PushResult> done) {
  BulkPushJob::Args args;
  args.pool_uid = std::move(pool_uid);
  args.reason = reason;
  args.blocks = std::move(blocks);
  args.done = std::move(done);
  core_->Push(std::move(args), deadline);
}

}  // namespace kvfabric
