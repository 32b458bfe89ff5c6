#pragma once

// Texts of certificates and keys, checked before they are used, so that a half-written file never
// takes the place of a good one. Pure.

#include <string>
#include <string_view>

#include "common/status.h"

namespace kvfabric::kube {

// INVALID_ARGUMENT for what is not base64; white space around and in it is skipped.
Result<std::string> DecodeBase64(std::string_view text);
std::string EncodeBase64(std::string_view text);
// At least one certificate, and all of them readable.
Status CheckCertificates(const std::string& pem);
// The key belongs to the first certificate.
Status CheckKeyPair(const std::string& certificate_pem, const std::string& key_pem);

}  // namespace kvfabric::kube
