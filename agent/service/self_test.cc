#include "agent/service/self_test.h"

#include <random>

#include "common/checksum.h"
#include "common/identity.h"
#include "common/log.h"

namespace kvfabric {

namespace {

constexpr char kProbePool[] = "/probe";

NamespaceRef ProbeNamespace() {
  auto ns = std::make_shared<Namespace>();
  ns->pool_uid = kProbePool;
  ns->tenant = kProbeTenant;
  ns->kind = NamespaceKind::kSingle;
  ns->digest = MakeNamespaceDigest(kProbePool, kProbeTenant, "");
  return ns;
}

// A flag that a task sets and the tester waits for; outlives whichever is slower.
struct Flag {
  Mutex mu;
  CondVar changed;
  bool set GUARDED_BY(mu) = false;
};

}  // namespace

CacheEngine::Options SelfTest::ProbeEngineOptions() {
  CacheEngine::Options options;
  options.pool_uid = kProbePool;
  options.pool_name = kProbePool;
  options.capacity_bytes = kProbeMemfdBytes;
  return options;
}

SelfTest::SelfTest(Options options, Environment environment)
    : options_(options),
      environment_(std::move(environment)),
      ns_(ProbeNamespace()),
      ready_gauge_(environment_.metrics->GetGauge("kvfabric_agent_ready",
                                                  "1 while the self-test passes, else 0")),
      failures_(environment_.metrics->GetCounter("kvfabric_agent_self_test_failures_total",
                                                 "Self-tests that failed")),
      finished_(environment_.clock->Now()),
      thread_([this] { Run(); }) {}

SelfTest::~SelfTest() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

AgentHealth SelfTest::health() const {
  MutexLock lock(mu_);
  AgentHealth health;
  health.recovering = recovering_;
  if (!tested_) {
    health.not_ready_reason = recovering_ ? "arena: memory is being prefaulted" : "not tested yet";
  } else if (environment_.clock->Now() - finished_ > options_.stale_after) {
    health.not_ready_reason = "self-test: hangs";
  } else if (!last_.ok()) {
    health.not_ready_reason = last_.message();
  } else {
    health.ready = true;
  }
  return health;
}

void SelfTest::Run() {
  for (;;) {
    // While memory is being prefaulted there is nothing to test, and soon there will be.
    const bool recovering = !environment_.arena->ready();
    const Status status = recovering ? environment_.arena->prefault_status() : Probe();
    const auto pause = recovering ? std::chrono::milliseconds(10) : options_.interval;
    ready_gauge_.Set(!recovering && status.ok() ? 1 : 0);
    MutexLock lock(mu_);
    if (stopping_) return;
    if (!status.ok() && last_.ok()) {
      LogError("self-test failed", {{"reason", status.message()}});
    }
    if (!status.ok()) failures_.Add();
    recovering_ = recovering;
    tested_ = !recovering || !status.ok();
    last_ = status;
    finished_ = environment_.clock->Now();
    wake_.WaitUntil(mu_, std::chrono::steady_clock::now() + pause);
    if (stopping_) return;
  }
}

Status SelfTest::Probe() {
  KVF_RETURN_IF_ERROR(ProbeExecutors());
  return ProbeBlock();
}

Status SelfTest::ProbeExecutors() {
  for (const auto& [name, executor] : environment_.executors) {
    const auto flag = std::make_shared<Flag>();
    const auto deadline = std::chrono::steady_clock::now() + options_.task_deadline;
    if (!executor->Submit([flag] {
          MutexLock lock(flag->mu);
          flag->set = true;
          flag->changed.NotifyAll();
        })) {
      return ResourceExhausted("self-test: threads " + name + ": queue is full");
    }
    MutexLock lock(flag->mu);
    while (!flag->set) {
      if (!flag->changed.WaitUntil(flag->mu, deadline) && !flag->set) {
        return DeadlineExceeded("self-test: threads " + name + ": ran no task for " +
                                std::to_string(options_.task_deadline.count()) + " ms");
      }
    }
  }
  return Status::Ok();
}

Status SelfTest::ProbeBlock() {
  BlockHeader header;
  header.ns = ns_;
  header.key = "probe-" + std::to_string(round_++);
  header.id = MakeKeyId(ns_->digest, header.lane, header.key);
  header.length_bytes = options_.block_bytes;
  std::string bytes(options_.block_bytes, '\0');
  std::mt19937_64 random(round_);
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    StoreLe<std::uint64_t>(reinterpret_cast<std::byte*>(bytes.data()) + at, random());
  }
  header.checksum = BlockChecksum(AsBytes(bytes));

  CacheEngine& engine = *environment_.engine;
  Result<Reservation> reservation = engine.Reserve(header, BlockOrigin::kPut);
  if (!reservation.ok()) return reservation.status().WithContext("self-test: put");
  const std::uint64_t sum = CopyAndChecksum(reservation->bytes(), AsBytes(bytes));
  const Result<PinnedBlock> committed = std::move(*reservation).Commit(sum);
  if (!committed.ok()) return committed.status().WithContext("self-test: put");
  const auto read = engine.Pin(header.id, header.key, header.lane);
  Status status;
  if (!read) {
    status = DataLoss("self-test: get: the block that was just put is not there");
  } else if (AsText(read->bytes()) != bytes || BlockChecksum(read->bytes()) != header.checksum) {
    status = DataLoss("self-test: get: other bytes than were put");
  }
  engine.Delete(header.id);
  return status;
}

}  // namespace kvfabric
