// SPDX-License-Identifier: Apache-2.0
#include "control/predictor.h"

namespace kvik::control {

PathCurve CurveOf(const ArmCost& cost, Form form, Overlap overlap, double frames, double raw_bytes,
                  double produce_us) {
  const StageTimes t = StagesOf(cost, form, raw_bytes, 0, produce_us);
  const double wire_slope = cost.wire_bytes * raw_bytes;
  if (overlap == Overlap::kSerial) {
    const Line line{t.fixed_us + t.encode_us + t.decode_us, wire_slope};
    return {line, line};
  }
  // PathUs with the slowest of the others, then with the wire, taken for the slowest stage. The
  // wrong one of the two is never the greater: a stage counts more whole than in part.
  const double slowest = std::max({t.encode_us, t.decode_us, t.produce_us});
  const double others = t.encode_us + t.decode_us + t.produce_us;
  const double rest = t.fixed_us - t.produce_us;
  return {{rest + slowest + (others - slowest) / frames, wire_slope / frames},
          {rest + others / frames, wire_slope}};
}

double BreakEvenBytesPerS(const ArmCost& cost, Form form) {
  const double us_per_byte =
      cost.decode_us_per_byte + (form == Form::kHandOver ? cost.encode_us_per_byte : 0);
  const double saved = 1 - cost.wire_bytes;
  if (saved <= 0) {
    return 0;
  }
  return us_per_byte == 0 ? std::numeric_limits<double>::infinity() : 1e6 * saved / us_per_byte;
}

}  // namespace kvik::control
