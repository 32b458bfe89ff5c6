// The C ABI over client/client.h. Every function catches what the standard library may throw:
// an exception must not cross into C.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/kvfabric.h"

#define KVF_EXPORT __attribute__((visibility("default")))

struct kvf_client {
  std::unique_ptr<kvfabric::Client> client;
};
struct kvf_chain {
  kvfabric::Chain chain;
};
struct kvf_lease {
  kvfabric::Lease lease;
};

namespace {

using kvfabric::Client;

void Say(char* why, std::size_t size, const std::string& text) {
  if (why == nullptr || size == 0) return;
  const std::size_t n = std::min(size - 1, text.size());
  std::memcpy(why, text.data(), n);
  why[n] = '\0';
}

std::string OrEmpty(const char* text) { return text == nullptr ? std::string() : text; }

std::vector<std::string> SplitEndpoints(const char* text) {
  std::vector<std::string> endpoints;
  std::string rest = OrEmpty(text);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    if (comma != 0) endpoints.push_back(rest.substr(0, comma));
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return endpoints;
}

kvfabric::Lane ToLane(kvf_lane lane) { return {lane.group, lane.rank}; }

Client::Budget ToBudget(std::uint32_t budget_ms) { return Client::Budget(budget_ms); }

kvf_status CreateClient(const kvf_options* options, kvf_client** out, char* why,
                        std::size_t why_size) {
  if (options == nullptr || out == nullptr) {
    Say(why, why_size, "options and out must not be NULL");
    return KVF_INVALID_ARGUMENT;
  }
  *out = nullptr;
  if (options->abi_version != KVF_ABI_VERSION) {
    Say(why, why_size,
        "abi_version: " + std::to_string(options->abi_version) + ": this library speaks " +
            std::to_string(KVF_ABI_VERSION) + ": start from KVF_OPTIONS_INIT and rebuild");
    return KVF_INVALID_ARGUMENT;
  }
  kvfabric::ClientOptions made;
  made.endpoints = SplitEndpoints(options->endpoints);
  made.token = OrEmpty(options->token);
  made.pool = OrEmpty(options->pool);
  made.fingerprint = OrEmpty(options->fingerprint);
  made.kind = options->kind == KVF_SINGLE ? kvfabric::NamespaceKind::kSingle
                                          : kvfabric::NamespaceKind::kChain;
  made.connect_timeout = std::chrono::milliseconds(options->connect_timeout_ms);
  made.staging_bytes = options->staging_bytes;
  auto client = Client::Create(std::move(made));
  if (!client.ok()) {
    Say(why, why_size, client.status().message());
    return client.status().code() == kvfabric::StatusCode::kInvalidArgument ? KVF_INVALID_ARGUMENT
                                                                            : KVF_UNAVAILABLE;
  }
  *out = new kvf_client{*std::move(client)};
  return KVF_OK;
}

constexpr kvf_lookup kNothing = {0, 0, 0, KVF_MISS_NO_AGENT, nullptr};

kvf_lookup ToC(kvfabric::LookupOutcome found) {
  kvf_lookup out = {found.hits, found.local, found.peer, static_cast<kvf_miss>(found.miss),
                    nullptr};
  if (found.lease) out.lease = new kvf_lease{std::move(found.lease)};
  return out;
}

std::vector<kvfabric::Lane> ToLanes(const kvf_lane* lanes, std::size_t count) {
  std::vector<kvfabric::Lane> wanted;
  for (std::size_t i = 0; lanes != nullptr && i < count; ++i) wanted.push_back(ToLane(lanes[i]));
  return wanted;
}

void LookupSingle(kvf_client* client, const kvf_chain* keys, const kvf_lane* lanes,
                  std::size_t lane_count, std::uint32_t budget_ms, std::uint8_t* found,
                  kvf_lookup* out) {
  *out = kNothing;
  const std::uint32_t count = keys->chain.size();
  std::fill_n(found, count, std::uint8_t{0});
  kvfabric::LookupOutcome outcome = client->client->Lookup(
      keys->chain, 0, count, ToLanes(lanes, lane_count), ToBudget(budget_ms));
  for (std::size_t i = 0; i < outcome.found.size(); ++i) found[i] = outcome.found[i] ? 1 : 0;
  *out = ToC(std::move(outcome));
}

std::uint32_t PutAll(kvf_client* client, const kvf_chain* chain, std::uint32_t first,
                     const std::vector<kvfabric::PutBlock>& blocks, kvf_lane lane,
                     std::uint32_t budget_ms, std::uint8_t* results, std::uint8_t* copies) {
  const kvfabric::PutOutcome put =
      client->client->Put(chain->chain, first, blocks, ToLane(lane), ToBudget(budget_ms));
  std::uint32_t good = 0;
  for (std::size_t i = 0; i < put.status.size(); ++i) {
    results[i] = static_cast<std::uint8_t>(put.status[i]);
    if (copies != nullptr) copies[i] = put.copies[i];
    good += put.status[i] == kvfabric::PutResult::kOk ||
            put.status[i] == kvfabric::PutResult::kAlreadyExists;
  }
  return good;
}

// The enums of both sides are the same numbers.
static_assert(static_cast<int>(kvfabric::Miss::kNoAgent) == KVF_MISS_NO_AGENT);
static_assert(static_cast<int>(kvfabric::Miss::kRefused) == KVF_MISS_REFUSED);
static_assert(static_cast<int>(kvfabric::PutResult::kDropped) == KVF_PUT_DROPPED);

}  // namespace

