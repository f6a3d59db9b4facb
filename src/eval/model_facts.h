// SPDX-License-Identifier: Apache-2.0
// eval/model_facts.h: what compression must know of a loaded model.
#pragma once

#include "codec/model_facts.h"
#include "model/model.h"

namespace kvik::eval {

codec::ModelFacts ModelFactsOf(const model::Model& model);

}  // namespace kvik::eval
