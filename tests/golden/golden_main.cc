// SPDX-License-Identifier: Apache-2.0
// kvik_golden: compares tokenizers, chat templates and language models with reference values made
// by other programs. The references are data in a folder that need not be there: what is missing is
// skipped by name. Exit status 1 on a difference, or when a folder was named with KVIK_GOLDEN and
// nothing in it was compared; 77 when nothing was compared.
//   kvik_golden [SUBSTRING]   of the checks of logits, only those whose name contains it
#include <cstdio>
#include <cstdlib>
#include <string>

#include "golden/report.h"

namespace {

std::string FromEnvironment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  using kvik::golden::Options;
  const std::string cache =
      FromEnvironment("XDG_CACHE_HOME", FromEnvironment("HOME", ".") + "/.cache");
  Options options;
  options.golden_folder = FromEnvironment("KVIK_GOLDEN", "../shared/data/golden");
  options.models_folder = FromEnvironment("KVIK_MODELS", cache + "/kvik/models");
  options.only = argc > 1 ? argv[1] : "";
  std::printf("golden values from %s (KVIK_GOLDEN), models from %s (KVIK_MODELS)\n",
              options.golden_folder.c_str(), options.models_folder.c_str());
  kvik::golden::Report report;
  kvik::golden::CheckTokenizers(options, report);
  kvik::golden::CheckTemplates(options, report);
  kvik::golden::CheckLanguageModels(options, report);
  const bool named = std::getenv("KVIK_GOLDEN") != nullptr;
  if (report.nothing_compared() && named) {
    report.Fail("golden", "KVIK_GOLDEN is set, but nothing was compared");
  }
  report.PrintSummary();
  if (report.failures() > 0) {
    return 1;
  }
  return report.nothing_compared() ? 77 : 0;
}