extern "C" {

KVF_EXPORT std::uint32_t kvf_abi_version(void) { return KVF_ABI_VERSION; }

KVF_EXPORT kvf_status kvf_client_create(const kvf_options* options, kvf_client** out, char* why,
                                        std::size_t why_size) try {
  return CreateClient(options, out, why, why_size);
} catch (const std::exception& error) {
  Say(why, why_size, error.what());
  return KVF_UNAVAILABLE;
}

KVF_EXPORT void kvf_client_destroy(kvf_client* client) { delete client; }

KVF_EXPORT kvf_status kvf_client_wait(const kvf_client* client, std::uint32_t budget_ms, char* why,
                                      std::size_t why_size) try {
  const kvfabric::Status status = client->client->WaitConnected(ToBudget(budget_ms));
  if (status.ok()) return KVF_OK;
  Say(why, why_size, status.message());
  return KVF_UNAVAILABLE;
} catch (const std::exception& error) {
  Say(why, why_size, error.what());
  return KVF_UNAVAILABLE;
}

KVF_EXPORT void kvf_client_counters(const kvf_client* client, kvf_counters* out) {
  const kvfabric::ClientCounters counters = client->client->counters();
  *out = {
      counters.lookups,         counters.gets,         counters.puts,    counters.missed_no_agent,
      counters.missed_deadline, counters.puts_dropped, counters.corrupt, counters.connects};
}

KVF_EXPORT std::uint64_t kvf_client_missed_refused(const kvf_client* client) {
  return client->client->counters().missed_refused;
}

KVF_EXPORT kvf_chain* kvf_chain_create(const kvf_key* keys, std::size_t count) try {
  std::vector<std::string> copied;
  copied.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    copied.emplace_back(static_cast<const char*>(keys[i].data), keys[i].size);
  }
  auto chain = kvfabric::Chain::Create(std::move(copied));
  return chain.ok() ? new kvf_chain{*std::move(chain)} : nullptr;
} catch (const std::exception&) {
  return nullptr;
}

KVF_EXPORT void kvf_chain_destroy(kvf_chain* chain) { delete chain; }

KVF_EXPORT void kvf_lookup_chain(kvf_client* client, const kvf_chain* chain, std::uint32_t first,
                                 std::uint32_t count, const kvf_lane* lanes, std::size_t lane_count,
                                 std::uint32_t budget_ms, kvf_lookup* out) try {
  *out = kNothing;
  *out = ToC(client->client->Lookup(chain->chain, first, count, ToLanes(lanes, lane_count),
                                    ToBudget(budget_ms)));
} catch (const std::exception&) {
  *out = kNothing;
}

