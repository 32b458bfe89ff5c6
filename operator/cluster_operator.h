#pragma once

// ClusterOperator: the operator of a Kubernetes cluster: an HttpKube, and the OperatorRuntime over
// it. Several may run; the Lease says who leads. main.cc wraps it in a process.
//
// The destructor stops in reverse order and releases the Lease last.

#include <cstdint>
#include <memory>

#include "common/status.h"
#include "operator/operator_flags.h"

namespace kvfabric {

class ClusterOperator {
 public:
  // Comes up whether the API server answers or not: an outage must not restart every operator.
  static Result<std::unique_ptr<ClusterOperator>> Start(const OperatorFlags& flags);
  ~ClusterOperator();
  ClusterOperator(const ClusterOperator&) = delete;  // owns threads
  ClusterOperator& operator=(const ClusterOperator&) = delete;

  std::uint16_t http_port() const;

 private:
  struct Parts;
  explicit ClusterOperator(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvfabric
