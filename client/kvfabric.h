/* kvfabric.h: the C interface of the engine library, libkvfabric.so.
 *
 * Any thread may call any function on one kvf_client; calls block until answered or `budget_ms`
 * is over and then return what there is. Nothing fails because an agent is away: reads miss and
 * puts are dropped, both counted. Strings are NUL-terminated UTF-8; memory stays the caller's
 * unless a function says otherwise. No function throws, aborts or prints.
 *
 *   kvf_options o = KVF_OPTIONS_INIT;
 *   o.endpoints = "unix:/run/kvfabric/agent.sock";
 *   o.token = token; o.pool = "default/kv"; o.fingerprint = "model=m\n";
 *   kvf_client* c; char why[256];
 *   if (kvf_client_create(&o, &c, why, sizeof why) != KVF_OK) ...
 */
#ifndef KVFABRIC_CLIENT_KVFABRIC_H_
#define KVFABRIC_CLIENT_KVFABRIC_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVF_ABI_VERSION 1

typedef struct kvf_client kvf_client; /* a connection to one agent of a list */
typedef struct kvf_chain kvf_chain;   /* the keys of one prompt's blocks, from depth 0 */
typedef struct kvf_lease kvf_lease;   /* what a look-up pinned */

typedef enum kvf_status { KVF_OK = 0, KVF_INVALID_ARGUMENT = 3, KVF_UNAVAILABLE = 14 } kvf_status;

typedef enum kvf_kind { KVF_CHAIN = 0, KVF_SINGLE = 1 } kvf_kind;

typedef struct kvf_options {
  uint32_t abi_version;    /* KVF_ABI_VERSION */
  const char* endpoints;   /* `unix:/path` or `tcp:host:port`, separated by commas */
  const char* token;       /* may be NULL */
  const char* pool;        /* "namespace/name" */
  const char* fingerprint; /* lines `name=value\n`, sorted by name */
  kvf_kind kind;
  uint32_t connect_timeout_ms;
  uint64_t staging_bytes; /* at least the largest block */
} kvf_options;

#define KVF_OPTIONS_INIT \
  { KVF_ABI_VERSION, 0, 0, 0, 0, KVF_CHAIN, 200, 67108864 }

/* Cache group and rank; rank 65535 = shared by all ranks. */
typedef struct kvf_lane {
  uint16_t group;
  uint16_t rank;
} kvf_lane;

typedef struct kvf_key {
  const void* data; /* 1..512 bytes */
  size_t size;
} kvf_key;

typedef struct kvf_span {
  void* data;
  size_t size;
} kvf_span;

/* A block and what its writer says of it: up to 4096 bytes, none if size is 0. */
typedef struct kvf_block {
  const void* data;
  size_t size;
  const void* metadata;
  size_t metadata_size;
} kvf_block;

/* Why a look-up said no to the first block it said no to. */
typedef enum kvf_miss {
  KVF_MISS_NONE = 0,
  KVF_MISS_NOT_FOUND,
  KVF_MISS_LEASE_BUDGET,
  KVF_MISS_DEADLINE,
  KVF_MISS_NO_MAP,
  KVF_MISS_NO_AGENT,
  KVF_MISS_REFUSED /* no request that an agent takes, e.g. of more than 64 lanes */
} kvf_miss;

typedef enum kvf_put {
  KVF_PUT_OK = 0,
  KVF_PUT_ALREADY_EXISTS,
  KVF_PUT_NO_SPACE,
  KVF_PUT_CHECKSUM_MISMATCH,
  KVF_PUT_FAILED, /* cannot be put: empty, or larger than staging, its pool or 1/16 of the arena */
  KVF_PUT_DROPPED /* no agent, or no answer in time */
} kvf_put;

typedef struct kvf_lookup {
  uint32_t hits; /* blocks from `first` on, without a gap, in all lanes */
  uint32_t local;
  uint32_t peer;
  kvf_miss miss;
  kvf_lease* lease; /* release with kvf_lease_release; NULL when hits is 0 */
} kvf_lookup;

