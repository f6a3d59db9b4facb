// SPDX-License-Identifier: Apache-2.0
#include "app/machine_speeds.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "app/models.h"
#include "app/text_file.h"
#include "app/version.h"
#include "base/fnv.h"
#include "base/log.h"
#include "base/progress.h"
#include "connector/measure_speeds.h"

namespace kvik::app {
namespace {

// Its name says everything that a measurement depends on, but for the profiles.
std::string PathOf(const MachineSpeedsOptions& options) {
  const std::string key = options.numerics + "; " + std::to_string(options.threads) +
                          " threads; blocks of " + std::to_string(options.block_size_tokens) +
                          "; kvik " + kVersion;
  char name[32];
  std::snprintf(name, sizeof(name), "%016llx.json", static_cast<unsigned long long>(Fnv1a(key)));
  return options.folder + "/" + name;
}

}  // namespace

std::string DefaultSpeedsFolder() { return CacheFolder() + "/speeds"; }

control::MachineSpeeds MachineSpeedsOf(const connector::ProfileSet& profiles, const Clock& clock,
                                       const MachineSpeedsOptions& options) {
  const std::string path = PathOf(options);
  control::MachineSpeeds kept;
  if (const Result<std::string> text = ReadTextFile(path)) {
    Result<control::MachineSpeeds> parsed = control::ParseSpeeds(*text);
    if (parsed) {
      kept = *std::move(parsed);
    } else {
      LogWarning("%s %s: measuring again", path.c_str(), parsed.error().message.c_str());
    }
  }
  const bool all_there =
      std::all_of(profiles.all().begin(), profiles.all().end(),
                  [&](const connector::CodecProfile& p) { return kept.Find(p.hash) != nullptr; });
  if (all_there) {
    return kept;
  }
  std::optional<Progress> progress;
  const control::MachineSpeeds measured = connector::MeasureSpeeds(
      profiles, {.block_size_tokens = options.block_size_tokens, .threads = options.threads}, clock,
      [&](size_t done, size_t total) {
        if (!progress) {
          progress.emplace(clock,
                           Progress::Options{.label = "measuring how fast KV is compressed here",
                                             .total = total});
        }
        progress->Update(done);
      });
  progress.reset();
  for (const control::ProfileSpeeds& speeds : measured.profiles) {
    kept.Set(speeds);
  }
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (const Result<void> saved = ReplaceTextFile(path, control::PrintSpeeds(kept) + "\n"); !saved) {
    LogWarning("%s: speeds will be measured again at the next start",
               saved.error().message.c_str());
  }
  return kept;
}

}  // namespace kvik::app
