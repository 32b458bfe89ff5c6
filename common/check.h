#pragma once

// KVF_CHECK ends the process when an invariant of our own is broken and bytes could be wrong;
// KVF_DCHECK does so in builds with KVF_DCHECKS only. Never used on input: what a peer, client,
// disk or user sends gets a Status.

namespace kvfabric::internal {
[[noreturn]] void CheckFailed(const char* condition, const char* reason, const char* file,
                              int line);
}  // namespace kvfabric::internal

#define KVF_CHECK(condition, reason)                                             \
  do {                                                                           \
    if (!(condition)) [[unlikely]]                                               \
      ::kvfabric::internal::CheckFailed(#condition, reason, __FILE__, __LINE__); \
  } while (false)

#ifdef KVF_DCHECKS
#define KVF_DCHECK(condition, reason) KVF_CHECK(condition, reason)
#else
#define KVF_DCHECK(condition, reason) \
  do {                                \
    if (false) {                      \
      static_cast<void>(condition);   \
    }                                 \
  } while (false)
#endif
