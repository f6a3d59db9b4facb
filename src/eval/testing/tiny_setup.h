// SPDX-License-Identifier: Apache-2.0
// eval/testing/tiny_setup.h: a tiny random model with its tokenizer and template, and made data,
// for tests of evaluation.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/isa.h"
#include "base/testing/temp_path.h"
#include "base/thread_pool.h"
#include "eval/dataset.h"
#include "model/model.h"
#include "model/model_source.h"
#include "model/testing/tiny_model.h"
#include "model/tokenizer_source.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvik::eval::testing {

// Items of every workload, `n` of each, with texts of many lengths.
inline std::vector<EvalItem> MadeItems(int n) {
  std::vector<EvalItem> items;
  for (int i = 0; i < n; ++i) {
    const std::string number = std::to_string(i);
    const std::string more(static_cast<size_t>(3 * i % 40), 'x');
    items.push_back({.workload = "math",
                     .prompt = "What is " + number + " + 1? " + more,
                     .context = "",
                     .title = "",
                     .reference = number + "+1=<<" + number + "+1=" + std::to_string(i + 1) + ">>" +
                                  std::to_string(i + 1) + "\n#### " + std::to_string(i + 1),
                     .answers = {}});
    items.push_back({.workload = "qa",
                     .prompt = "who is number " + number,
                     .context = "Number " + number + " is Ann" + number + "." + more,
                     .title = "Title " + number,
                     .reference = "",
                     .answers = {"Ann" + number}});
    items.push_back({.workload = "summarization",
                     .prompt = "Story " + number + ": " + std::string(10, 'w') + " it rained. " +
                               more + " " + std::string(static_cast<size_t>(i) * 20, 'y') + " end.",
                     .context = "",
                     .title = "",
                     .reference = "Rain in story " + number + ".",
                     .answers = {}});
    items.push_back({.workload = "other",
                     .prompt = "Tell me of " + number,
                     .context = "",
                     .title = "",
                     .reference = "",
                     .answers = {}});
  }
  return items;
}

struct TinySetup {
  explicit TinySetup(const model::testing::TinyModelOptions& tiny = {}, int threads = 1,
                     model::ModelOptions options = {.isa = Isa::kScalar, .max_batch_rows = 64})
      : pool(threads) {
    const std::string path = kvik::testing::TempPath("tiny.gguf");
    EXPECT_TRUE(model::testing::WriteTinyGguf(tiny, path));
    auto source = model::ModelSource::Open(path).value();
    tokenizer = model::LoadTokenizer(*source).value();
    chat_template = std::make_unique<text::ChatTemplate>(
        text::ChatTemplate::Parse(source->chat_template()).value());
    model = model::Model::Load(*source, options, pool).value();
  }

  ThreadPool pool;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;
  std::unique_ptr<model::Model> model;
};

}  // namespace kvik::eval::testing