/* Of blocks, except connects. */
typedef struct kvf_counters {
  uint64_t lookups, gets, puts, missed_no_agent, missed_deadline, puts_dropped, corrupt, connects;
} kvf_counters;

uint32_t kvf_abi_version(void);

/* Writes the reason to `why` (cut at why_size) unless KVF_OK. Does not wait for an agent.
 * KVF_UNAVAILABLE: a host name cannot be looked up now, or no thread or descriptor is left. */
kvf_status kvf_client_create(const kvf_options* options, kvf_client** out, char* why,
                             size_t why_size);
/* Waits for calls under way, which return at once. Leases may be released after it. */
void kvf_client_destroy(kvf_client* client);
/* KVF_OK when an agent answered within the budget. */
kvf_status kvf_client_wait(const kvf_client* client, uint32_t budget_ms, char* why,
                           size_t why_size);
void kvf_client_counters(const kvf_client* client, kvf_counters* out);
/* Blocks missed because no agent takes such a request (KVF_MISS_REFUSED). */
uint64_t kvf_client_missed_refused(const kvf_client* client);

/* Copies the keys. NULL when a key is not 1..512 bytes. */
kvf_chain* kvf_chain_create(const kvf_key* keys, size_t count);
void kvf_chain_destroy(kvf_chain* chain);

/* `lanes` may be NULL: the lane {0, shared}; at most 64. */
void kvf_lookup_chain(kvf_client* client, const kvf_chain* chain, uint32_t first, uint32_t count,
                      const kvf_lane* lanes, size_t lane_count, uint32_t budget_ms,
                      kvf_lookup* out);
/* For KVF_SINGLE, all keys of `keys`: found[i] = 1 when key i is there, out->hits how many are. */
void kvf_lookup_single(kvf_client* client, const kvf_chain* keys, uint32_t budget_ms,
                       uint8_t* found, kvf_lookup* out);
/* The same in these lanes (as for kvf_lookup_chain): there = in all of them. */
void kvf_lookup_single_lanes(kvf_client* client, const kvf_chain* keys, const kvf_lane* lanes,
                             size_t lane_count, uint32_t budget_ms, uint8_t* found,
                             kvf_lookup* out);
/* 1 when the lease goes on for another lease time, 0 when it is over. */
int kvf_lease_renew(kvf_client* client, const kvf_lease* lease, uint32_t budget_ms);
void kvf_lease_release(kvf_lease* lease);

/* Copies blocks first.. into spans, verified; read[i] = 1 when span i was filled with the block's
 * exact bytes. `lease` may be NULL. Returns how many were. */
uint32_t kvf_read(kvf_client* client, const kvf_lease* lease, const kvf_chain* chain,
                  uint32_t first, const kvf_span* into, size_t count, kvf_lane lane,
                  uint32_t budget_ms, uint8_t* read);

/* Puts blocks first.. from spans; results[i] is a kvf_put. Returns how many are OK or exist. */
uint32_t kvf_put_blocks(kvf_client* client, const kvf_chain* chain, uint32_t first,
                        const kvf_span* blocks, size_t count, kvf_lane lane, uint32_t budget_ms,
                        uint8_t* results);

/* The same of blocks with metadata; copies[i] is on how many nodes block i lies now, as far as its
 * write policy waits for them. `copies` may be NULL. */
uint32_t kvf_put_described(kvf_client* client, const kvf_chain* chain, uint32_t first,
                           const kvf_block* blocks, size_t count, kvf_lane lane, uint32_t budget_ms,
                           uint8_t* results, uint8_t* copies);

/* Drops copies at known holders, best effort. Returns how many keys had one. */
uint32_t kvf_delete(kvf_client* client, const kvf_chain* chain, uint32_t first, uint32_t count,
                    kvf_lane lane, uint32_t budget_ms);

#ifdef __cplusplus
}
#endif

#endif /* KVFABRIC_CLIENT_KVFABRIC_H_ */
