#pragma once

// LocalOperator: the whole operator of a local fabric in one object: embedded API, its HTTPS
// server, and the OperatorRuntime over it. main.cc wraps it in a process.
//
// State directory: api/ (flock), kubeconfig and operator.json (0600, written when all of it runs;
// operator.json goes away on a clean stop). The destructor stops in reverse order and releases the
// Lease last, so that nothing writes after it.

#include <chrono>
#include <cstdint>
#include <memory>

#include "common/clock.h"
#include "common/status.h"
#include "operator/operator_flags.h"

namespace kvfabric {

class LocalOperator {
 public:
  static Result<std::unique_ptr<LocalOperator>> Start(const OperatorFlags& flags);
  ~LocalOperator();
  LocalOperator(const LocalOperator&) = delete;  // owns threads and a directory
  LocalOperator& operator=(const LocalOperator&) = delete;

  std::uint16_t api_port() const;
  std::uint16_t http_port() const;

 private:
  struct Parts;
  explicit LocalOperator(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvfabric
