// SPDX-License-Identifier: Apache-2.0
// base/planted_defect.h: bugs on purpose, to prove that the exactness tests would find them.
//
// Only a build with -DKVIK_PLANT_DEFECTS has them (it prints so); there the environment variable
// KVIK_DEFECT chooses one. In every other build DefectPlanted() is the constant false.
#pragma once

namespace kvik {

enum class Defect {
  kGapPosition,  // "gap_position": tokens computed behind a cached run are rotated one position off
  kMDependent,   // "m_dependent": the order of a sum depends on the number of rows in the batch
  kStaleSlot,    // "stale_slot": the index still points to a block after its slot was reused
};

#ifdef KVIK_PLANT_DEFECTS
bool DefectPlanted(Defect defect);
#else
constexpr bool DefectPlanted(Defect /*defect*/) { return false; }
#endif

}  // namespace kvik
