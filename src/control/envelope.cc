// SPDX-License-Identifier: Apache-2.0
// Between two kinks that follow each other all curves are lines, so the envelope there is that of
// lines: walk from the left end; the arm that is least now stays so until the first other line of a
// smaller slope crosses it. With n arms there are at most n + 1 such stretches and n crossings in
// each; n is small and this happens once.
#include "control/envelope.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace kvik::control {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Where the second line of the curve takes over; infinity if it never does, 0 if it always has.
double Kink(const PathCurve& curve) {
  const double slope = curve.slow.slope - curve.fast.slope;
  const double gap = curve.fast.at_zero - curve.slow.at_zero;
  if (gap <= 0) {
    return 0;
  }
  return slope > 0 ? gap / slope : kInfinity;
}

}  // namespace

Envelope::Envelope(std::span<const ArmCurve> curves) {
  KVIK_CHECK(!curves.empty());
  std::vector<double> ends;  // of the stretches
  for (const ArmCurve& arm : curves) {
    ends.push_back(Kink(arm.curve));
  }
  ends.push_back(kInfinity);
  std::sort(ends.begin(), ends.end());

  std::vector<Line> lines(curves.size());
  double begin = 0;
  for (const double end : ends) {
    if (!(end > begin)) {
      continue;
    }
    for (size_t i = 0; i < curves.size(); ++i) {
      const PathCurve& curve = curves[i].curve;
      lines[i] = Kink(curve) <= begin ? curve.slow : curve.fast;
    }
    const auto before = [&](size_t a, size_t b, double x) {
      const double at_a = lines[a].At(x);
      const double at_b = lines[b].At(x);
      return at_a < at_b || (at_a == at_b && lines[a].slope < lines[b].slope);
    };
    size_t best = 0;
    for (size_t i = 1; i < lines.size(); ++i) {
      if (before(i, best, begin)) {
        best = i;
      }
    }
    double x = begin;
    while (true) {
      Append({x, curves[best].arm});
      size_t next = best;
      double next_x = end;
      for (size_t i = 0; i < lines.size(); ++i) {
        if (lines[i].slope < lines[best].slope) {
          const double crossing =
              (lines[i].at_zero - lines[best].at_zero) / (lines[best].slope - lines[i].slope);
          const bool steeper_tie =
              next != best && crossing == next_x && lines[i].slope < lines[next].slope;
          if (crossing < next_x || steeper_tie) {
            next = i;
            next_x = std::max(crossing, x);
          }
        }
      }
      if (next == best) {
        break;
      }
      best = next;
      x = next_x;
    }
    begin = end;
  }
}

void Envelope::Append(const Piece& piece) {
  if (!pieces_.empty() && pieces_.back().x_begin >= piece.x_begin) {
    pieces_.pop_back();
  }
  if (pieces_.empty() || pieces_.back().arm != piece.arm) {
    pieces_.push_back(piece);
  }
}

size_t Envelope::Find(double x) const {
  const auto it =
      std::upper_bound(pieces_.begin(), pieces_.end(), x,
                       [](double at, const Piece& piece) { return at < piece.x_begin; });
  return it == pieces_.begin() ? 0 : static_cast<size_t>(it - pieces_.begin()) - 1;
}

}  // namespace kvik::control
