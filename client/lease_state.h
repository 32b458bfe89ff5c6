#pragma once

// Lease::State: the leases that one look-up took, one for each request it was made of. Released
// together by the last holder; any thread.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/session.h"

namespace kvfabric {

struct Lease::State {
  // Keys [first, first + count) are held by lease `id`.
  struct Part {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::uint64_t id = 0;
  };

  explicit State(std::shared_ptr<Session> on) : session(std::move(on)) {}
  ~State() {
    std::vector<std::uint64_t> ids;
    ids.reserve(parts.size());
    for (const Part& part : parts) ids.push_back(part.id);
    session->ReleaseLeases(std::move(ids));
  }
  State(const State&) = delete;  // would release twice
  State& operator=(const State&) = delete;

  const std::shared_ptr<Session> session;
  std::vector<Part> parts;  // by first; set before it is shared
};

}  // namespace kvfabric
