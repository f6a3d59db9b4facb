// SPDX-License-Identifier: Apache-2.0
#include "codec/ecsq_classes.h"

#include <cmath>
#include <cstddef>

namespace kvik::codec {

const std::array<EcsqClass, kNumEcsqClasses> kEcsqClasses = {{
    {0.2F, 0.453125F, 0.98F, 0.0F, 16},
    {0.250000F, 0.453125F, 0.9724F, 0.0394F, 16},
    {0.297302F, 0.453125F, 0.9633F, 0.0698F, 16},
    {0.353553F, 0.453125F, 0.9521F, 0.1092F, 16},
    {0.420448F, 0.25F, 0.9242F, -0.0067F, 16},
    {0.500000F, 0.125F, 0.8986F, -0.0391F, 16},
    {0.594604F, 0.078125F, 0.8884F, -0.0161F, 16},
    {0.707107F, 0.046875F, 0.8936F, -0.0003F, 16},
    {0.840896F, 0.03125F, 0.9101F, 0.0087F, 16},
    {1.000000F, 0.015625F, 0.9296F, 0.0053F, 16},
    {1.189207F, 0.015625F, 0.9472F, 0.0102F, 16},
    {1.414214F, 0.015625F, 0.9612F, 0.0127F, 16},
    {1.681793F, 0.0F, 0.9719F, -0.0012F, 32},
    {2.000000F, 0.0F, 0.9798F, -0.0007F, 32},
    {2.378414F, 0.0F, 0.9856F, -0.0004F, 32},
    {2.828427F, 0.0F, 0.9897F, -0.0002F, 32},
    {3.363586F, 0.0F, 0.9927F, -0.0001F, 64},
    {4.000000F, 0.0F, 0.9948F, -0.0001F, 64},
    {5.656854F, 0.0F, 0.9974F, 0.0000F, 64},
    {8.000000F, 0.0F, 0.9987F, 0.0000F, 128},
    {11.313708F, 0.0F, 0.9993F, 0.0000F, 128},
    {16.000000F, 0.0F, 0.9997F, 0.0000F, 256},
    {22.627417F, 0.0F, 0.9998F, 0.0000F, 256},
    {32.000000F, 0.0F, 0.9999F, 0.0000F, 256},
}};

uint8_t EcsqClassOf(float spread) {
  // Classes meet at the geometric mean of their spreads, the first two where the lower one ends.
  static const std::array<float, kNumEcsqClasses> kLowest = [] {
    std::array<float, kNumEcsqClasses> lowest{};
    for (size_t k = 2; k < kNumEcsqClasses; ++k) {
      lowest[k] = std::sqrt(kEcsqClasses[k - 1].spread * kEcsqClasses[k].spread);
    }
    lowest[1] = 0.229F;
    return lowest;
  }();
  uint8_t k = 0;
  for (size_t above = 1; above < kNumEcsqClasses; ++above) {
    k = static_cast<uint8_t>(k + (kLowest[above] <= spread ? 1 : 0));
  }
  return k;
}

const EcsqTables& EcsqTablesOfClasses() {
  static const EcsqTables kTables = [] {
    EcsqTables tables{};
    for (size_t k = 0; k < 32; ++k) {
      const EcsqClass& c = kEcsqClasses[k < kNumEcsqClasses ? k : 0];
      tables.theta[k] = c.theta;
      tables.limit[k] = static_cast<float>(c.alphabet >> 1);
      tables.slope[k] = c.slope;
      tables.offset[k] = c.offset;
    }
    return tables;
  }();
  return kTables;
}

}  // namespace kvik::codec
