/* Uses the C interface as an engine would: `c_api_check ENDPOINTS` with a fresh agent behind them,
 * or `c_api_check --absent ENDPOINTS` with none. Prints what was wrong; exits with 0 when nothing
 * was. `c_api_check --hold ENDPOINTS` takes a lease, says so, waits for a line and uses it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvfabric.h"

#define CHECK(condition)                                       \
  do {                                                         \
    if (!(condition)) {                                        \
      printf("line %d: not true: %s\n", __LINE__, #condition); \
      return 1;                                                \
    }                                                          \
  } while (0)

enum { kBlocks = 4, kBytes = 70000, kBudgetMs = 20000 };

static const kvf_lane kLane = {0, 65535};
static unsigned char content[kBlocks][kBytes];
static unsigned char buffer[kBlocks][kBytes];
static char names[kBlocks][16];
static kvf_span content_spans[kBlocks];
static kvf_span buffer_spans[kBlocks];

static kvf_chain* make_chain(const char* prefix) {
  kvf_key keys[kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    snprintf(names[i], sizeof names[i], "%s%d", prefix, i);
    keys[i].data = names[i];
    keys[i].size = strlen(names[i]);
    for (int j = 0; j < kBytes; ++j) content[i][j] = (unsigned char)(i * 131 + j * 7 + j / 251);
    content_spans[i].data = content[i];
    content_spans[i].size = kBytes;
    buffer_spans[i].data = buffer[i];
    buffer_spans[i].size = kBytes;
  }
  return kvf_chain_create(keys, kBlocks);
}

static kvf_options options_for(const char* endpoints) {
  kvf_options options = KVF_OPTIONS_INIT;
  options.endpoints = endpoints;
  options.token = "token";
  options.pool = "default/pool";
  options.fingerprint = "model=m\n";
  options.connect_timeout_ms = 2000;
  return options;
}

static int check_refusals(void) {
  kvf_client* client = (kvf_client*)1;
  char why[16] = "";
  kvf_options options = options_for("unix:/tmp/agent.sock");
  CHECK(kvf_abi_version() == KVF_ABI_VERSION);
  CHECK(kvf_client_create(NULL, &client, why, sizeof why) == KVF_INVALID_ARGUMENT);
  CHECK(strlen(why) == sizeof why - 1); /* cut, but ended */
  CHECK(kvf_client_create(&options, NULL, NULL, 0) == KVF_INVALID_ARGUMENT);
  options.abi_version = KVF_ABI_VERSION + 1;
  CHECK(kvf_client_create(&options, &client, why, sizeof why) == KVF_INVALID_ARGUMENT);
  CHECK(client == NULL);
  options = options_for("agent.sock");
  CHECK(kvf_client_create(&options, &client, why, sizeof why) == KVF_INVALID_ARGUMENT);
  options = options_for(",,");
  CHECK(kvf_client_create(&options, &client, why, sizeof why) == KVF_INVALID_ARGUMENT);
  const kvf_key empty = {"", 0};
  CHECK(kvf_chain_create(&empty, 1) == NULL);
  kvf_client_destroy(NULL);
  kvf_chain_destroy(NULL);
  kvf_lease_release(NULL);
  return 0;
}

