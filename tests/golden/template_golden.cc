// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "golden/golden_files.h"
#include "golden/report.h"
#include "text/chat_template.h"
#include "text/jinja_value.h"

namespace kvik::golden {
namespace {

// The references were rendered at this time: 2026-01-02 00:00:00 UTC.
constexpr int64_t kNowSeconds = 1767312000;

Result<std::string> Render(const std::string& source, const Json& input) {
  KVIK_ASSIGN(const text::ChatTemplate parsed, text::ChatTemplate::Parse(source));
  KVIK_ASSIGN(const text::JinjaValue context, text::JinjaValue::FromJson(input.dump()));
  return parsed.RenderContext(context, kNowSeconds);
}

// One case holds the expected "text" or an "error".
void CheckCase(const std::string& check, const std::string& source, const Json& golden,
               Report& report, int& different) {
  ++report.templates.compared;
  const Result<std::string> text = Render(source, golden.at("input"));
  if (golden.contains("error")) {
    if (text) {
      ++different;
      report.Fail(check, "renders where the reference has " + golden.at("error").dump());
    }
  } else if (!text) {
    ++different;
    report.Fail(check, text.error().message);
  } else if (*text != golden.at("text").get<std::string>()) {
    ++different;
    report.Fail(check,
                "gives " + Json(*text).dump() + ", the reference " + golden.at("text").dump());
  }
}

void CheckChatTemplates(const Options& options, Report& report) {
  const std::string path = options.golden_folder + "/chat_templates.json";
  if (!FileExists(path)) {
    return report.Skip("chat templates", path + " is not there");
  }
  const Json golden = ReadJson(path);
  int different = 0;
  for (const Json& one : golden.at("cases")) {
    const auto name = one.at("template").get<std::string>();
    CheckCase("chat template " + name + ", case " + one.at("case").get<std::string>(),
              golden.at("templates").at(name).get<std::string>(), one, report, different);
  }
  if (different == 0) {
    report.Pass("chat templates", std::to_string(golden.at("cases").size()) + " cases of " +
                                      std::to_string(golden.at("templates").size()) +
                                      " templates render as the reference");
  }
}

void CheckLanguage(const Options& options, Report& report) {
  const std::string path = options.golden_folder + "/jinja_language.json";
  if (!FileExists(path)) {
    return report.Skip("template language", path + " is not there");
  }
  const Json golden = ReadJson(path);
  int different = 0;
  for (const Json& one : golden) {
    const auto source = one.at("template").get<std::string>();
    CheckCase("template " + Json(source).dump(), source, one, report, different);
  }
  if (different == 0) {
    report.Pass("template language",
                std::to_string(golden.size()) + " cases render or fail as the reference");
  }
}

}  // namespace

void CheckTemplates(const Options& options, Report& report) {
  CheckChatTemplates(options, report);
  CheckLanguage(options, report);
}

}  // namespace kvik::golden
