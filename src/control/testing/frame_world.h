// SPDX-License-Identifier: Apache-2.0
// control/testing/frame_world.h: a transfer frame by frame, to hold the predictor's formulas
// against: chunks are sealed by the steps of a prefill, encoded layer by layer, sent in order and
// decoded as they come. Every stage works on one frame at a time, at all times on the next one that
// is there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kv/cost_model.h"

namespace kvik::control::testing {

// When each step of a prefill of `tokens` ends, in microseconds from its start.
inline std::vector<double> StepEnds(const kv::CostModel& cost, int32_t tokens,
                                    int32_t step_tokens) {
  std::vector<double> ends;
  double now_us = 0;
  for (int32_t first = 0; first < tokens; first += step_tokens) {
    kv::StepFeatures features;
    features.AddSegment(first, std::min(step_tokens, tokens - first));
    now_us += cost.StepUs(features);
    ends.push_back(now_us);
  }
  return ends;
}

struct FrameStages {  // of a raw byte, and of each frame
  double encode_us = 0;
  double wire_us = 0;
  double decode_us = 0;
  double encode_frame_us = 0;
  double decode_frame_us = 0;
};

// When the last of `chunks` is decoded. A chunk: raw bytes, and when its last block is sealed
// (ascending).
struct SealedChunk {
  double raw_bytes = 0;
  double sealed_us = 0;
};
inline double LastDecodedUs(const std::vector<SealedChunk>& chunks, const FrameStages& stages,
                            int32_t layers, double fixed_us) {
  double encoded_us = 0;
  double sent_us = 0;
  double decoded_us = 0;
  for (const SealedChunk& chunk : chunks) {
    const double frame_bytes = chunk.raw_bytes / layers;
    for (int32_t layer = 0; layer < layers; ++layer) {
      encoded_us = std::max(encoded_us, chunk.sealed_us) + stages.encode_frame_us +
                   stages.encode_us * frame_bytes;
      sent_us = std::max(sent_us, encoded_us) + stages.wire_us * frame_bytes;
      decoded_us =
          std::max(decoded_us, sent_us) + stages.decode_frame_us + stages.decode_us * frame_bytes;
    }
  }
  return decoded_us + fixed_us;
}

}  // namespace kvik::control::testing
