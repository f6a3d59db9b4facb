// SPDX-License-Identifier: Apache-2.0
// connector/source.h: where objects come from and go to, whatever it is: the store in this process,
// a pool node, another engine's live cache.
//
// Nothing here waits: answers come by callback, from any thread, also from within the call, exactly
// once and by the deadline. Callbacks must not wait either. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "control/goodput.h"
#include "control/speeds.h"
#include "kv/object.h"
#include "transfer/object_client.h"
#include "transfer/objects.h"

namespace kvik::connector {

class ObjectSource {
 public:
  virtual ~ObjectSource() = default;

  // For reports and logs: "store", "pool 10.0.0.7:4711".
  [[nodiscard]] virtual std::string name() const = 0;

  // Objects of live KV have the profile hash kAnyProfile: name the one you want.
  using Found = std::function<void(Result<std::vector<transfer::FoundObject>>)>;
  virtual void Lookup(const transfer::LookupRequest& request, int64_t deadline_us, Found done) = 0;

  // One object; of live KV: encoded of `num_blocks` blocks, the last one the key's. The sink hears
  // index 0 only. The handle ends it early; it may be null when it is over already.
  virtual std::shared_ptr<transfer::CallHandle> Get(const kv::ObjectKey& key, int32_t num_blocks,
                                                    int64_t deadline_us,
                                                    std::shared_ptr<transfer::GetSink> sink,
                                                    uint8_t priority) = 0;

  // The object is damaged: nobody should get it again. Best effort.
  virtual void Discard(const kv::ObjectKey& key) = 0;

  // Has so many bytes sent for the sake of measuring the way they take, behind everything else that
  // is sent. Sources without a network do nothing.
  using Probed = std::function<void(const control::Goodput::Probe& probe)>;
  virtual void Probe(uint64_t /*bytes*/, int64_t /*deadline_us*/, const Probed& /*done*/) {}

  // How fast the other side encodes; nullopt: not known yet, or nothing is encoded there.
  [[nodiscard]] virtual std::optional<control::MachineSpeeds> sender_speeds() const = 0;

  // Of the connection to the other side; nullopt: there is none, it is in this process.
  [[nodiscard]] virtual std::optional<transfer::PeerStats> link() const { return std::nullopt; }
};

// Of a live block: its KV is there and can be had in any encoding.
inline constexpr uint64_t kAnyProfile = 0;

// An object to store. Bytes are shared, not copied.
struct NewObject {
  kv::ObjectInfo info;
  // As its head says: of all its blocks, in order, and of the block before the first one.
  std::vector<kv::BlockHash> blocks;
  kv::BlockHash parent;
  transfer::SharedBytes bytes;
};

class ObjectTarget {
 public:
  virtual ~ObjectTarget() = default;
  [[nodiscard]] virtual std::string name() const = 0;

  // Success: it is there, and readable for others. kExhausted: no room.
  using Stored = std::function<void(Result<void>)>;
  virtual void Put(NewObject object, int64_t deadline_us, Stored done) = 0;
};

}  // namespace kvik::connector
