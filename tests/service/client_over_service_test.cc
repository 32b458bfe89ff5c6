// The client that engines load, over the service that agents run: both as they are.

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "client/client.h"
#include "tests/service/local_service_fixture.h"

namespace kvfabric {
namespace {

using std::chrono::milliseconds;

constexpr Client::Budget kLong{10'000};

std::string Content(const std::string& key, std::size_t bytes) {
  std::mt19937_64 random(std::hash<std::string>{}(key));
  std::string content(bytes, '\0');
  for (char& c : content) c = static_cast<char>(random());
  return content;
}

class ClientOverServiceTest : public LocalServiceTest {
 protected:
  std::unique_ptr<Client> NewClient(const std::string& endpoint, const char* token = kBlue) {
    ClientOptions options;
    options.endpoints = {endpoint};
    options.token = token;
    options.pool = FakeFabric::kPool;
    options.fingerprint = "model=m\n";
    options.staging_bytes = 8U << 20U;
    auto client = Client::Create(std::move(options));
    KVF_CHECK(client.ok(), "bad options");
    const Status connected = (*client)->WaitConnected(kLong);
    EXPECT_TRUE(connected.ok()) << connected.ToString();
    return std::move(*client);
  }
  std::string UnixEndpoint() const { return "unix:" + path(); }

  static Chain ChainOf(const std::string& name, std::uint32_t count) {
    std::vector<std::string> keys;
    for (std::uint32_t i = 0; i < count; ++i) keys.push_back(name + "/" + std::to_string(i));
    return *Chain::Create(std::move(keys));
  }
  static std::vector<PutResult> PutAll(Client& client, const Chain& chain, std::size_t bytes) {
    std::vector<std::string> contents;
    std::vector<PutBlock> blocks;
    for (std::uint32_t i = 0; i < chain.size(); ++i) {
      contents.push_back(Content(chain.key(i), bytes));
    }
    for (const std::string& content : contents) {
      blocks.push_back({AsBytes(std::string_view(content)), "meta"});
    }
    return client.Put(chain, 0, blocks, Lane{}, kLong).status;
  }
  // Looks up, reads in place and copies out; the number of blocks that are exactly what was put.
  // Anything else that is not a miss fails the test.
  static std::uint32_t ReadAll(Client& client, const Chain& chain, std::size_t bytes) {
    const LookupOutcome found = client.Lookup(chain, 0, chain.size(), {}, kLong);
    const GetOutcome got = client.Get(found.lease, chain, 0, found.hits, Lane{}, kLong);
    std::uint32_t right = 0;
    for (std::uint32_t i = 0; i < found.hits; ++i) {
      if (!got.blocks[i] || !got.blocks[i]->Verify()) continue;
      const std::string expected = Content(chain.key(i), bytes);
      EXPECT_EQ(AsText(got.blocks[i]->bytes()), expected) << chain.key(i);
      EXPECT_EQ(got.blocks[i]->metadata(), "meta");
      std::string copy(bytes, '\0');
      const MutableByteSpan into(reinterpret_cast<std::byte*>(copy.data()), copy.size());
      if (client.Read(found.lease, chain, i, {&into, 1}, Lane{}, kLong).at(0)) {
        EXPECT_EQ(copy, expected);
        ++right;
      }
    }
    return right;
  }
};

TEST_F(ClientOverServiceTest, GivesBackWhatWasPutOverBothTransports) {
  Start();
  ListenOnTcp();
  const auto local = NewClient(UnixEndpoint());
  const auto remote = NewClient(tcp_->address().ToString());
  const Chain one = ChainOf("one", 20);
  const Chain two = ChainOf("two", 20);
  EXPECT_EQ(PutAll(*local, one, 300'001), std::vector<PutResult>(20, PutResult::kOk));
  EXPECT_EQ(PutAll(*remote, two, 300'001), std::vector<PutResult>(20, PutResult::kOk));
  EXPECT_EQ(PutAll(*remote, one, 300'001), std::vector<PutResult>(20, PutResult::kAlreadyExists));
  for (Client* client : {local.get(), remote.get()}) {
    EXPECT_EQ(ReadAll(*client, one, 300'001), 20U);
    EXPECT_EQ(ReadAll(*client, two, 300'001), 20U);
    EXPECT_EQ(client->boot_epoch(), FakeFabric::kBootEpoch);
    EXPECT_EQ(client->map_epoch(), FakeFabric::kMapEpoch);
    EXPECT_EQ(client->counters().corrupt, 0U);
  }
  EXPECT_EQ(local->Delete(one, 10, 10, Lane{}, kLong), 10U);
  EXPECT_EQ(remote->Lookup(one, 0, 20, {}, kLong).hits, 10U);
  const auto stat = local->Stat(kLong);
  ASSERT_TRUE(stat.ok()) << stat.status().ToString();
  EXPECT_EQ(stat->at(0).blocks, 30U);
  EXPECT_TRUE(Eventually([&] { return fabric_->leases() == 0; })) << "all were given back";
}

TEST_F(ClientOverServiceTest, ServesManyThreadsOfManyClientsAtOnce) {
  Start({}, 64U << 20U);
  ListenOnTcp();
  std::vector<std::unique_ptr<Client>> clients;
  clients.push_back(NewClient(UnixEndpoint()));
  clients.push_back(NewClient(UnixEndpoint()));
  clients.push_back(NewClient(tcp_->address().ToString()));
  std::atomic<std::uint32_t> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Client& client = *clients[static_cast<std::size_t>(t) % clients.size()];
      for (int round = 0; round < 10; ++round) {
        const Chain own = ChainOf("t" + std::to_string(t) + "r" + std::to_string(round), 4);
        const Chain shared = ChainOf("shared" + std::to_string(round), 4);
        PutAll(client, own, 40'000);
        PutAll(client, shared, 40'000);
        right += ReadAll(client, own, 40'000) + ReadAll(client, shared, 40'000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 6U * 10U * 8U);
}

TEST_F(ClientOverServiceTest, MissesWhileTheAgentIsGoneAndReturnsWhenItIsBack) {
  Start();
  const auto client = NewClient(UnixEndpoint());
  const Chain chain = ChainOf("k", 3);
  EXPECT_EQ(PutAll(*client, chain, 10'000), std::vector<PutResult>(3, PutResult::kOk));
  const LookupOutcome before = client->Lookup(chain, 0, 3, {}, kLong);
  ASSERT_EQ(before.hits, 3U);
  for (int round = 0; round < 3; ++round) {
    service_.reset();
    ASSERT_TRUE(Eventually([&] { return client->boot_epoch() == 0; }));
    EXPECT_EQ(client->Lookup(chain, 0, 3, {}, kLong).miss, Miss::kNoAgent);
    EXPECT_EQ(PutAll(*client, chain, 10'000), std::vector<PutResult>(3, PutResult::kDropped));
    LocalService::Options options;
    options.socket_path = path();
    service_ = MustStart(options);
    const auto began = std::chrono::steady_clock::now();
    ASSERT_TRUE(client->WaitConnected(kLong).ok());
    EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(2'000) * TimeScale());
    EXPECT_EQ(ReadAll(*client, chain, 10'000), 3U);
  }
  // The first lease went with its session: reads under it are misses, nothing worse.
  const GetOutcome void_lease = client->Get(before.lease, chain, 0, 3, Lane{}, kLong);
  for (const auto& block : void_lease.blocks) EXPECT_FALSE(block.has_value());
}

// Two memfds, all blue's; red needs one. Blue's client unmaps when asked, and red's put succeeds
// without anybody being thrown out.
TEST_F(ClientOverServiceTest, UnmapsAMemfdThatCloses) {
  Start({}, 2U << 20U);
  const auto blue = NewClient(UnixEndpoint());
  const auto red = NewClient(UnixEndpoint(), kRed);
  const Chain blues = ChainOf("blue", 2);
  EXPECT_EQ(PutAll(*blue, blues, 600'000), std::vector<PutResult>(2, PutResult::kOk));
  EXPECT_EQ(ReadAll(*blue, blues, 600'000), 2U);
  EXPECT_EQ(blue->Delete(blues, 0, 2, Lane{}, kLong), 2U);
  const Chain reds = ChainOf("red", 1);
  EXPECT_TRUE(Eventually([&] { return PutAll(*red, reds, 600'000)[0] == PutResult::kOk; }));
  EXPECT_EQ(ReadAll(*red, reds, 600'000), 1U);
  EXPECT_EQ(blue->counters().connects, 1U) << "it was not disconnected as a laggard";
  EXPECT_EQ(fabric_->open_sessions(), 2U);
  EXPECT_EQ(ReadAll(*blue, reds, 600'000), 0U) << "nor may it see red's block of the same name";
}

TEST_F(ClientOverServiceTest, EndsItsSessionWhenItIsDestroyed) {
  Start();
  auto client = NewClient(UnixEndpoint());
  const Chain chain = ChainOf("k", 1);
  PutAll(*client, chain, 100);
  LookupOutcome found = client->Lookup(chain, 0, 1, {}, kLong);
  ASSERT_EQ(found.hits, 1U);
  EXPECT_EQ(fabric_->leases(), 1U);
  client.reset();
  EXPECT_TRUE(Eventually([&] { return fabric_->open_sessions() == 0; }));
  EXPECT_EQ(fabric_->leases(), 0U);
}

}  // namespace
}  // namespace kvfabric
