// SPDX-License-Identifier: Apache-2.0
#include "codec/rans_stream.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvik::codec {
namespace {

constexpr uint32_t kState8Bits = 20;

template <typename Segment>
size_t TotalSymbols(std::span<const Segment> segments) {
  size_t n = 0;
  for (const Segment& segment : segments) {
    n += segment.n;
  }
  return n;
}

void CheckLanes(int lanes) {
  KVIK_CHECK(lanes >= 1 && lanes <= kMaxLanes && (lanes & (lanes - 1)) == 0, "%d lanes", lanes);
}

// Room behind what is there; the caller shrinks to what it used.
uint8_t* Grow(std::vector<std::byte>& out, size_t bytes) {
  const size_t at = out.size();
  out.resize(at + bytes);
  return reinterpret_cast<uint8_t*>(out.data()) + at;
}

Error NotTheEnd() { return Err(ErrorCode::kCorrupt, "the symbols do not end where they began"); }

}  // namespace

size_t Rans8StateBytes(int lanes) { return (static_cast<size_t>(lanes) * kState8Bits + 7) / 8; }
size_t Rans12StateBytes(int lanes) { return static_cast<size_t>(lanes) * 4; }

void EncodeRans8(Isa isa, std::span<const Rans8Source> sources, int lanes,
                 std::vector<std::byte>& out) {
  CheckLanes(lanes);
  uint32_t states[kMaxLanes];
  std::fill_n(states, lanes, kRans8Low);
  const size_t most = TotalSymbols(sources) + kRansSlackBytes + Rans8StateBytes(kMaxLanes);
  uint8_t* const begin = Grow(out, most);
  uint8_t* end =
      CoderKernelsOf(isa).rans8_encode(sources.data(), sources.size(), lanes, states, begin);
  uint64_t bits = 0;
  uint32_t held = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    bits |= uint64_t{states[lane]} << held;
    for (held += kState8Bits; held >= 8; held -= 8, bits >>= 8) {
      *end++ = static_cast<uint8_t>(bits);
    }
  }
  if (held != 0) {
    *end++ = static_cast<uint8_t>(bits);
  }
  out.resize(out.size() - most + static_cast<size_t>(end - begin));
}

void EncodeRans12(Isa isa, std::span<const Rans12Source> sources, int lanes,
                  std::vector<std::byte>& out) {
  CheckLanes(lanes);
  uint32_t states[kMaxLanes];
  std::fill_n(states, lanes, kRans12Low);
  const size_t most = 2 * TotalSymbols(sources) + kRansSlackBytes + Rans12StateBytes(kMaxLanes);
  uint8_t* const begin = Grow(out, most);
  uint8_t* end =
      CoderKernelsOf(isa).rans12_encode(sources.data(), sources.size(), lanes, states, begin);
  std::memcpy(end, states, Rans12StateBytes(lanes));
  end += Rans12StateBytes(lanes);
  out.resize(out.size() - most + static_cast<size_t>(end - begin));
}

Result<void> DecodeRans8(Isa isa, std::span<const Rans8Target> targets, int lanes,
                         std::span<const std::byte> in) {
  CheckLanes(lanes);
  const size_t state_bytes = Rans8StateBytes(lanes);
  if (in.size() < state_bytes) {
    return Err(ErrorCode::kCorrupt, "%zu bytes hold no %d states", in.size(), lanes);
  }
  const auto* begin = reinterpret_cast<const uint8_t*>(in.data());
  const uint8_t* const end = begin + (in.size() - state_bytes);
  uint32_t states[kMaxLanes];
  uint64_t bits = 0;
  uint32_t held = 0;
  const uint8_t* stored = end;
  for (int lane = 0; lane < lanes; ++lane) {
    for (; held < kState8Bits; held += 8) {
      bits |= uint64_t{*stored++} << held;
    }
    states[lane] = static_cast<uint32_t>(bits) & (kRans8High - 1);
    bits >>= kState8Bits;
    held -= kState8Bits;
    if (states[lane] < kRans8Low) {
      return Err(ErrorCode::kCorrupt, "a state is out of range");
    }
  }
  const uint8_t* p =
      CoderKernelsOf(isa).rans8_decode(targets.data(), targets.size(), lanes, states, begin, end);
  if (p != begin || bits != 0 ||
      !std::all_of(states, states + lanes, [](uint32_t x) { return x == kRans8Low; })) {
    return NotTheEnd();
  }
  return {};
}

Result<void> DecodeRans12(Isa isa, std::span<const Rans12Target> targets, int lanes,
                          std::span<const std::byte> in) {
  CheckLanes(lanes);
  const size_t state_bytes = Rans12StateBytes(lanes);
  if (in.size() < state_bytes) {
    return Err(ErrorCode::kCorrupt, "%zu bytes hold no %d states", in.size(), lanes);
  }
  const auto* begin = reinterpret_cast<const uint8_t*>(in.data());
  const uint8_t* const end = begin + (in.size() - state_bytes);
  uint32_t states[kMaxLanes];
  std::memcpy(states, end, state_bytes);
  const uint8_t* p =
      CoderKernelsOf(isa).rans12_decode(targets.data(), targets.size(), lanes, states, begin, end);
  if (p != begin ||
      !std::all_of(states, states + lanes, [](uint32_t x) { return x == kRans12Low; })) {
    return NotTheEnd();
  }
  return {};
}

}  // namespace kvik::codec
