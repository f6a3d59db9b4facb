// SPDX-License-Identifier: Apache-2.0
// control/predictor.h: how long moving KV takes, from the speeds of its stages.
//
// Encoding, wire and decoding either follow each other, as the published model has it, or run at
// the same time on different frames, as kvik's streams do:
//
//   serial     fixed + encode + wire + decode
//   pipelined  fixed + max(encode, wire, decode) + fill
//
// With F equal frames the fill is what the other stages take for one frame. When KV is sent while
// the prefill still computes what follows, producing it is a stage too; what counts is the time
// after it: the prefill itself is spent whatever the profile. Produced frame by frame it is a stage
// like the others; an engine that computes in P steps has so much of it at the end of each, and
// then
//
//   fixed + max(slowest / P, slowest - produce (P - 1) / P) + fill
//
// With x = 1 / bandwidth everything is linear in x, up to one kink where the wire becomes the
// slowest stage. All in microseconds and bytes; pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace kvik::control {

// What is on the way of a transfer.
enum class Form : uint8_t {
  kHandOver,  // encode, wire, decode: from a prefill node to a decode node
  kPoolRead,  // wire, decode: who stored it paid for the encoding
};

enum class Overlap : uint8_t { kSerial, kPipelined };

// Times of the stages of one transfer, each as if it were alone.
struct StageTimes {
  double fixed_us = 0;
  double produce_us = 0;     // of a prefill that the transfer streams behind; 0: it does not
  double produce_parts = 0;  // equal ones that appear at once; 0: frame by frame
  double encode_us = 0;
  double wire_us = 0;
  double decode_us = 0;
};

// Overlapping stages, of which the slowest takes `slowest_us`; with produce_parts that is one of
// the stages behind the prefill.
[[nodiscard]] inline double OverlappedUs(const StageTimes& t, double slowest_us, double frames) {
  const double behind_us = t.encode_us + t.wire_us + t.decode_us;
  if (t.produce_parts > 0) {
    const double fill_us = (behind_us - slowest_us) / frames;
    const double before_us = t.produce_us * (1 - 1 / t.produce_parts);
    return t.fixed_us + std::max(slowest_us / t.produce_parts, slowest_us - before_us) + fill_us;
  }
  const double sum_us = t.produce_us + behind_us;
  return t.fixed_us + slowest_us - t.produce_us + (sum_us - slowest_us) / frames;
}

// Time on the path, not counting produce_us. `frames` >= 1.
[[nodiscard]] inline double PathUs(const StageTimes& t, Overlap overlap, double frames) {
  if (overlap == Overlap::kSerial) {
    return t.fixed_us + t.encode_us + t.wire_us + t.decode_us;
  }
  const double slowest = std::max(std::max(t.encode_us, t.wire_us), t.decode_us);
  return OverlappedUs(t, t.produce_parts > 0 ? slowest : std::max(slowest, t.produce_us), frames);
}

// The mean of PathUs when every stage's time is off by about `noise` of itself (standard
// deviation), each for itself. Stages that run at the same time wait for the slowest, and of two
// that take equally long one is always slower than expected: such a path takes longer than PathUs
// says, by some 0.56 noise of it. Serial: PathUs. `produce_us` counts as certain.
[[nodiscard]] double MeanPathUs(const StageTimes& t, Overlap overlap, double frames, double noise);

// What one arm costs at one length: once, for each frame, for each byte of raw KV.
struct ArmCost {
  double wire_bytes = 1;  // on the wire for a byte of KV: 1 / ratio
  double encode_fixed_us = 0;
  double decode_fixed_us = 0;
  double encode_frame_us = 0;
  double decode_frame_us = 0;
  double encode_us_per_byte = 0;
  double decode_us_per_byte = 0;
};

// x = 1 / bandwidth.
[[nodiscard]] inline double MicrosPerByte(double bytes_per_s) { return 1e6 / bytes_per_s; }

// Stages of moving `raw_bytes` in so many frames at x microseconds a byte.
[[nodiscard]] inline StageTimes StagesOf(const ArmCost& cost, Form form, double raw_bytes,
                                         double us_per_byte, double produce_us, double frames) {
  StageTimes t;
  t.fixed_us = cost.decode_fixed_us;
  t.produce_us = produce_us;
  if (form == Form::kHandOver) {
    t.fixed_us += cost.encode_fixed_us;
    t.encode_us = cost.encode_frame_us * frames + cost.encode_us_per_byte * raw_bytes;
  }
  t.wire_us = cost.wire_bytes * raw_bytes * us_per_byte;
  t.decode_us = cost.decode_frame_us * frames + cost.decode_us_per_byte * raw_bytes;
  return t;
}

// Time over x: the greater of two lines; the same line twice in the serial model.
struct Line {
  double at_zero = 0;
  double slope = 0;
  [[nodiscard]] double At(double x) const { return at_zero + slope * x; }
};
struct PathCurve {
  Line fast;  // holds where the wire is not the slowest stage
  Line slow;  // holds where it is; slope >= that of `fast`
  [[nodiscard]] double At(double x) const { return std::max(fast.At(x), slow.At(x)); }
};
// At(x) = PathUs(StagesOf(..., x, ...)) for every x >= 0.
[[nodiscard]] PathCurve CurveOf(const ArmCost& cost, Form form, Overlap overlap, double frames,
                                double raw_bytes, double produce_us);

// The bandwidth below which the serial model has the arm beat raw, without fixed costs, in bytes a
// second: s (1 - 1/ratio), s of encoding and decoding one after the other. 0: never; infinity:
// always. To report: raw is an arm like any other, nothing is filtered by it.
[[nodiscard]] double BreakEvenBytesPerS(const ArmCost& cost, Form form);

}  // namespace kvik::control
