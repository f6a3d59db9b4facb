// SPDX-License-Identifier: Apache-2.0
// codec/presets.h: published methods as pipelines of this library, by name, and what differs from
// their papers. They are measured in the scope they were published for: `request_tokens` of a
// request in one frame, with statistics over all of them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/pipeline.h"

namespace kvik::codec {

struct Preset {
  std::string_view name;
  std::string_view pipeline;
  // Tokens a frame holds at most; 0: any, the method has no statistics over tokens.
  int32_t request_tokens = 0;
  bool calibrated = false;  // needs side information
  std::string_view source;  // the paper
  std::string_view kept;    // of the method
  std::string_view differs;
};

// In the order of documentation.
const std::vector<Preset>& AllPresets();
const Preset* FindPreset(std::string_view name);

// A preset's name or a pipeline in full. kInvalidInput as PipelineSpec::Parse; a single word that
// is no preset's name gets their list.
Result<PipelineSpec> ParsePipelineOrPreset(std::string_view text);

}  // namespace kvik::codec
