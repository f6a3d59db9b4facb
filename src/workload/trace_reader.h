// SPDX-License-Identifier: Apache-2.0
// workload/trace_reader.h: traces from JSON lines. Nothing in them is trusted.
//
//   {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}
//       one id per block of 512 tokens, each naming its whole prefix; the last may be of a block
//       that is not full and is dropped then
//   the same with "block_size", "session" and "turn"
//       ids of blocks of that size; "session" is used as it is
//   {"timestamp": us, "session_id": "...", "input": "...", "output": "..."}
//       text: four bytes count as a token, blocks are of 16 tokens
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "workload/trace.h"

namespace kvik::workload {

// `text` is the whole file, `name` what messages and tables call it. Requests are sorted by time,
// those of one time stay in the file's order. kInvalidInput: "name:line: field ...: what to do".
Result<Trace> ParseTrace(std::string_view text, const std::string& name);

}  // namespace kvik::workload
