// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include "golden/golden_files.h"
#include "golden/report.h"
#include "model/model_source.h"
#include "model/tokenizer_source.h"
#include "text/tokenizer.h"

namespace kvik::golden {
namespace {

void CheckTokenizer(const Options& options, const GoldenModel& model, Report& report) {
  const std::string check = std::string("tokenizer ") + model.key;
  const std::string golden = options.golden_folder + "/tokenizer_" + model.key + ".jsonl";
  const std::string path = options.models_folder + "/" + model.file;
  if (!FileExists(golden)) {
    return report.Skip(check, golden + " is not there");
  }
  const std::vector<Json> lines = ReadJsonLines(golden);
  if (!FileExists(path)) {
    report.strings.skipped += static_cast<int64_t>(lines.size());
    return report.Skip(check, path + " is not there");
  }
  const auto source = model::ModelSource::Open(path);
  if (!source) {
    return report.Fail(check, source.error().message);
  }
  const auto tokenizer = model::LoadTokenizer(**source);
  if (!tokenizer) {
    return report.Fail(check, tokenizer.error().message);
  }
  int different = 0;
  std::string first;
  for (const Json& line : lines) {
    const auto text = line.at("text").get<std::string>();
    const auto expected = line.at("ids").get<std::vector<TokenId>>();
    text::EncodeOptions encode;
    encode.parse_special = line.value("parse_special", false);
    ++report.strings.compared;
    if ((*tokenizer)->Encode(text, encode) != expected && ++different == 1) {
      first = line.at("text").dump();
    }
  }
  const std::string count = std::to_string(lines.size()) + " strings";
  if (different > 0) {
    return report.Fail(check,
                       std::to_string(different) + " of " + count + " differ, first " + first);
  }
  report.Pass(check, count + " give the reference's token ids");
}

}  // namespace

void CheckTokenizers(const Options& options, Report& report) {
  for (const GoldenModel& model : kGoldenModels) {
    CheckTokenizer(options, model, report);
  }
}

}  // namespace kvik::golden
