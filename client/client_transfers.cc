// The calls of Client that move blocks: Get, Read, Put.

#include <algorithm>
#include <utility>

#include "client/client.h"
#include "client/connection_keeper.h"
#include "client/lease_state.h"
#include "client/session.h"
#include "common/checksum.h"

namespace kvfabric {

namespace {

constexpr std::uint64_t kAlign = 256;  // of blocks in the staging memory
// Beside its key, in the body of a PUT.
constexpr std::size_t kPutEntryBytes = 28;

std::uint64_t Aligned(std::uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

PutResult FromWire(wire::PutOutcome status) {
  switch (status) {
    case wire::PutOutcome::kOk:
      return PutResult::kOk;
    case wire::PutOutcome::kAlreadyExists:
      return PutResult::kAlreadyExists;
    case wire::PutOutcome::kNoSpace:
      return PutResult::kNoSpace;
    case wire::PutOutcome::kChecksumMismatch:
      return PutResult::kChecksumMismatch;
    case wire::PutOutcome::kFailed:
      return PutResult::kFailed;
  }
  return PutResult::kFailed;
}

bool CanBePut(const PutBlock& block, const Session& session) {
  const std::uint64_t most = session.local()
                                 ? session.staging()->size_bytes()
                                 : std::min<std::uint64_t>(session.staging()->size_bytes(),
                                                           FrameLimits{}.max_payload_bytes);
  return !block.bytes.empty() && block.bytes.size() <= most &&
         block.metadata.size() <= kMaxBlockMetadataBytes;
}

// Notes what the agent said of blocks [at, at + count). False: asking on is of no use.
bool NoteAnswer(const CallReply& reply, std::size_t at, std::size_t count, PutOutcome& outcome) {
  if (!reply.status.ok()) {
    const bool ours = reply.status.code() == StatusCode::kInvalidArgument;
    for (std::size_t i = 0; ours && i < count; ++i) outcome.status[at + i] = PutResult::kFailed;
    return ours;
  }
  const auto answer = wire::Decode<wire::PutReply>(AsBytes(reply.parts.front().body));
  for (std::size_t i = 0; i < count; ++i) {
    const bool told = answer.ok() && i < answer->status.size();
    outcome.status[at + i] = told ? FromWire(answer->status[i]) : PutResult::kFailed;
    if (told && i < answer->copies.size()) outcome.copies[at + i] = answer->copies[i];
  }
  return true;
}

}  // namespace

Client::Slice Client::NextSlice(const Lease& lease, const Chain& chain, std::uint32_t first,
                                std::uint32_t count) {
  Slice slice{first, count, 0};
  if (lease) {
    // Keys beyond what the look-up asked for go with its last lease: the agent says miss.
    for (const Lease::State::Part& part : lease.state_->parts) {
      if (first < part.first) {
        slice.count = std::min(slice.count, part.first - first);
        break;
      }
      slice.lease_id = part.id;
      if (first - part.first < part.count) {
        slice.count = std::min(slice.count, part.count - (first - part.first));
        break;
      }
    }
  }
  slice.count = chain.Fitting(first, slice.count);
  return slice;
}

GetOutcome Client::Get(const Lease& lease, const Chain& chain, std::uint32_t first,
                       std::uint32_t count, Lane lane, Budget budget) {
  const CallGate::Pass pass(gate_);
  GetOutcome outcome;
  first = std::min(first, chain.size());
  count = std::min(count, chain.size() - first);
  outcome.blocks.resize(count);
  counts_.gets += count;
  if (count == 0) return outcome;
  const auto session = SessionOf(lease);
  if (!session) {
    CountMissed(Unavailable("no agent"), count);
    return outcome;
  }
  outcome.endpoint = session->endpoint_index();
  const Deadline deadline = DeadlineOf(budget);
  std::vector<std::string_view> views;
  for (std::uint32_t done = 0; done < count;) {
    const Slice slice = NextSlice(lease, chain, first + done, count - done);
    const wire::KeyRangeView range = chain.Range(slice.first, slice.count, views);
    const std::span into = std::span(outcome.blocks).subspan(done, slice.count);
    const Status status = GetSlice(session, wire::EncodeGet(slice.lease_id, lane, range), lease,
                                   slice.lease_id, into, deadline);
    if (!status.ok()) {
      CountMissed(status, count - done);
      break;
    }
    if (kind_ == NamespaceKind::kChain && !into.back()) break;  // what is behind a gap is no use
    done += slice.count;
  }
  return outcome;
}

Status Client::GetSlice(const std::shared_ptr<Session>& session, std::string request, Lease lease,
                        std::uint64_t asked, std::span<std::optional<BlockView>> into,
                        Deadline deadline) {
  const auto reply = std::make_shared<CallReply>(
      session->Call(FrameOp::kGet, std::move(request), deadline,
                    {.gives_lease = asked == 0, .max_parts = into.size()}));
  if (!reply->status.ok()) return reply->status;
  for (const ReplyPart& part : reply->parts) {
    auto answer = wire::Decode<wire::GetReply>(AsBytes(part.body));
    if (!answer.ok()) {
      session->Close();  // it does not speak our language
      return Unavailable("no answer that can be read");
    }
    // The agent took a lease for this call, perhaps as the one it was asked with has ended.
    if (answer->lease_id != 0 && answer->lease_id != asked) {
      asked = answer->lease_id;
      auto state = std::make_shared<Lease::State>(session);
      state->parts.push_back({0, 0, answer->lease_id});
      lease = Lease(std::move(state));
    }
    std::size_t next_inline = 0;
    for (std::size_t i = 0; i < answer->entries.size(); ++i) {
      wire::GetEntry& entry = answer->entries[i];
      const InlineBlock* block = nullptr;
      if (entry.place == wire::GetPlace::kInline && next_inline < part.blocks.size()) {
        block = &part.blocks[next_inline++];
      }
      const std::size_t index = answer->first_index + i;
      if (index >= into.size()) continue;
      into[index] = ViewOf(*session, std::move(entry), block, reply);
      if (into[index]) into[index]->lease_ = lease;
    }
  }
  return Status::Ok();
}

std::optional<BlockView> Client::ViewOf(const Session& session, wire::GetEntry entry,
                                        const InlineBlock* block,
                                        const std::shared_ptr<const CallReply>& reply) {
  BlockView view;
  view.checksum_ = entry.checksum;
  view.metadata_ = std::move(entry.metadata);
  view.from_peer_ = entry.from_peer;
  if (entry.place == wire::GetPlace::kMemfd) {
    const auto mapping = session.memory().Find(entry.memfd_id);
    if (!mapping) return std::nullopt;
    view.bytes_ = mapping->At(entry.offset, entry.length);
    view.keep_ = mapping;
    if (view.bytes_.empty() || view.bytes_.size() != entry.length) return std::nullopt;
    return view;
  }
  if (block == nullptr) return std::nullopt;
  if (!block->intact) {
    ++counts_.corrupt;
    return std::nullopt;
  }
  view.bytes_ = {block->bytes.get(), block->size};
  view.keep_ = reply;
  return view;
}

std::vector<bool> Client::Read(const Lease& lease, const Chain& chain, std::uint32_t first,
                               std::span<const MutableByteSpan> into, Lane lane, Budget budget) {
  const CallGate::Pass pass(gate_);
  std::vector<bool> read(into.size(), false);
  const GetOutcome got =
      Get(lease, chain, first, static_cast<std::uint32_t>(into.size()), lane, budget);
  for (std::size_t i = 0; i < got.blocks.size(); ++i) {
    if (!got.blocks[i] || got.blocks[i]->bytes().size() != into[i].size()) continue;
    read[i] = CopyAndChecksum(into[i], got.blocks[i]->bytes()) == got.blocks[i]->checksum();
    if (!read[i]) ++counts_.corrupt;
  }
  return read;
}

PutOutcome Client::Put(const Chain& chain, std::uint32_t first, std::span<const PutBlock> blocks,
                       Lane lane, Budget budget) {
  const CallGate::Pass pass(gate_);
  PutOutcome outcome;
  outcome.status.assign(blocks.size(), PutResult::kDropped);
  outcome.copies.assign(blocks.size(), 0);
  counts_.puts += blocks.size();
  if (first > chain.size() || blocks.size() > chain.size() - first) {
    outcome.status.assign(blocks.size(), PutResult::kFailed);  // blocks without keys
    return outcome;
  }
  const auto session = keeper_->Current();
  if (session && session->staging()) {
    outcome.endpoint = session->endpoint_index();
    const PutJob job{chain, first, blocks, lane, DeadlineOf(budget)};
    if (session->local()) {
      PutStaged(*session, job, outcome);
    } else {
      PutInline(*session, job, outcome);
    }
  }
  counts_.puts_dropped += static_cast<std::uint64_t>(
      std::count(outcome.status.begin(), outcome.status.end(), PutResult::kDropped));
  return outcome;
}

// As many blocks a request as half of the staging memory takes, so that two callers overlap.
void Client::PutStaged(Session& session, const PutJob& job, PutOutcome& outcome) {
  const std::uint64_t most_bytes = session.staging()->size_bytes() / 2;
  std::vector<std::string_view> views;
  std::vector<wire::PutEntry> entries;
  for (std::size_t at = 0; at < job.blocks.size();) {
    entries.clear();
    std::uint64_t bytes = 0;
    std::size_t body = 0;
    for (std::size_t i = at; i < job.blocks.size(); ++i) {
      const PutBlock& block = job.blocks[i];
      const std::size_t key_bytes = job.chain.key(job.first + static_cast<std::uint32_t>(i)).size();
      body += kPutEntryBytes + key_bytes + block.metadata.size();
      if (!CanBePut(block, session) || entries.size() >= wire::kMaxKeysPerRequest) break;
      const bool full = bytes + block.bytes.size() > most_bytes || body > Chain::kRequestBytes;
      if (!entries.empty() && full) break;
      entries.push_back({bytes, block.bytes.size(), 0, std::string(block.metadata)});
      bytes += Aligned(block.bytes.size());
    }
    if (entries.empty()) {
      outcome.status[at++] = PutResult::kFailed;
      continue;
    }
    if (job.deadline.Passed(Clock::System())) return;
    const auto region = session.staging()->Allocate(bytes, job.deadline);
    if (!region) return;  // no room in time, or the session is over: the rest is dropped
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const ByteSpan from = job.blocks[at + i].bytes;
      std::copy(from.begin(), from.end(),
                region->bytes().begin() + static_cast<std::ptrdiff_t>(entries[i].offset));
      entries[i].offset += region->offset();
    }
    const auto depth = static_cast<std::uint32_t>(job.first + at);
    const auto range = job.chain.Range(depth, static_cast<std::uint32_t>(entries.size()), views);
    const CallReply reply = session.Call(FrameOp::kPut, wire::EncodePut(job.lane, range, entries),
                                         job.deadline, {.keep = region});
    if (!NoteAnswer(reply, at, entries.size(), outcome)) return;
    at += entries.size();
  }
}

// One block a request; the staging memory only bounds what waits to be sent.
void Client::PutInline(Session& session, const PutJob& job, PutOutcome& outcome) {
  std::vector<std::string_view> views;
  for (std::size_t i = 0; i < job.blocks.size(); ++i) {
    const PutBlock& block = job.blocks[i];
    if (!CanBePut(block, session)) {
      outcome.status[i] = PutResult::kFailed;
      continue;
    }
    if (job.deadline.Passed(Clock::System())) return;
    const auto region = session.staging()->Allocate(block.bytes.size(), job.deadline);
    if (!region) return;
    const MutableByteSpan to = region->bytes().first(block.bytes.size());
    const CallPayload payload{to, CopyAndChecksum(to, block.bytes), region};
    const auto range = job.chain.Range(static_cast<std::uint32_t>(job.first + i), 1, views);
    const CallReply reply = session.CallWithPayload(
        FrameOp::kPutInline, wire::EncodePutInline(job.lane, range, block.metadata), payload,
        job.deadline);
    if (!NoteAnswer(reply, i, 1, outcome)) return;
  }
}

}  // namespace kvfabric
