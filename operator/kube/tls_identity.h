#pragma once

// A self-signed certificate for the embedded API on loopback. kubectl sends a bearer token over
// TLS only, so the API speaks HTTPS; the kubeconfig beside it carries the certificate, and nobody
// else trusts it. Made fresh at each start, never stored with its key.

#include <string>

#include "common/status.h"

namespace kvfabric::kube {

struct TlsIdentity {
  std::string certificate_pem;
  std::string key_pem;
};

// ECDSA P-256, subject alternative names 127.0.0.1 and localhost.
Result<TlsIdentity> MakeLoopbackIdentity();

}  // namespace kvfabric::kube
