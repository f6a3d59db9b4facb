// SPDX-License-Identifier: Apache-2.0
#include "kv/reuse_class.h"

#include <algorithm>

namespace kvik::kv {
namespace {

constexpr int kTurns = 8;  // 1 .. 7, later ones
constexpr int kTools = 2;
constexpr int kHints = 3;  // the client said nothing, goes on, ends
constexpr int kKinds = 2;
constexpr int kInputs = 5;   // prompts of < 1K, 4K, 16K, 64K tokens, longer ones
constexpr int kOutputs = 4;  // answers of < 64, 256, 1K tokens, longer ones

constexpr int kRoots = kHints * kKinds;
constexpr int kTurnNodes = kTurns * kTools * kRoots;
constexpr int kClasses = kInputs * kOutputs * kTurnNodes;

// What a client's word does to the hazard before anybody saw how often it is true. Evidence then
// corrects it. Blocks of several sessions do not depend on one.
constexpr double kGoesOnFactor = 8;
constexpr double kEndsFactor = 0.02;

int Bucket(int32_t tokens, int64_t first_edge, int buckets) {
  int bucket = 0;
  for (int64_t edge = first_edge; bucket + 1 < buckets && tokens >= edge; edge *= 4) {
    ++bucket;
  }
  return bucket;
}

int RootNode(int hint, int kind) { return hint * kKinds + kind; }

// Of requests at this turn *or a later one*.
int TurnNode(int turn, int tool, int root) {
  return kRoots + (turn * kTools + tool) * kRoots + root;
}

}  // namespace

std::vector<ReuseHazard::Node> ReuseClassNodes() {
  std::vector<ReuseHazard::Node> nodes;
  nodes.reserve(kRoots + kTurnNodes + kClasses);
  for (int hint = 0; hint < kHints; ++hint) {
    for (int kind = 0; kind < kKinds; ++kind) {
      if (hint == 0) {
        nodes.push_back({ReuseHazard::kNoParent, 1.0});
        continue;
      }
      const double factor = hint == 1 ? kGoesOnFactor : kEndsFactor;
      const bool tail = kind == static_cast<int>(BlockKind::kTail);
      nodes.push_back({RootNode(0, kind), tail ? factor : 1.0});
    }
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int tool = 0; tool < kTools; ++tool) {
      for (int root = 0; root < kRoots; ++root) {
        nodes.push_back({turn == 0 ? root : TurnNode(turn - 1, tool, root), 1.0});
      }
    }
  }
  for (int node = 0; node < kClasses; ++node) {
    nodes.push_back({kRoots + node % kTurnNodes, 1.0});
  }
  return nodes;
}

int ReuseClassNode(const RequestFacts& request, int32_t turn, BlockKind kind) {
  const int hint = !request.will_continue.has_value() ? 0 : (*request.will_continue ? 1 : 2);
  const int turn_node = TurnNode(std::clamp(turn, 1, kTurns) - 1, request.tool_call ? 1 : 0,
                                 RootNode(hint, static_cast<int>(kind)));
  const int input = Bucket(request.prompt_tokens, 1024, kInputs);
  const int output = Bucket(request.output_tokens, 64, kOutputs);
  return turn_node + kTurnNodes * (1 + input * kOutputs + output);
}

}  // namespace kvik::kv