static int check_absent(const char* endpoints) {
  const kvf_options options = options_for(endpoints);
  kvf_client* client = NULL;
  char why[256] = "";
  CHECK(kvf_client_create(&options, &client, why, sizeof why) == KVF_OK);
  CHECK(kvf_client_wait(client, 50, why, sizeof why) == KVF_UNAVAILABLE);
  CHECK(strlen(why) > 10);
  kvf_chain* chain = make_chain("k");
  kvf_lookup found;
  kvf_lookup_chain(client, chain, 0, kBlocks, NULL, 0, kBudgetMs, &found);
  CHECK(found.hits == 0 && found.lease == NULL && found.miss == KVF_MISS_NO_AGENT);
  uint8_t done[kBlocks];
  CHECK(kvf_put_blocks(client, chain, 0, content_spans, kBlocks, kLane, kBudgetMs, done) == 0);
  CHECK(done[0] == KVF_PUT_DROPPED && done[kBlocks - 1] == KVF_PUT_DROPPED);
  CHECK(kvf_read(client, NULL, chain, 0, buffer_spans, kBlocks, kLane, kBudgetMs, done) == 0);
  CHECK(kvf_delete(client, chain, 0, kBlocks, kLane, kBudgetMs) == 0);
  kvf_counters counters;
  kvf_client_counters(client, &counters);
  CHECK(counters.lookups == kBlocks && counters.gets == kBlocks && counters.puts == kBlocks);
  CHECK(counters.missed_no_agent == 2 * kBlocks && counters.puts_dropped == kBlocks);
  CHECK(counters.connects == 0 && counters.missed_deadline == 0 && counters.corrupt == 0);
  kvf_chain_destroy(chain);
  kvf_client_destroy(client);
  return 0;
}

static int check_chain(const char* endpoints) {
  const kvf_options options = options_for(endpoints);
  kvf_client* client = NULL;
  char why[256] = "";
  CHECK(kvf_client_create(&options, &client, why, sizeof why) == KVF_OK);
  if (kvf_client_wait(client, kBudgetMs, why, sizeof why) != KVF_OK) {
    printf("no agent: %s\n", why);
    return 1;
  }
  kvf_chain* chain = make_chain("k");
  CHECK(chain != NULL);
  uint8_t done[kBlocks];
  CHECK(kvf_put_blocks(client, chain, 0, content_spans, 3, kLane, kBudgetMs, done) == 3);
  CHECK(done[0] == KVF_PUT_OK && done[2] == KVF_PUT_OK);
  CHECK(kvf_put_blocks(client, chain, 2, content_spans + 2, 1, kLane, kBudgetMs, done) == 1);
  CHECK(done[0] == KVF_PUT_ALREADY_EXISTS);
  static const char too_much[4097];
  const kvf_block described[2] = {{content[1], kBytes, "dtype=fp8", 9},
                                  {content[2], kBytes, too_much, sizeof too_much}};
  const kvf_lane other = {1, 0};
  uint8_t copies[2] = {9, 9};
  CHECK(kvf_put_described(client, chain, 1, described, 2, other, kBudgetMs, done, copies) == 1);
  CHECK(done[0] == KVF_PUT_OK && done[1] == KVF_PUT_FAILED && copies[0] == 1 && copies[1] == 0);
  CHECK(kvf_put_described(client, chain, 1, described, 1, other, kBudgetMs, done, NULL) == 1);
  CHECK(done[0] == KVF_PUT_ALREADY_EXISTS);
  kvf_lookup found;
  kvf_lookup_chain(client, chain, 0, kBlocks, &kLane, 1, kBudgetMs, &found);
  CHECK(found.hits == 3 && found.local == 3 && found.peer == 0);
  CHECK(found.miss == KVF_MISS_NOT_FOUND && found.lease != NULL);
  CHECK(kvf_lease_renew(client, found.lease, kBudgetMs) == 1);
  CHECK(kvf_read(client, found.lease, chain, 0, buffer_spans, kBlocks, kLane, kBudgetMs, done) ==
        3);
  CHECK(done[0] == 1 && done[1] == 1 && done[2] == 1 && done[3] == 0);
  CHECK(memcmp(buffer, content, 3 * sizeof content[0]) == 0);
  CHECK(kvf_delete(client, chain, 1, 1, kLane, kBudgetMs) == 1);
  kvf_counters counters;
  kvf_client_counters(client, &counters);
  CHECK(counters.connects == 1 && counters.puts == 7 && counters.gets == kBlocks);
  kvf_lane many[65];
  for (int i = 0; i < 65; ++i) many[i] = kLane;
  kvf_lookup refused;
  CHECK(kvf_client_missed_refused(client) == 0);
  kvf_lookup_chain(client, chain, 0, kBlocks, many, 65, kBudgetMs, &refused);
  CHECK(refused.hits == 0 && refused.lease == NULL && refused.miss == KVF_MISS_REFUSED);
  CHECK(kvf_client_missed_refused(client) == kBlocks);
  kvf_client_destroy(client);
  kvf_lease_release(found.lease); /* may outlive the client */
  kvf_chain_destroy(chain);
  return 0;
}

