#include "cli/replay_run.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "trace/block_content.h"

namespace kvfabric::cli {
namespace {

constexpr std::uint64_t kBatchBytes = std::uint64_t{8} << 20U;

double MicrosSince(Clock::TimePoint start) {
  return std::chrono::duration<double, std::micro>(Clock::System().Now() - start).count();
}

Result<Chain> ChainOf(std::span<const std::uint64_t> ids) {
  std::vector<std::string> keys;
  keys.reserve(ids.size());
  for (const std::uint64_t id : ids) keys.push_back(BlockKeyOf(id));
  return Chain::Create(std::move(keys));
}

std::uint64_t CountWrongBytes(ByteSpan want, ByteSpan got) {
  if (want.size() != got.size()) return std::max(want.size(), got.size());
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    if (want[i] != got[i]) ++wrong;
  return wrong;
}

const char* MissName(Miss miss) {
  switch (miss) {
    case Miss::kNone:
      return "none";
    case Miss::kNotFound:
      return "not_found";
    case Miss::kLeaseBudget:
      return "lease_budget";
    case Miss::kDeadline:
      return "deadline";
    case Miss::kNoMap:
      return "no_map";
    case Miss::kNoAgent:
      return "no_agent";
    case Miss::kRefused:
      return "refused";
  }
  return "unknown";
}

}  // namespace

// One client thread. `tally` is guarded, for the progress line; the rest is the thread's own.
struct ReplayRun::Worker {
  Mutex mu;
  Tally tally GUARDED_BY(mu);
  std::vector<std::byte> buffer;
  double late_s_max = 0;
  std::uint32_t window = 0;
  std::thread thread;
};

ReplayRun::ReplayRun(const Trace& trace, ReplayEngines& engines, ReplayClock& clock,
                     Options options)
    : trace_(trace),
      engines_(engines),
      clock_(clock),
      options_(options),
      block_bytes_(options.bytes_per_token * trace.block_tokens),
      batch_blocks_(static_cast<std::uint32_t>(
          std::clamp<std::uint64_t>(kBatchBytes / block_bytes_, 1, 1024))) {}

ReplayRun::~ReplayRun() = default;

Tally ReplayRun::Run(const std::function<bool()>& watch) {
  workers_ = options_.clients;
  for (std::size_t i = 0; i < options_.clients; ++i) {
    crew_.push_back(std::make_unique<Worker>());
    Worker& worker = *crew_.back();
    worker.thread = std::thread([this, &worker] {
      Work(worker);
      workers_.fetch_sub(1, std::memory_order_release);
    });
  }
  while (workers_.load(std::memory_order_acquire) > 0) {
    if (!watch()) clock_.Stop();
  }
  Tally sum;
  for (const auto& worker : crew_) {
    worker->thread.join();
    late_s_max_ = std::max(late_s_max_, worker->late_s_max);
    const MutexLock lock(worker->mu);
    sum.Merge(worker->tally);
  }
  return sum;
}

ReplayRun::Progress ReplayRun::progress() const {
  Progress progress;
  for (const auto& worker : crew_) {
    const MutexLock lock(worker->mu);
    progress.requests += worker->tally.requests;
    progress.tokens.Add(worker->tally.tokens);
    progress.bytes += worker->tally.got_bytes + worker->tally.put_bytes;
  }
  return progress;
}

void ReplayRun::Work(Worker& worker) {
  worker.buffer.resize(block_bytes_ * batch_blocks_);
  for (;;) {
    const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    if (number >= trace_.requests.size()) return;
    const TraceRequest& request = trace_.requests[number];
    bool go = false;
    const double late_s = clock_.Begin(request.timestamp_ms / 1000, &go);
    if (!go) return;
    worker.late_s_max = std::max(worker.late_s_max, late_s);
    worker.window = static_cast<std::uint32_t>(clock_.WallSeconds() / options_.window_s);
    Play(worker, number, request);
  }
}

void ReplayRun::Play(Worker& worker, std::uint64_t number, const TraceRequest& request) {
  const auto ids = FullBlocks(request, trace_.block_tokens);
  HitTokens tokens{.prompt = request.input_length};
  const Result<Chain> chain = ChainOf(ids);
  if (ids.empty() || !chain.ok()) {
    const MutexLock lock(worker.mu);
    ++worker.tally.requests;
    worker.tally.tokens.Add(tokens);
    worker.tally.windows[worker.window].Add(tokens);
    return;
  }
  ReplayEngine& engine = engines_.At(number, request);
  const auto started = Clock::System().Now();
  const LookupOutcome found =
      engine.client->Lookup(*chain, 0, chain->size(), {}, options_.lookup_budget);
  {
    const double micros = MicrosSince(started);
    const MutexLock lock(worker.mu);
    worker.tally.lookup.Add(micros);
    if (found.hits < chain->size()) ++worker.tally.misses[MissName(found.miss)];
    if (!found.endpoint) ++worker.tally.cut_short;
    if (found.endpoint) ++worker.tally.requests_at[engine.endpoint_nodes[*found.endpoint]];
    if (found.endpoint && *found.endpoint != 0) ++worker.tally.other_node;
  }
  const std::uint32_t got = GetHits(worker, engine, *chain, found, ids);
  PutRest(worker, engine, *chain, ids, got);
  const MutexLock lock(worker.mu);
  ++worker.tally.requests;
  worker.tally.tokens.prompt += tokens.prompt;
  worker.tally.windows[worker.window].prompt += tokens.prompt;
}

std::uint32_t ReplayRun::GetHits(Worker& worker, ReplayEngine& engine, const Chain& chain,
                                 const LookupOutcome& found, std::span<const std::uint64_t> ids) {
  std::uint32_t done = 0;
  while (done < found.hits) {
    const std::uint32_t count = std::min(batch_blocks_, found.hits - done);
    const auto started = Clock::System().Now();
    const GetOutcome got =
        engine.client->Get(found.lease, chain, done, count, {}, options_.get_budget);
    const double micros = MicrosSince(started);
    HitTokens tokens;
    std::uint32_t good = 0;
    for (; good < got.blocks.size() && got.blocks[good]; ++good) {
      const BlockView& view = *got.blocks[good];
      if (!CheckBlock(worker, ids[done + good], view)) break;
      (view.from_peer() ? tokens.peer : tokens.local) += trace_.block_tokens;
    }
    const bool missed = good < got.blocks.size() && !got.blocks[good];
    const MutexLock lock(worker.mu);
    worker.tally.get.Add(micros);
    worker.tally.got_blocks += good;
    worker.tally.got_bytes += good * block_bytes_;
    worker.tally.tokens.Add(tokens);
    worker.tally.windows[worker.window].Add(tokens);
    if (missed || got.blocks.empty()) worker.tally.wrong_exists_at.push_back(clock_.WallSeconds());
    done += good;
    if (good < count) break;
  }
  return done;
}

bool ReplayRun::CheckBlock(Worker& worker, std::uint64_t id, const BlockView& view) {
  if (view.bytes().size() == block_bytes_ && !FindWrongByte(id, view.bytes())) return true;
  // Not what was put. A reader that verifies, as engines do, takes it for a miss when the checksum
  // says so; only what passes as good is a wrong answer.
  const bool passes = view.Verify();
  std::vector<std::byte> want(block_bytes_);
  FillBlockContent(id, want);
  const std::uint64_t wrong = CountWrongBytes(want, view.bytes());
  const MutexLock lock(worker.mu);
  if (passes) {
    ++worker.tally.wrong_blocks;
    worker.tally.wrong_bytes += wrong;
  } else {
    ++worker.tally.corrupt_blocks;
  }
  return false;
}

void ReplayRun::PutRest(Worker& worker, ReplayEngine& engine, const Chain& chain,
                        std::span<const std::uint64_t> ids, std::uint32_t first) {
  while (first < chain.size()) {
    const std::uint32_t count = std::min(batch_blocks_, chain.size() - first);
    std::vector<PutBlock> blocks;
    for (std::uint32_t i = 0; i < count; ++i) {
      const MutableByteSpan place =
          MutableByteSpan(worker.buffer).subspan(i * block_bytes_, block_bytes_);
      FillBlockContent(ids[first + i], place);
      blocks.push_back({.bytes = place, .metadata = {}});
    }
    const auto started = Clock::System().Now();
    const PutOutcome put = engine.client->Put(chain, first, blocks, {}, options_.put_budget);
    const double micros = MicrosSince(started);
    const MutexLock lock(worker.mu);
    worker.tally.put.Add(micros);
    for (const PutResult status : put.status) {
      switch (status) {
        case PutResult::kOk:
          ++worker.tally.put_ok;
          worker.tally.put_bytes += block_bytes_;
          break;
        case PutResult::kAlreadyExists:
          ++worker.tally.put_exists;
          break;
        case PutResult::kNoSpace:
          ++worker.tally.put_no_space;
          break;
        case PutResult::kChecksumMismatch:
        case PutResult::kFailed:
        case PutResult::kDropped:
          ++worker.tally.put_failed;
          worker.tally.failed_put_at.push_back(clock_.WallSeconds());
          break;
      }
    }
    first += count;
  }
}

}  // namespace kvfabric::cli
