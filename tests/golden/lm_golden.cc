// SPDX-License-Identifier: Apache-2.0
// Language models against float32 references: perplexity, most probable tokens, log-probabilities
// of the twenty most probable, and greedy texts. Each arithmetic has its own tolerance, because
// rounding the inputs of a product to bf16 is seen in the logits. Tokens of greedy texts have to
// agree until the reference itself is nearly undecided.
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/isa.h"
#include "base/thread_pool.h"
#include "golden/golden_files.h"
#include "golden/report.h"
#include "model/model.h"
#include "model/model_source.h"
#include "model/sampler.h"
#include "model/testing/dense_driver.h"
#include "model/tokenizer_source.h"
#include "text/chat_template.h"
#include "text/jinja_value.h"
#include "text/tokenizer.h"

namespace kvik::golden {
namespace {

using model::testing::DenseDriver;

constexpr int32_t kChunkRows = 256;
constexpr double kUndecidedMargin = 0.1;  // logits

struct Tolerance {
  double perplexity_percent;
  double top1_percent;
  double logprob_error;
};

struct Arithmetic {
  ComputeType compute;
  kv::KvDtype kv_dtype;
  // None: the figures are printed, and `why` says why they bind nothing.
  std::optional<Tolerance> tolerance;
  const char* why = "";
};

constexpr Tolerance kF32Tolerance = {0.1, 99.5, 0.012};
constexpr Tolerance kBf16Tolerance = {0.2, 99.0, 0.03};
constexpr const char* kHugeKeyBiases =
    "not binding: this model's key biases reach into the hundreds, so that storing keys as bf16 "
    "(8 bits of mantissa) moves scores by tenths; use --kv-cache-dtype f32 where that matters";

std::vector<Arithmetic> ArithmeticsFor(const std::string& key) {
  using kv::KvDtype;
  if (key == "qwen2") {
    return {{ComputeType::kF32, KvDtype::kF32, kF32Tolerance},
            {ComputeType::kF32, KvDtype::kBf16, {}, kHugeKeyBiases},
            {ComputeType::kBf16, KvDtype::kF32, kBf16Tolerance},
            {ComputeType::kBf16, KvDtype::kBf16, {}, kHugeKeyBiases}};
  }
  return {{ComputeType::kF32, KvDtype::kBf16, kF32Tolerance},
          {ComputeType::kBf16, KvDtype::kBf16, kBf16Tolerance}};
}

struct Figures {
  double nll = 0;
  double reference_nll = 0;
  int64_t nll_count = 0;
  int64_t top1_equal = 0;
  int64_t positions = 0;
  double logprob_error = 0;
  int64_t logprob_count = 0;

