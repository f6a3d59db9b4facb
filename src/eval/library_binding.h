// SPDX-License-Identifier: Apache-2.0
// eval/library_binding.h: a profile library for the model that is loaded.
#pragma once

#include <string_view>

#include "base/result.h"
#include "codec/profile_library.h"
#include "model/model.h"

namespace kvik::eval {

// What of a numerics tag names weights and configuration, whoever computes with them. A view into
// it.
[[nodiscard]] std::string_view WeightsOf(std::string_view numerics_tag);

// A library is calibrated with one arithmetic, and its fingerprint is of the KV that comes of it.
// Its tensors serve any other arithmetic on the same weights as well: this makes `library` one of
// the KV that `model` computes. kInvalidInput: it is of other weights.
Result<void> BindLibrary(const model::Model& model, codec::ProfileLibrary& library);

}  // namespace kvik::eval
