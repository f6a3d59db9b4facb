// SPDX-License-Identifier: Apache-2.0
// transfer/object_stream.h: the kinds of messages on streams of the object protocol, and putting
// together what came in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "transfer/buffer.h"
#include "transfer/objects.h"
#include "transfer/payload.h"
#include "transfer/wire.h"

namespace kvik::transfer {

// Message::kind; `tag` is the index of the object in a Get.
enum class ObjectMessage : uint8_t {
  kAnswer = 1,  // lookup: found objects; put: u8 PutAnswer; remove: u64; call
  kBegin = 2,   // get: an ObjectInfo
  kBytes = 3,   // get, put
  kEnd = 4,     // get: u64 bytes of the object, ObjectTimes; put: the bytes, to commit
  kFailed = 5,  // get: a reason
  kDone = 6,    // put: it is stored
};

[[nodiscard]] inline Message MakeMessage(ObjectMessage kind, std::vector<std::byte> payload = {}) {
  Message message;
  message.kind = static_cast<uint8_t>(kind);
  message.bytes = SharedBytes::Own(std::move(payload));
  return message;
}

template <typename T>
[[nodiscard]] std::vector<std::byte> NumberPayload(T value) {
  std::vector<std::byte> payload;
  PayloadWriter(payload).Put(value);
  return payload;
}

// Messages whose parts must be seen together. Thread-compatible.
class MessageAssembler {
 public:
  explicit MessageAssembler(size_t max_bytes) : max_bytes_(max_bytes) {}

  // The whole message, once its last part is there. A message of one part is not copied.
  // kCorrupt: more than the limit.
  Result<std::optional<SharedBytes>> Add(Message message) {
    if (parts_.empty() && !message.more) {
      return std::optional<SharedBytes>(std::move(message.bytes));
    }
    const auto bytes = message.bytes.span();
    if (bytes.size() > max_bytes_ - parts_.size()) {
      return Err(ErrorCode::kCorrupt, "a message of more than %zu bytes", max_bytes_);
    }
    parts_.insert(parts_.end(), bytes.begin(), bytes.end());
    if (message.more) {
      return std::optional<SharedBytes>();
    }
    return std::optional<SharedBytes>(SharedBytes::Own(std::exchange(parts_, {})));
  }

 private:
  const size_t max_bytes_;
  std::vector<std::byte> parts_;
};

inline constexpr size_t kMaxAnswerBytes = size_t{64} << 20;

}  // namespace kvik::transfer