static int check_single(const char* endpoints) {
  kvf_options options = options_for(endpoints);
  options.kind = KVF_SINGLE;
  kvf_client* client = NULL;
  char why[256] = "";
  CHECK(kvf_client_create(&options, &client, why, sizeof why) == KVF_OK);
  CHECK(kvf_client_wait(client, kBudgetMs, why, sizeof why) == KVF_OK);
  kvf_chain* keys = make_chain("single");
  uint8_t done[kBlocks];
  CHECK(kvf_put_blocks(client, keys, 1, content_spans + 1, 1, kLane, kBudgetMs, done) == 1);
  CHECK(kvf_put_blocks(client, keys, 3, content_spans + 3, 1, kLane, kBudgetMs, done) == 1);
  uint8_t there[kBlocks] = {9, 9, 9, 9};
  kvf_lookup found;
  kvf_lookup_single(client, keys, kBudgetMs, there, &found);
  CHECK(found.hits == 2 && found.lease != NULL);
  CHECK(there[0] == 0 && there[1] == 1 && there[2] == 0 && there[3] == 1);
  const kvf_lane lanes[2] = {kLane, {1, 0}};
  CHECK(kvf_put_blocks(client, keys, 3, content_spans + 3, 1, lanes[1], kBudgetMs, done) == 1);
  kvf_lookup in_both;
  kvf_lookup_single_lanes(client, keys, lanes, 2, kBudgetMs, there, &in_both);
  CHECK(in_both.hits == 1 && in_both.lease != NULL);
  CHECK(there[0] == 0 && there[1] == 0 && there[2] == 0 && there[3] == 1);
  kvf_lease_release(in_both.lease);
  CHECK(kvf_read(client, found.lease, keys, 0, buffer_spans, kBlocks, kLane, kBudgetMs, done) == 2);
  CHECK(memcmp(buffer[3], content[3], kBytes) == 0);
  kvf_lease_release(found.lease);
  kvf_chain_destroy(keys);
  kvf_client_destroy(client);
  return 0;
}

static int hold_lease(const char* endpoints) {
  const kvf_options options = options_for(endpoints);
  kvf_client* client = NULL;
  char line[16];
  uint8_t done[kBlocks];
  CHECK(kvf_client_create(&options, &client, NULL, 0) == KVF_OK);
  CHECK(kvf_client_wait(client, kBudgetMs, NULL, 0) == KVF_OK);
  kvf_chain* chain = make_chain("held");
  CHECK(kvf_put_blocks(client, chain, 0, content_spans, kBlocks, kLane, kBudgetMs, done) ==
        kBlocks);
  kvf_lookup found;
  kvf_lookup_chain(client, chain, 0, kBlocks, NULL, 0, kBudgetMs, &found);
  CHECK(found.hits == kBlocks);
  printf("holds\n");
  fflush(stdout);
  CHECK(fgets(line, sizeof line, stdin) != NULL);
  CHECK(kvf_lease_renew(client, found.lease, kBudgetMs) == 1);
  CHECK(kvf_read(client, found.lease, chain, 0, buffer_spans, kBlocks, kLane, kBudgetMs, done) ==
        kBlocks);
  CHECK(memcmp(buffer, content, sizeof content) == 0);
  kvf_counters counters;
  kvf_client_counters(client, &counters);
  CHECK(counters.connects == 1);
  kvf_lease_release(found.lease);
  kvf_chain_destroy(chain);
  kvf_client_destroy(client);
  return 0;
}

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--hold") == 0) return hold_lease(argv[2]);
  if (argc == 3 && strcmp(argv[1], "--absent") == 0) return check_absent(argv[2]);
  if (argc != 2) return 2;
  if (check_refusals() != 0) return 1;
  if (check_chain(argv[1]) != 0) return 1;
  return check_single(argv[1]);
}
