// SPDX-License-Identifier: Apache-2.0
// The transform `klt`: coefficients of each head's channels in its calibrated orthogonal basis,
// sorted by falling variance (Karhunen-Loeve, principal components).
//
// Calibrated: [layers, kv_heads, channels, channels], a basis vector a row.
#include "codec/stages/basis_module.h"

namespace kvik::codec {

const StageModule& KltStage() {
  static const StageModule kModule = BasisModule(
      "klt", "coefficients in each head's calibrated orthogonal basis", BasisKind::kOrthonormal);
  return kModule;
}

}  // namespace kvik::codec
