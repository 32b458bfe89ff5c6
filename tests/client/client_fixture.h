#pragma once

// ClientTest: scripted agents in a temporary directory, and clients of them.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "common/check.h"
#include "common/checksum.h"
#include "common/mutex.h"
#include "tests/fakes/scripted_agent.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/test_seed.h"

namespace kvfabric {

class ClientTest : public ::testing::Test {
 protected:
  using Ms = std::chrono::milliseconds;
  static Ms Scaled(int ms) { return std::chrono::duration_cast<Ms>(Ms(ms) * TimeScale()); }
  // For answers that come; a test that waits this long has failed.
  static Ms Long() { return Scaled(10'000); }

  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }
  ScriptedAgent::Options AgentOptions(const std::string& name = "a.sock") const {
    ScriptedAgent::Options options;
    options.socket_path = path(name);
    options.tcp = true;
    return options;
  }

  static ClientOptions OptionsFor(std::vector<std::string> endpoints) {
    ClientOptions options;
    options.endpoints = std::move(endpoints);
    options.token = "token";
    options.pool = "default/pool";
    options.fingerprint = "model=m\n";
    options.staging_bytes = std::uint64_t{4} << 20U;
    options.connect_timeout = Scaled(200);
    return options;
  }
  static std::unique_ptr<Client> MustCreate(ClientOptions options) {
    auto client = Client::Create(std::move(options));
    KVF_CHECK(client.ok(), "cannot make a client");
    return std::move(*client);
  }
  static std::unique_ptr<Client> Connected(std::vector<std::string> endpoints) {
    auto client = MustCreate(OptionsFor(std::move(endpoints)));
    const Status status = client->WaitConnected(Long());
    EXPECT_TRUE(status.ok()) << status.ToString();
    return client;
  }

  static Chain Keys(std::size_t count, const std::string& prefix = "key-") {
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(prefix + std::to_string(i));
    auto chain = Chain::Create(std::move(keys));
    KVF_CHECK(chain.ok(), "bad keys");
    return *std::move(chain);
  }
  // Bytes that tell what they are.
  static std::string Content(std::size_t size, std::uint64_t of) {
    std::string bytes(size, '\0');
    std::uint64_t x = of * 0x9E3779B97F4A7C15U + 1;
    for (char& byte : bytes) {
      x = x * 6364136223846793005U + 1442695040888963407U;
      byte = static_cast<char>(x >> 56U);
    }
    return bytes;
  }
  static std::vector<PutBlock> Blocks(const std::vector<std::string>& contents) {
    std::vector<PutBlock> blocks;
    for (const std::string& content : contents) blocks.push_back({AsBytes(content), {}});
    return blocks;
  }
  static std::vector<std::string> Contents(std::size_t count, std::size_t size,
                                           std::uint64_t first = 0) {
    std::vector<std::string> contents;
    for (std::size_t i = 0; i < count; ++i) contents.push_back(Content(size, first + i));
    return contents;
  }
  static PutOutcome PutAll(Client& client, const Chain& chain,
                           const std::vector<std::string>& contents) {
    return client.Put(chain, 0, Blocks(contents), {}, Long());
  }
  // What the client reads of `count` blocks of `size` bytes; nullopt = miss.
  static std::vector<std::optional<std::string>> ReadAll(Client& client, const Lease& lease,
                                                         const Chain& chain, std::size_t size) {
    std::vector<std::string> buffers(chain.size(), std::string(size, '\0'));
    std::vector<MutableByteSpan> into;
    for (std::string& buffer : buffers) {
      into.emplace_back(reinterpret_cast<std::byte*>(buffer.data()), buffer.size());
    }
    const std::vector<bool> read = client.Read(lease, chain, 0, into, {}, Long());
    std::vector<std::optional<std::string>> out(chain.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (read[i]) out[i] = buffers[i];
    }
    return out;
  }
  static LookupOutcome LookupAll(Client& client, const Chain& chain) {
    return client.Lookup(chain, 0, chain.size(), {}, Long());
  }

  // Lets other threads run for up to `time`.
  static void Rest(Ms time) {
    Mutex mu;
    CondVar never;
    const auto until = std::chrono::steady_clock::now() + time;
    MutexLock lock(mu);
    while (never.WaitUntil(mu, until)) {
    }
  }
  // Waits for what another thread is about to make true.
  static bool Eventually(const std::function<bool()>& condition, Ms limit = Long()) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      Rest(Ms(1));
    }
    return true;
  }
  static Ms Took(const std::function<void()>& task) {
    const auto began = std::chrono::steady_clock::now();
    task();
    return std::chrono::duration_cast<Ms>(std::chrono::steady_clock::now() - began);
  }

  TempDir directory_;
};

}  // namespace kvfabric
