// SPDX-License-Identifier: Apache-2.0
// The transform `qklt`: coefficients in a calibrated basis that need not be orthogonal. With the
// rows of U^T S^(1/2), where S are the second moments of the queries that meet a key and U the
// principal components of S^(1/2) k, equal errors of coefficients are equal errors of attention
// logits.
//
// Calibrated: [layers, kv_heads, channels, channels], the vectors to multiply with as rows, the
// most important first. The inverse follows from them.
#include "codec/stages/basis_module.h"

namespace kvik::codec {

const StageModule& QkltStage() {
  static const StageModule kModule =
      BasisModule("qklt", "coefficients in a calibrated basis that knows what queries ask for",
                  BasisKind::kAny);
  return kModule;
}

}  // namespace kvik::codec
