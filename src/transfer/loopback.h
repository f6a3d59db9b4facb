// SPDX-License-Identifier: Apache-2.0
// transfer/loopback.h: a connection within the process.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "transfer/byte_channel.h"
#include "transfer/endpoint.h"

namespace kvik::transfer {

// Two ends of one pipe that holds at most `capacity_bytes` in each direction. Each end has one
// owner; the two may be different threads.
[[nodiscard]] std::pair<std::unique_ptr<ByteChannel>, std::unique_ptr<ByteChannel>>
MakeLoopbackPair(size_t capacity_bytes = size_t{1} << 20);

// As Endpoint::ConnectAsync, to an endpoint of the same process.
void ConnectLoopback(Endpoint& from, Endpoint& to, int64_t deadline_us, Endpoint::Connected done);

}  // namespace kvik::transfer
