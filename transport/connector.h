#pragma once

// Connect: opens a stream without blocking the loop.

#include <chrono>
#include <functional>
#include <memory>

#include "common/status.h"
#include "transport/event_loop.h"
#include "transport/socket_address.h"
#include "transport/stream.h"

namespace kvfabric {

// As Connect, with the bare socket: for whoever speaks TLS over it.
void ConnectSocket(EventLoop& loop, const SocketAddress& to, std::chrono::milliseconds timeout,
                   std::function<void(Result<UniqueFd>)> done);

// On the loop. `done` runs exactly once, on the loop, never inside this call: with a plain stream,
// or DEADLINE_EXCEEDED after `timeout`, UNAVAILABLE when refused, CANCELLED when the loop stops.
// `accept_descriptors`: a Unix socket whose other end sends some.
void Connect(EventLoop& loop, const SocketAddress& to, std::chrono::milliseconds timeout,
             bool accept_descriptors, std::function<void(Result<std::unique_ptr<Stream>>)> done);

}  // namespace kvfabric
