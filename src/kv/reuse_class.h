// SPDX-License-Identifier: Apache-2.0
// kv/reuse_class.h: which blocks are expected to be wanted again alike.
//
// A class is what is known of the request that used the blocks last, and whether the blocks serve
// one session or several. Classes with little evidence lean on coarser ones: class -> this turn or
// a later one -> the turn before or a later one -> ... -> all.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/request_facts.h"
#include "kv/reuse_hazard.h"

namespace kvik::kv {

enum class BlockKind : uint8_t {
  kTail,  // of one session so far
  kHead,  // also wanted by others: a system prompt, a document
};

// The nodes of all classes and what they lean on, for ReuseHazard.
std::vector<ReuseHazard::Node> ReuseClassNodes();

// The node of the blocks of one kind that a request let go of. `turn` is the request's, from 1: its
// own word, or inferred.
int ReuseClassNode(const RequestFacts& request, int32_t turn, BlockKind kind);

}  // namespace kvik::kv