  [[nodiscard]] double PerplexityPercent() const {
    const auto n = static_cast<double>(nll_count);
    return 100 * std::abs(std::exp(nll / n) / std::exp(reference_nll / n) - 1);
  }
  [[nodiscard]] double Top1Percent() const {
    return 100 * static_cast<double>(top1_equal) / static_cast<double>(positions);
  }
  [[nodiscard]] double LogprobError() const {
    return logprob_error / static_cast<double>(logprob_count);
  }
};

// One text, every position.
void CompareText(const Json& text, DenseDriver& driver, model::Sampler& sampler, Figures& figures) {
  const auto tokens = text.at("tokens").get<std::vector<TokenId>>();
  const auto reference_nll = text.at("nll").get<std::vector<double>>();
  const auto top1 = text.at("top1").get<std::vector<TokenId>>();
  const Json& top20 = text.at("top20");
  driver.Reset();
  driver.Append(tokens, kChunkRows, DenseDriver::Want::kAll,
                [&](int32_t position, std::span<const float> logits) {
                  const auto at = static_cast<size_t>(position);
                  const TokenId next = at + 1 < tokens.size() ? tokens[at + 1] : 0;
                  const model::SampledToken score = sampler.Score(logits, next, 1);
                  if (at < reference_nll.size()) {
                    figures.nll -= static_cast<double>(score.logprob);
                    figures.reference_nll += reference_nll[at];
                    ++figures.nll_count;
                  }
                  figures.top1_equal += score.top.at(0).token == top1.at(at) ? 1 : 0;
                  ++figures.positions;
                  const auto golden = top20.find(std::to_string(position));
                  if (golden != top20.end()) {
                    const double log_sum = static_cast<double>(logits[static_cast<size_t>(next)]) -
                                           static_cast<double>(score.logprob);
                    for (const Json& entry : *golden) {
                      const auto token = entry.at(0).get<size_t>();
                      figures.logprob_error += std::abs(static_cast<double>(logits[token]) -
                                                        log_sum - entry.at(1).get<double>());
                      ++figures.logprob_count;
                    }
                  }
                });
}

// Empty, or where the text leaves the reference although that was decided.
std::string CompareGreedy(const Json& golden, DenseDriver& driver, model::Sampler& sampler,
                          Figures& agreement) {
  const auto prompt = golden.at("prompt_tokens").get<std::vector<TokenId>>();
  const auto expected = golden.at("tokens").get<std::vector<TokenId>>();
  const auto margins = golden.at("margin").get<std::vector<double>>();
  model::SamplingParams greedy;
  greedy.temperature = 0;
  const model::PenaltyState no_penalties(greedy, {});
  driver.Reset();
  std::vector<TokenId> input = prompt;
  for (size_t step = 0; step < expected.size(); ++step) {
    TokenId token = -1;
    driver.Append(input, kChunkRows, DenseDriver::Want::kLast,
                  [&](int32_t /*position*/, std::span<const float> logits) {
                    token = sampler.Sample(logits, greedy, no_penalties, {}, 0, 0).token;
                  });
    if (token != expected[step]) {
      if (margins.at(step) < kUndecidedMargin) {
        return "";
      }
      return "token " + std::to_string(step) + " is " + std::to_string(token) +
             ", the reference has " + std::to_string(expected[step]) + " by a margin of " +
             std::to_string(margins[step]);
    }
    ++agreement.positions;
    input = {token};
  }
  return "";
}

std::string Describe(const Figures& figures) {
  char text[200];
  std::snprintf(text, sizeof(text),
                "%lld positions, perplexity %.4f (reference %.4f, off by %.3f %%), top-1 %.2f %%, "
                "mean |logprob error| of the top 20 %.4f",
                static_cast<long long>(figures.positions),
                std::exp(figures.nll / static_cast<double>(figures.nll_count)),
                std::exp(figures.reference_nll / static_cast<double>(figures.nll_count)),
                figures.PerplexityPercent(), figures.Top1Percent(), figures.LogprobError());
  return text;
}

bool Within(const Figures& figures, const Tolerance& tolerance) {
  return figures.PerplexityPercent() <= tolerance.perplexity_percent &&
         figures.Top1Percent() >= tolerance.top1_percent &&
         figures.LogprobError() <= tolerance.logprob_error;
}

class ModelCheck {
 public:
  ModelCheck(const std::string& key, const model::ModelSource& source, const Json& golden,
             Report& report)
      : key_(key), source_(source), golden_(golden), report_(report) {}

  void Run(Isa isa, const Arithmetic& arithmetic, const std::string& only, ThreadPool& pool) {
    const std::string check = "logits " + key_ + " (" + IsaName(isa) + ", " +
                              (arithmetic.compute == ComputeType::kF32 ? "f32" : "bf16") +
                              " kernels, " +
                              (arithmetic.kv_dtype == kv::KvDtype::kF32 ? "f32" : "bf16") + " KV)";
    if (check.find(only) == std::string::npos) {
      return;
    }
    if (!ComputeSupported(isa, arithmetic.compute)) {
      report_.positions.skipped += NumPositions();
      return report_.Skip(check, std::string(IsaName(isa)) + " has no bf16 arithmetic");
    }
    model::ModelOptions options;
    options.isa = isa;
    options.compute = arithmetic.compute;
    options.kv_dtype = arithmetic.kv_dtype;
    options.max_batch_rows = kChunkRows;
    options.max_logit_rows = kChunkRows;
    const auto loaded = model::Model::Load(source_, options, pool);
    if (!loaded) {
      return report_.Fail(check, loaded.error().message);
    }
    const auto driver = DenseDriver::Create(**loaded, LongestText());
    if (!driver) {
      return report_.Fail(check, driver.error().message);
    }
    model::Sampler sampler(source_.config().vocab_size);
    CheckLogits(check, arithmetic, **driver, sampler);
    CheckGreedy("greedy " + check.substr(7), arithmetic, **driver, sampler);
  }

  [[nodiscard]] int64_t NumPositions() const {
    int64_t count = 0;
    for (const Json& text : golden_.at("lm")) {
      count += static_cast<int64_t>(text.at("tokens").size());
    }
    return count;
  }

 private:
  [[nodiscard]] int32_t LongestText() const {
    size_t longest = 1024;  // of greedy texts with their prompts
    for (const Json& text : golden_.at("lm")) {
      longest = std::max(longest, text.at("tokens").size());
    }
    return static_cast<int32_t>(longest);
  }

