#include "common/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvfabric::internal {

void CheckFailed(const char* condition, const char* reason, const char* file, int line) {
  // Not the logger: it may hold the lock of the thread that failed.
  std::fprintf(stderr, "check failed: %s (%s) at %s:%d\n", reason, condition, file, line);
  std::abort();
}

}  // namespace kvfabric::internal
