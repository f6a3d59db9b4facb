// SPDX-License-Identifier: Apache-2.0
// tests/golden/report.h: what was compared with reference values, and how it went.
#pragma once

#include <cstdint>
#include <string>

namespace kvik::golden {

struct Options {
  std::string golden_folder;
  std::string models_folder;
  std::string only;  // of the checks of logits, those whose name contains this
};

// Counts and prints. One line per check, one line in the end.
class Report {
 public:
  struct Counts {
    int64_t compared = 0;
    int64_t skipped = 0;
  };
  Counts strings;
  Counts templates;
  Counts positions;

  void Pass(const std::string& check, const std::string& detail);
  void Fail(const std::string& check, const std::string& detail);
  // A check that could not run: the file that is not there, or what this CPU lacks.
  void Skip(const std::string& check, const std::string& reason);
  // A figure that binds nothing.
  static void Note(const std::string& check, const std::string& detail);

  [[nodiscard]] int failures() const { return failures_; }
  [[nodiscard]] bool nothing_compared() const {
    return strings.compared + templates.compared + positions.compared == 0;
  }
  void PrintSummary() const;

 private:
  int failures_ = 0;
  int skipped_checks_ = 0;
};

// Token ids of every golden string of both tokenizers.
void CheckTokenizers(const Options& options, Report& report);
// Chat templates and language cases against Python's jinja2.
void CheckTemplates(const Options& options, Report& report);
// Logits and greedy texts against float32 references.
void CheckLanguageModels(const Options& options, Report& report);

}  // namespace kvik::golden