  void CheckLogits(const std::string& check, const Arithmetic& arithmetic, DenseDriver& driver,
                   model::Sampler& sampler) {
    Figures figures;
    for (const Json& text : golden_.at("lm")) {
      CompareText(text, driver, sampler, figures);
    }
    report_.positions.compared += figures.positions;
    const std::string detail = Describe(figures);
    if (!arithmetic.tolerance) {
      Report::Note(check, detail + "; " + arithmetic.why);
    } else if (Within(figures, *arithmetic.tolerance)) {
      report_.Pass(check, detail);
    } else {
      char limits[120];
      std::snprintf(limits, sizeof(limits), "; allowed are %.1f %%, %.1f %%, %.3f",
                    arithmetic.tolerance->perplexity_percent, arithmetic.tolerance->top1_percent,
                    arithmetic.tolerance->logprob_error);
      report_.Fail(check, detail + limits);
    }
  }

  void CheckGreedy(const std::string& check, const Arithmetic& arithmetic, DenseDriver& driver,
                   model::Sampler& sampler) {
    if (!golden_.contains("greedy") || !arithmetic.tolerance) {
      return;
    }
    Figures agreement;
    size_t total = 0;
    std::string wrong;
    for (const Json& text : golden_.at("greedy")) {
      total += text.at("tokens").size();
      const std::string different = CompareGreedy(text, driver, sampler, agreement);
      if (!different.empty() && wrong.empty()) {
        wrong = text.at("messages").dump() + ": " + different;
      }
    }
    report_.positions.compared += agreement.positions;
    if (!wrong.empty()) {
      return report_.Fail(check, wrong);
    }
    report_.Pass(check, std::to_string(golden_.at("greedy").size()) + " texts, " +
                            std::to_string(agreement.positions) + " of " + std::to_string(total) +
                            " tokens equal before the reference's margin falls under 0.1");
  }

  std::string key_;
  const model::ModelSource& source_;
  const Json& golden_;
  Report& report_;
};

// Messages of the greedy texts give exactly the reference's prompts.
void CheckPrompts(const std::string& key, const model::ModelSource& source, const Json& golden,
                  Report& report) {
  const std::string check = "chat prompts " + key;
  if (!golden.contains("greedy")) {
    return;
  }
  const auto tokenizer = model::LoadTokenizer(source);
  if (!tokenizer) {
    return report.Fail(check, tokenizer.error().message);
  }
  const auto parsed = text::ChatTemplate::Parse(source.chat_template());
  if (!parsed) {
    return report.Fail(check, parsed.error().message);
  }
  for (const Json& one : golden.at("greedy")) {
    const auto messages = text::JinjaValue::FromJson(one.at("messages").dump());
    if (!messages) {
      return report.Fail(check, messages.error().message);
    }
    text::ChatInput input;
    input.messages = *messages;
    const Result<std::string> prompt = parsed->Render(input);
    if (!prompt) {
      return report.Fail(check, prompt.error().message);
    }
    text::EncodeOptions encode;
    encode.parse_special = true;
    ++report.strings.compared;
    if ((*tokenizer)->Encode(*prompt, encode) !=
        one.at("prompt_tokens").get<std::vector<TokenId>>()) {
      return report.Fail(check, one.at("messages").dump() + " gives other tokens");
    }
  }
  report.Pass(check, std::to_string(golden.at("greedy").size()) +
                         " prompts give the reference's token ids");
}

void CheckModel(const Options& options, const GoldenModel& model, Report& report) {
  const std::string check = std::string("logits ") + model.key;
  const std::string golden_path = options.golden_folder + "/lm_" + model.key + ".json";
  const std::string model_path = options.models_folder + "/" + model.file;
  if (!FileExists(golden_path)) {
    return report.Skip(check, golden_path + " is not there");
  }
  const Json golden = ReadJson(golden_path);
  if (!FileExists(model_path)) {
    for (const Json& text : golden.at("lm")) {
      report.positions.skipped += static_cast<int64_t>(text.at("tokens").size());
    }
    return report.Skip(check, model_path + " is not there");
  }
  const auto source = model::ModelSource::Open(model_path);
  if (!source) {
    return report.Fail(check, source.error().message);
  }
  const Result<Isa> isa = SelectIsa();
  if (!isa) {
    return report.Fail(check, isa.error().message);
  }
  CheckPrompts(model.key, **source, golden, report);
  ThreadPool pool(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  ModelCheck models(model.key, **source, golden, report);
  for (const Arithmetic& arithmetic : ArithmeticsFor(model.key)) {
    models.Run(*isa, arithmetic, options.only, pool);
  }
}

}  // namespace

void CheckLanguageModels(const Options& options, Report& report) {
  for (const GoldenModel& model : kGoldenModels) {
    CheckModel(options, model, report);
  }
}

}  // namespace kvik::golden
