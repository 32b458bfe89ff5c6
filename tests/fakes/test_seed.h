#pragma once

// TestSeed: the seed of a randomised test, from KVF_TEST_SEED or fresh, printed so that a failure
// can be run again.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace kvfabric {

inline std::uint64_t TestSeed() {
  std::uint64_t seed = 0;
  if (const char* text = std::getenv("KVF_TEST_SEED"); text != nullptr) {
    seed = std::strtoull(text, nullptr, 10);
  } else {
    seed = std::random_device{}();
  }
  std::printf("KVF_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// Times that tests assert are multiplied by this (1; 5 under sanitizers).
inline double TimeScale() {
  const char* text = std::getenv("KVF_TIME_SCALE");
  const double scale = text != nullptr ? std::strtod(text, nullptr) : 1.0;
  return scale > 0 ? scale : 1.0;
}

}  // namespace kvfabric
