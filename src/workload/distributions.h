// SPDX-License-Identifier: Apache-2.0
// workload/distributions.h: random lengths and times. Unlike those of <random> they give the same
// numbers on every platform: pure functions of what the generator draws.
#pragma once

#include "base/rng.h"

namespace kvik::workload {

// Mean 0, standard deviation 1.
double DrawNormal(Rng& rng);

// Mean `mean`; the logarithm has standard deviation `sigma`. REQUIRES: mean > 0, sigma >= 0.
double DrawLogNormal(Rng& rng, double mean, double sigma);

// Mean `mean`, coefficient of variation `cv` (standard deviation over mean): 1 is the exponential
// distribution, 0 the constant. REQUIRES: mean > 0, cv >= 0.
double DrawGamma(Rng& rng, double mean, double cv);

}  // namespace kvik::workload
