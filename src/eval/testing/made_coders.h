// SPDX-License-Identifier: Apache-2.0
// eval/testing/made_coders.h: coders whose effect is known, for tests of what measures them.
#pragma once

#include <atomic>
#include <string>

#include "eval/kv_coder.h"

namespace kvik::eval::testing {

// Gives back what it got, for 3 bytes a value.
class IdentityCoder final : public KvCoder {
 public:
  [[nodiscard]] std::string name() const override { return "identity"; }
  [[nodiscard]] std::string identity() const override { return "identity"; }
  Result<CodedSize> RoundTrip(const CodedRows& rows, int /*thread*/) override {
    ++calls;
    return CodedSize{.bytes = 3 * (rows.keys->size() + rows.values->size()), .dropped = {}};
  }
  std::atomic<int> calls = 0;
};

// Keeps `bits` of the mantissa.
class RoundingCoder final : public KvCoder {
 public:
  explicit RoundingCoder(int bits) : bits_(bits) {}
  static Bf16 Round(Bf16 value, int bits) {
    const auto unit = static_cast<uint16_t>(1U << (7 - bits));
    return Bf16{static_cast<uint16_t>((value.bits + unit / 2U) & ~(unit - 1U))};
  }
  [[nodiscard]] std::string name() const override { return "round" + std::to_string(bits_); }
  [[nodiscard]] std::string identity() const override { return name(); }
  Result<CodedSize> RoundTrip(const CodedRows& rows, int /*thread*/) override {
    for (std::vector<Bf16>* part : {rows.keys, rows.values}) {
      for (Bf16& value : *part) {
        value = Round(value, bits_);
      }
    }
    return CodedSize{.bytes = rows.keys->size(), .dropped = {}};
  }

 private:
  int bits_;
};

// Drops positions [3, 20) of every layer's last head; what is left in their rows is `garbage`.
class DroppingCoder final : public KvCoder {
 public:
  DroppingCoder(int32_t head_dim, int32_t kv_heads, uint16_t garbage)
      : head_dim_(head_dim), kv_heads_(kv_heads), garbage_(garbage) {}
  [[nodiscard]] std::string name() const override { return "dropping"; }
  [[nodiscard]] std::string identity() const override { return "dropping"; }
  Result<CodedSize> RoundTrip(const CodedRows& rows, int /*thread*/) override {
    CodedSize size{.bytes = 1, .dropped = {}};
    const int32_t head = kv_heads_ - 1;
    for (int32_t t = 0; t < rows.num_tokens; ++t) {
      const int32_t pos = rows.first_pos + t;
      if (pos >= 3 && pos < 20) {
        size.dropped.push_back({head, pos, pos + 1});
        for (int32_t d = 0; d < head_dim_; ++d) {
          const auto at = static_cast<size_t>((head * rows.num_tokens + t) * head_dim_ + d);
          (*rows.keys)[at].bits = (*rows.values)[at].bits = garbage_;
        }
      }
    }
    return size;
  }

 private:
  int32_t head_dim_;
  int32_t kv_heads_;
  uint16_t garbage_;
};

class FailingCoder final : public KvCoder {
 public:
  [[nodiscard]] std::string name() const override { return "failing"; }
  [[nodiscard]] std::string identity() const override { return "failing"; }
  Result<CodedSize> RoundTrip(const CodedRows& rows, int /*thread*/) override {
    if (rows.layer == 1) {
      return Err(ErrorCode::kUnsupported, "not this layer");
    }
    return CodedSize();
  }
};

// Gives back what it got, but says of no positions at all that they are dropped.
class DroppingNothingCoder final : public KvCoder {
 public:
  [[nodiscard]] std::string name() const override { return "dropping nothing"; }
  [[nodiscard]] std::string identity() const override { return name(); }
  Result<CodedSize> RoundTrip(const CodedRows& rows, int /*thread*/) override {
    return CodedSize{.bytes = 3 * (rows.keys->size() + rows.values->size()),
                     .dropped = {{.kv_head = 0, .first_pos = 2, .end_pos = 2}}};
  }
};

// Takes the prompt, and nothing after it.
class PromptOnlyCoder final : public KvCoder {
 public:
  [[nodiscard]] std::string name() const override { return "prompt only"; }
  [[nodiscard]] std::string identity() const override { return name(); }
  Result<CodedSize> RoundTrip(const CodedRows& rows, int /*thread*/) override {
    if (rows.first_pos > 0) {
      return Err(ErrorCode::kUnsupported, "not behind the prompt");
    }
    return CodedSize{.bytes = 1, .dropped = {}};
  }
};

}  // namespace kvik::eval::testing
