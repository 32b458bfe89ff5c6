#pragma once

// The CEL rules of our CRDs in C++, found by the text of the rule. Private to operator/specs.
//
// A rule is asked only about a value that is valid by the rest of its schema, with defaults filled
// in, so it may rely on required fields and types; it must not rely on optional ones.

#include <string_view>

#include "operator/kube/json.h"

namespace kvfabric {

// True: the rule holds. `old` is null at creation; rules with oldSelf are asked on updates only.
using CelRule = bool (*)(const kube::Json& self, const kube::Json* old);

// Null: no such rule here.
CelRule FindCelRule(std::string_view rule_text);

}  // namespace kvfabric
