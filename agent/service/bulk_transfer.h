#pragma once

// BulkFetchJob and BulkPushJob: one fetch or push under way, over however many connections. Shared
// by the connections that serve parts of it, the timer that ends it and the client that owns it;
// any thread. Each completes exactly once.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/cluster/peer_link.h"
#include "common/mutex.h"

namespace kvfabric {

class BulkJob {
 public:
  virtual ~BulkJob() = default;
  // An item that will not come; `why` is told when no item at all came.
  virtual void Fail(std::size_t item, const Status& why) = 0;
  // Completes now with what there is.
  virtual void End(const Status& why) = 0;
  virtual bool ended() const = 0;
  virtual std::size_t size() const = 0;
};

class BulkFetchJob final : public BulkJob {
 public:
  struct Args {
    std::string pool_uid;
    std::uint64_t lease_id = 0;
    std::vector<FetchItem> items;
    FetchSink sink;
    Completion<FetchResult> done;
  };

  explicit BulkFetchJob(Args args)
      : pool_uid(std::move(args.pool_uid)),
        lease_id(args.lease_id),
        items(std::move(args.items)),
        sink_(std::move(args.sink)),
        done_(std::move(args.done)),
        left_(items.size()) {
    result_.blocks.resize(items.size());
  }

  // Empty when the block is not wanted, or no longer.
  Reservation Reserve(const BlockHeader& header) EXCLUDES(mu_) {
    MutexLock lock(mu_);  // held over the sink: after End none runs
    return sink_ != nullptr ? sink_(header) : Reservation();
  }
  void Deliver(std::size_t item, PinnedBlock block) EXCLUDES(mu_) {
    Settle(item, std::move(block), Status::Ok());
  }
  void Fail(std::size_t item, const Status& why) override EXCLUDES(mu_) {
    Settle(item, std::nullopt, why);
  }
  void End(const Status& why) override EXCLUDES(mu_) {
    Completion<FetchResult> done;
    Result<FetchResult> result = why;
    {
      MutexLock lock(mu_);
      if (done_ == nullptr) return;
      if (came_ > 0) result = std::move(result_);
      done = TakeDone();
    }
    done(std::move(result));
  }
  bool ended() const override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return done_ == nullptr;
  }
  std::size_t size() const override { return items.size(); }

  const std::string pool_uid;
  const std::uint64_t lease_id;
  const std::vector<FetchItem> items;

 private:
  void Settle(std::size_t item, std::optional<PinnedBlock> block, const Status& why) EXCLUDES(mu_) {
    Completion<FetchResult> done;
    Result<FetchResult> result = FetchResult{};
    {
      MutexLock lock(mu_);
      if (done_ == nullptr) return;
      if (block) {
        result_.blocks[item] = std::move(block);
        ++came_;
      } else if (!why.ok()) {
        failure_ = why;
      }
      if (--left_ > 0) return;
      if (came_ == 0 && !failure_.ok()) {
        result = failure_;
      } else {
        result = std::move(result_);
      }
      done = TakeDone();
    }
    done(std::move(result));
  }
  Completion<FetchResult> TakeDone() REQUIRES(mu_) {
    sink_ = nullptr;
    return std::exchange(done_, nullptr);
  }

  mutable Mutex mu_;
  FetchSink sink_ GUARDED_BY(mu_);
  Completion<FetchResult> done_ GUARDED_BY(mu_);  // null once completed
  FetchResult result_ GUARDED_BY(mu_);
  std::size_t left_ GUARDED_BY(mu_);
  std::size_t came_ GUARDED_BY(mu_) = 0;
  Status failure_ GUARDED_BY(mu_);
};

class BulkPushJob final : public BulkJob {
 public:
  struct Args {
    std::string pool_uid;
    OfferReason reason = OfferReason::kSpill;
    std::vector<PinnedBlock> blocks;
    Completion<PushResult> done;
  };

  explicit BulkPushJob(Args args)
      : pool_uid(std::move(args.pool_uid)),
        reason(args.reason),
        size_(args.blocks.size()),
        done_(std::move(args.done)),
        left_(size_) {
    for (PinnedBlock& block : args.blocks) {
      blocks_.push_back(std::make_shared<const PinnedBlock>(std::move(block)));
    }
    result_.stored.resize(size_);
  }

  // Frames under way share it: pinned until the last byte is out. Null once the job has ended: one
  // that still waits for a connection then pins nothing.
  std::shared_ptr<const PinnedBlock> Block(std::size_t item) const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return blocks_.empty() ? nullptr : blocks_[item];
  }

  void Answer(std::size_t item, bool stored) EXCLUDES(mu_) { Settle(item, stored, Status::Ok()); }
  void Fail(std::size_t item, const Status& why) override EXCLUDES(mu_) {
    Settle(item, false, why);
  }
  void End(const Status& why) override EXCLUDES(mu_) {
    Blocks unpinned;
    Completion<PushResult> done;
    Result<PushResult> result = why;
    {
      MutexLock lock(mu_);
      if (done_ == nullptr) return;
      if (stored_ > 0) result = std::move(result_);
      done = std::exchange(done_, nullptr);
      unpinned.swap(blocks_);
    }
    unpinned.clear();  // outside the lock, and before it is told
    done(std::move(result));
  }
  bool ended() const override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return done_ == nullptr;
  }
  std::size_t size() const override { return size_; }

  const std::string pool_uid;
  const OfferReason reason;

 private:
  using Blocks = std::vector<std::shared_ptr<const PinnedBlock>>;

  void Settle(std::size_t item, bool stored, const Status& why) EXCLUDES(mu_) {
    Blocks unpinned;
    Completion<PushResult> done;
    Result<PushResult> result = PushResult{};
    {
      MutexLock lock(mu_);
      if (done_ == nullptr) return;
      result_.stored[item] = stored;
      stored_ += stored ? 1 : 0;
      if (!why.ok()) failure_ = why;
      if (--left_ > 0) return;
      if (stored_ == 0 && !failure_.ok()) {
        result = failure_;
      } else {
        result = std::move(result_);
      }
      done = std::exchange(done_, nullptr);
      unpinned.swap(blocks_);
    }
    unpinned.clear();
    done(std::move(result));
  }

  const std::size_t size_;
  mutable Mutex mu_;
  Completion<PushResult> done_ GUARDED_BY(mu_);  // null once completed
  Blocks blocks_ GUARDED_BY(mu_);                // empty once completed
  PushResult result_ GUARDED_BY(mu_);
  std::size_t left_ GUARDED_BY(mu_);
  std::size_t stored_ GUARDED_BY(mu_) = 0;
  Status failure_ GUARDED_BY(mu_);
};

}  // namespace kvfabric
