// SPDX-License-Identifier: Apache-2.0
#include "app/machine_speeds.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <optional>
#include <system_error>
#include <vector>

#include "app/models.h"
#include "app/text_file.h"
#include "app/version.h"
#include "base/fnv.h"
#include "base/log.h"
#include "base/progress.h"
#include "connector/measure_speeds.h"
#include "model/batch.h"

namespace kvik::app {
namespace {

constexpr int32_t kSampleTokens = 256;
// Any text that is not strange to a model.
constexpr const char* kSampleText =
    "The harbour lies where the river meets the sea. Every morning, long before the sun rises, "
    "small boats leave for the banks in the north, and around noon they come back with herring, "
    "cod and, in good years, mackerel. Anna, who has kept the books of the fish market for 23 "
    "years, writes down what each boat brings: weight, price, buyer. \"In 1998 we sold 412 tons,\" "
    "she says, \"and last year it was 267.\" Fewer boats, fewer people, but also better prices; a "
    "kilogram of cod costs 14.50 today. If the average boat has a crew of four and there are 18 "
    "boats, how many people work at sea? Seventy-two, and about twice as many on land. Her son "
    "wrote a small program for the list:\n\n"
    "def total(rows):\n    result = {}\n    for boat, kind, weight in rows:\n"
    "        result[kind] = result.get(kind, 0) + weight\n    return result\n\n"
    "It runs on an old computer beside the window. Outside, gulls wait on the roof of the ice "
    "house, and the ferry to the islands sounds its horn twice. ";

// Its name says everything that a measurement depends on, but for the profiles.
std::string PathOf(const Runtime& runtime, const MachineSpeedsOptions& options) {
  const std::string key = runtime.model->numerics_tag() + "; " + std::to_string(options.threads) +
                          " threads; blocks of " +
                          std::to_string(runtime.memory.geometry.block_size_tokens) +
                          "; KV of text, costs of frames; kvik " + kVersion;
  char name[32];
  std::snprintf(name, sizeof(name), "%016llx.json", static_cast<unsigned long long>(Fnv1a(key)));
  return options.folder + "/" + name;
}

// KV of some text, in the first blocks of the executor. None: it cannot be computed.
std::optional<connector::KvSample> SampleOf(const Runtime& runtime) {
  engine::Executor& executor = *runtime.executor;
  const kv::KvGeometry& geometry = runtime.memory.geometry;
  const int32_t block_tokens = geometry.block_size_tokens;
  const int32_t tokens = std::min(std::min(kSampleTokens, executor.limits().max_context_tokens),
                                  std::min(runtime.memory.num_blocks * block_tokens,
                                           executor.limits().max_batch_rows)) /
                         block_tokens * block_tokens;
  std::vector<TokenId> text = runtime.tokenizer->Encode(kSampleText);
  if (tokens == 0 || text.empty() || executor.arena().empty()) {
    return std::nullopt;
  }
  for (size_t i = 0; text.size() < static_cast<size_t>(tokens); ++i) {
    text.push_back(text[i]);
  }
  text.resize(static_cast<size_t>(tokens));
  connector::KvSample sample{geometry, executor.arena(), {}};
  sample.blocks.resize(static_cast<size_t>(tokens / block_tokens));
  std::iota(sample.blocks.begin(), sample.blocks.end(), 0);
  model::StepBatch batch;
  batch.Add(text, 0, sample.blocks, /*want_logits=*/false);
  if (const auto done = executor.Execute(batch); !done) {
    LogWarning("%s: speeds are measured on KV that is made up", done.error().message.c_str());
    return std::nullopt;
  }
  return sample;
}

}  // namespace

std::string DefaultSpeedsFolder() { return CacheFolder() + "/speeds"; }

control::MachineSpeeds MachineSpeedsOf(const connector::ProfileSet& profiles,
                                       const Runtime& runtime, const Clock& clock,
                                       const MachineSpeedsOptions& options) {
  const std::string path = PathOf(runtime, options);
  control::MachineSpeeds kept;
  if (const Result<std::string> text = ReadTextFile(path)) {
    Result<control::MachineSpeeds> parsed = control::ParseSpeeds(*text);
    if (parsed) {
      kept = *std::move(parsed);
    } else {
      LogWarning("%s %s: measuring again", path.c_str(), parsed.error().message.c_str());
    }
  }
  if (connector::HasSpeedsOf(profiles, kept)) {
    return kept;
  }
  const std::optional<connector::KvSample> sample = SampleOf(runtime);
  std::optional<Progress> progress;
  const control::MachineSpeeds measured = connector::MeasureSpeeds(
      profiles,
      {.block_size_tokens = runtime.memory.geometry.block_size_tokens,
       .threads = options.threads,
       .sample = sample ? &*sample : nullptr},
      clock, [&](size_t done, size_t total) {
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
