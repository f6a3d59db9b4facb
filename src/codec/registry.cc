// SPDX-License-Identifier: Apache-2.0
#include "codec/registry.h"

#include <algorithm>

#include "base/check.h"

namespace kvik::codec {

// Made by the build from the files of codec/stages.
std::vector<const StageModule*> CollectStages();

const std::vector<const StageModule*>& AllStages() {
  static const std::vector<const StageModule*> kStages = [] {
    std::vector<const StageModule*> stages = CollectStages();
    std::sort(stages.begin(), stages.end(), [](const StageModule* a, const StageModule* b) {
      return a->kind != b->kind ? a->kind < b->kind : a->name < b->name;
    });
    for (size_t i = 1; i < stages.size(); ++i) {
      KVIK_CHECK(stages[i - 1]->kind != stages[i]->kind || stages[i - 1]->name != stages[i]->name,
                 "two stages are called %s", stages[i]->name.c_str());
    }
    return stages;
  }();
  return kStages;
}

const StageModule* FindStage(StageKind kind, std::string_view name) {
  for (const StageModule* stage : AllStages()) {
    if (stage->kind == kind && stage->name == name) {
      return stage;
    }
  }
  return nullptr;
}

}  // namespace kvik::codec