KVF_EXPORT void kvf_lookup_single(kvf_client* client, const kvf_chain* keys,
                                  std::uint32_t budget_ms, std::uint8_t* found,
                                  kvf_lookup* out) try {
  LookupSingle(client, keys, nullptr, 0, budget_ms, found, out);
} catch (const std::exception&) {
  *out = kNothing;
}

KVF_EXPORT void kvf_lookup_single_lanes(kvf_client* client, const kvf_chain* keys,
                                        const kvf_lane* lanes, std::size_t lane_count,
                                        std::uint32_t budget_ms, std::uint8_t* found,
                                        kvf_lookup* out) try {
  LookupSingle(client, keys, lanes, lane_count, budget_ms, found, out);
} catch (const std::exception&) {
  *out = kNothing;
}

KVF_EXPORT int kvf_lease_renew(kvf_client* client, const kvf_lease* lease,
                               std::uint32_t budget_ms) try {
  return client->client->Renew(lease->lease, ToBudget(budget_ms)) ? 1 : 0;
} catch (const std::exception&) {
  return 0;
}

KVF_EXPORT void kvf_lease_release(kvf_lease* lease) { delete lease; }

KVF_EXPORT std::uint32_t kvf_read(kvf_client* client, const kvf_lease* lease,
                                  const kvf_chain* chain, std::uint32_t first, const kvf_span* into,
                                  std::size_t count, kvf_lane lane, std::uint32_t budget_ms,
                                  std::uint8_t* read) try {
  std::fill_n(read, count, std::uint8_t{0});
  std::vector<kvfabric::MutableByteSpan> spans;
  spans.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    spans.emplace_back(static_cast<std::byte*>(into[i].data), into[i].size);
  }
  const std::vector<bool> done =
      client->client->Read(lease == nullptr ? kvfabric::Lease() : lease->lease, chain->chain, first,
                           spans, ToLane(lane), ToBudget(budget_ms));
  std::uint32_t good = 0;
  for (std::size_t i = 0; i < done.size(); ++i) {
    read[i] = done[i] ? 1 : 0;
    good += read[i];
  }
  return good;
} catch (const std::exception&) {
  return 0;
}

KVF_EXPORT std::uint32_t kvf_put_blocks(kvf_client* client, const kvf_chain* chain,
                                        std::uint32_t first, const kvf_span* blocks,
                                        std::size_t count, kvf_lane lane, std::uint32_t budget_ms,
                                        std::uint8_t* results) try {
  std::fill_n(results, count, static_cast<std::uint8_t>(KVF_PUT_DROPPED));
  std::vector<kvfabric::PutBlock> wanted;
  wanted.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    wanted.push_back({{static_cast<const std::byte*>(blocks[i].data), blocks[i].size}, {}});
  }
  return PutAll(client, chain, first, wanted, lane, budget_ms, results, nullptr);
} catch (const std::exception&) {
  return 0;
}

KVF_EXPORT std::uint32_t kvf_put_described(kvf_client* client, const kvf_chain* chain,
                                           std::uint32_t first, const kvf_block* blocks,
                                           std::size_t count, kvf_lane lane,
                                           std::uint32_t budget_ms, std::uint8_t* results,
                                           std::uint8_t* copies) try {
  std::fill_n(results, count, static_cast<std::uint8_t>(KVF_PUT_DROPPED));
  if (copies != nullptr) std::fill_n(copies, count, std::uint8_t{0});
  std::vector<kvfabric::PutBlock> wanted;
  wanted.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const kvf_block& block = blocks[i];
    wanted.push_back({{static_cast<const std::byte*>(block.data), block.size},
                      {static_cast<const char*>(block.metadata), block.metadata_size}});
  }
  return PutAll(client, chain, first, wanted, lane, budget_ms, results, copies);
} catch (const std::exception&) {
  return 0;
}

KVF_EXPORT std::uint32_t kvf_delete(kvf_client* client, const kvf_chain* chain, std::uint32_t first,
                                    std::uint32_t count, kvf_lane lane,
                                    std::uint32_t budget_ms) try {
  return client->client->Delete(chain->chain, first, count, ToLane(lane), ToBudget(budget_ms));
} catch (const std::exception&) {
  return 0;
}

}  // extern "C"
