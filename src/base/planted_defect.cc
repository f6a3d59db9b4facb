// SPDX-License-Identifier: Apache-2.0
#include "base/planted_defect.h"

#ifdef KVIK_PLANT_DEFECTS

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/check.h"

namespace kvik {
namespace {

// -1 = none chosen.
int ChosenDefect() {
  const char* value = std::getenv("KVIK_DEFECT");
  const std::string_view name = value == nullptr ? "" : value;
  std::fprintf(stderr, "this is a test build that can plant defects; KVIK_DEFECT=%s\n",
               name.empty() ? "(none)" : value);
  if (name.empty()) {
    return -1;
  }
  if (name == "gap_position") {
    return static_cast<int>(Defect::kGapPosition);
  }
  if (name == "m_dependent") {
    return static_cast<int>(Defect::kMDependent);
  }
  KVIK_CHECK(name == "stale_slot", "KVIK_DEFECT is gap_position, m_dependent or stale_slot");
  return static_cast<int>(Defect::kStaleSlot);
}

}  // namespace

bool DefectPlanted(Defect defect) {
  static const int chosen = ChosenDefect();
  return chosen == static_cast<int>(defect);
}

}  // namespace kvik

#endif
