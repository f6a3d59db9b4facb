// SPDX-License-Identifier: Apache-2.0
#include "app/eval.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "cli/commands.h"
#include "cli/runtime_flags.h"
#include "codec/frame.h"
#include "codec/presets.h"

namespace kvik::cli {
namespace {

constexpr const char* kFooter =
    "Prompts are built from the items of the data (math, code, qa, summarization, retrieval or "
    "any\n"
    "other workload) to the length of each cell, rendered through the model's chat template, and\n"
    "answered once without compression. Then the prompt's KV goes through every pipeline, the "
    "same\n"
    "answer is fed to the model on what comes back, and every position is compared.\n"
    "\n"
    "  bits, CR    per KV value on the wire, every byte of every frame counted; 16 / bits\n"
    "  KL          of the coded run from the raw one, a position\n"
    "  top-1       positions with the same most probable token\n"
    "  q           the same where the raw run is sure: a margin of 0.5 logit or more\n"
    "  ppl         of the item's reference where there is one, else of the raw answer\n"
    "  MSE         of KV values; logit err, output err: of attention's scores and outputs for the\n"
    "              raw run's own queries, relative root mean squares\n"
    "  task        score of an answer generated on coded KV; in brackets where the raw model\n"
    "              scores below 20 %, where only agreement means something\n"
    "\n"
    "Intervals are the central 95 % of a bootstrap over prompts. What was measured is kept, and a\n"
    "run that was ended goes on where it was when it is started again.";

}  // namespace

void AddEval(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::EvalOptions>();
  options->runtime.seed = 1;
  CLI::App* command =
      root.add_subcommand("eval", "what compression of the KV cache costs in quality");
  command->footer(kFooter);
  AddArithmeticFlags(*command, options->runtime);
  std::string presets;
  for (const codec::Preset& preset : codec::AllPresets()) {
    presets += (presets.empty() ? "" : ", ") + std::string(preset.name);
  }
  command
      ->add_option_function<std::vector<std::string>>(
          "--pipeline,-p",
          [options](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              for (std::string& pipeline : app::SplitPipelines(text)) {
                options->pipelines.push_back(std::move(pipeline));
              }
            }
          },
          "pipelines (transforms -> quantizer -> coder) or presets, with commas between them: " +
              presets)
      ->type_name("PIPELINE");
  command
      ->add_option("--profiles", options->profiles,
                   "a profile library (kvik calibrate makes one): what its pipelines need, and "
                   "what is evaluated when no --pipeline is given")
      ->type_name("FOLDER");
  command->add_option("--profile", options->profile_names, "only these of its profiles")
      ->delimiter(',')
      ->type_name("NAME");
  command
      ->add_option("--data", options->data, "items as lines of JSON: a file, or a folder of them")
      ->required()
      ->type_name("PATH");
  command->add_option("--cell", options->cells,
                      "workloads and prompt lengths, as in qa:1K,math:128,retrieval (default: math "
                      "and code 128 and 1K; qa 128, 1K, 6K; summarization 1K, 6K; others as they "
                      "are)");
  command
      ->add_option("--metric", options->columns,
                   "columns of the table: kl, top1 (and q), ppl, error, task; task also generates "
                   "and scores answers. JSON has all that was measured")
      ->delimiter(',')
      ->check(CLI::IsMember(app::EvalColumns()))
      ->default_str("kl,top1,ppl,error");
  command
      ->add_option("--positions", options->positions,
                   "positions to judge in a cell, at least: prompts are added until there are so "
                   "many; 0 = every prompt")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command
      ->add_option("--continuation", options->continuation_tokens,
                   "positions of one prompt, at most")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command
      ->add_option("--frame-tokens", options->frame_tokens,
                   "tokens of a frame, at most (default: what a preset was published for, 1,536 "
                   "for the rest)")
      ->check(CLI::Range(1, codec::kMaxFrameTokens));
  command->add_flag("--every-block", options->every_block,
                    "blocks that fill up while decoding go through the pipeline, too");
  command
      ->add_option("--threads", options->runtime.threads,
                   "threads that compute (default: one per core)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--seed", options->runtime.seed, "of the choice of prompts and of intervals")
      ->capture_default_str();
  command
      ->add_option("--cache", options->cache_folder,
                   "folder of raw KV and results (default: eval in kvik's cache folder)")
      ->type_name("FOLDER");
  command
      ->add_option_function<std::string>(
          "--cache-limit",
          [options](const std::string& text) {
            options->cache_bytes = ParseByteSize(text).value();
          },
          "raw KV to keep, at most; the rest is computed when it is needed")
      ->type_name("BYTES")
      ->default_str("32GiB")
      ->check([](const std::string& text) {
        const Result<uint64_t> size = ParseByteSize(text);
        return size ? std::string() : size.error().message;
      });
  command
      ->add_option("--results", options->results,
                   "the log of what was measured (default: results.jsonl in --cache)")
      ->type_name("FILE");
  command->add_flag("--fresh", options->fresh, "measure everything again");
  command->add_flag("--plan", options->plan,
                    "only say what there is to do and about how many seconds it takes");
  command->add_flag("--json", options->json, "for machines");
  command->add_option("--svg", options->svg_path, "draw bits against KL into this file")
      ->type_name("FILE");
  command->add_option("--csv", options->csv_path, "write what the plots show into this file")
      ->type_name("FILE");
  command->add_flag("--quiet", options->quiet, "no progress and no estimate of time");
  command->callback([options, &action] {
    options->score_tasks = std::find(options->columns.begin(), options->columns.end(), "task") !=
                           options->columns.end();
    action = [options] { return app::Evaluate(*options); };
  });
}

}  // namespace kvik::cli
