// SPDX-License-Identifier: Apache-2.0
#include "eval/library_binding.h"

#include <string>
#include <string_view>
#include <utility>

#include "eval/model_facts.h"

namespace kvik::eval {

// The last part of a numerics tag is the hash of weights and configuration.
std::string_view WeightsOf(std::string_view numerics_tag) {
  return numerics_tag.substr(numerics_tag.rfind('/') + 1);
}

Result<void> BindLibrary(const model::Model& model, codec::ProfileLibrary& library) {
  codec::ModelFacts facts = ModelFactsOf(model);
  codec::ModelFacts same_but_for_names = library.model;
  same_but_for_names.name = facts.name;
  same_but_for_names.fingerprint = facts.fingerprint;
  if (same_but_for_names != facts ||
      WeightsOf(library.calibration.numerics) != WeightsOf(model.numerics_tag())) {
    return Err(ErrorCode::kInvalidInput,
               "the profile library is of another model (%s): calibrate one for this model with "
               "kvik calibrate",
               library.model.name.c_str());
  }
  library.model = std::move(facts);
  return {};
}

}  // namespace kvik::eval
