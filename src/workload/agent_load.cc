// SPDX-License-Identifier: Apache-2.0
#include "workload/agent_load.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/fnv.h"
#include "base/json_parse.h"
#include "base/rng.h"
#include "workload/distributions.h"
#include "workload/prose.h"

namespace kvik::workload {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kBytesPerToken = 3;

// How long tools take, mean and spread of the logarithm; the n-th tool has the n-th, modulo.
struct ToolTime {
  double mean_s;
  double sigma;
};
constexpr ToolTime kToolTimes[] = {{1.5, 0.5}, {4.0, 0.8}, {0.3, 0.4}, {8.0, 1.0}, {0.8, 0.6}};

Json Dictionary(const Json& properties, std::vector<std::string> required) {
  return {{"type", "dict"}, {"properties", properties}, {"required", std::move(required)}};
}

Json Property(const char* type, const char* description) {
  return {{"type", type}, {"description", description}};
}

Result<AgentTool> ToTool(const Json& json) {
  AgentTool tool;
  const auto name = json.find("name");
  if (name == json.end() || !name->is_string()) {
    return Err(ErrorCode::kInvalidInput, "field \"name\" is missing or not a string");
  }
  tool.name = name->get<std::string>();
  tool.doc = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  const Json parameters = json.value("parameters", Json::object());
  const Json properties =
      parameters.is_object() ? parameters.value("properties", Json::object()) : Json::object();
  const Json required =
      parameters.is_object() ? parameters.value("required", Json::array()) : Json::array();
  for (const Json& argument : required) {
    const auto property = argument.is_string() && properties.is_object()
                              ? properties.find(argument.get_ref<const std::string&>())
                              : properties.end();
    const bool typed = property != properties.end() && property->is_object() &&
                       property->contains("type") && (*property)["type"].is_string();
    if (!argument.is_string()) {
      return Err(ErrorCode::kInvalidInput, "field \"required\" holds what is not a name");
    }
    tool.arguments.emplace_back(argument.get<std::string>(),
                                typed ? (*property)["type"].get<std::string>() : "string");
  }
  return tool;
}

template <typename Fn>
Result<void> ForEachObject(std::string_view text, const char* what, const Fn& fn) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    const std::string at = std::string(what) + ", line " + std::to_string(number);
    Result<Json> json = ParseJson<Json>(line, {.max_bytes = size_t{1} << 22, .max_members = 4096});
    if (!json) {
      return json.error().Wrap(at);
    }
    if (!json->is_object()) {
      return Err(ErrorCode::kInvalidInput, "%s: is not a JSON object", at.c_str());
    }
    if (const Result<void> taken = fn(*json); !taken) {
      return taken.error().Wrap(at);
    }
  }
  return {};
}

// The text of a call as models trained on tools write it.
std::string CallText(Rng& rng, const AgentTool& tool) {
  Json arguments = Json::object();
  for (const auto& [name, type] : tool.arguments) {
    if (type == "integer" || type == "number" || type == "float") {
      arguments[name] = rng.Range(1, 500);
    } else if (type == "boolean") {
      arguments[name] = rng.Below(2) == 1;
    } else if (type == "array") {
      arguments[name] = Json::array({Word(rng), Word(rng)});
    } else if (type == "dict" || type == "object") {
      arguments[name] = {{Word(rng), Word(rng)}};
    } else if (name == "url") {
      arguments[name] = Concat({"https://www.", Word(rng), ".org/", Word(rng), "/", Word(rng)});
    } else {
      arguments[name] = Concat({Word(rng), " ", Word(rng), " ", Word(rng)});
    }
  }
  const Json call = {{"name", tool.name}, {"arguments", arguments}};
  return "<tool_call>\n" + call.dump() + "\n</tool_call>";
}

std::string SystemText(const AgentMaterial& material) {
  std::string text =
      "You answer questions with the help of tools. Think first, then call one tool by writing "
      "<tool_call>\n{\"name\": ..., \"arguments\": {...}}\n</tool_call>. When you know enough, "
      "answer in one paragraph. The tools are:\n";
  for (const AgentTool& tool : material.tools) {
    text += tool.doc + "\n";
  }
  return text;
}

// One session, step by step.
class SessionWriter {
 public:
  SessionWriter(const AgentMaterial& material, const AgentLoadOptions& options, size_t number)
      : material_(material), options_(options), rng_(options.seed, number + 1) {
    Say("system", SystemText(material));
    Say("user", material.questions[number % material.questions.size()]);
  }

  PlannedSession Write() {
    const int64_t tool_calls = rng_.Range(options_.min_tool_calls, options_.max_tool_calls);
    double pause_s = 0;
    for (int64_t i = 0; i < tool_calls; ++i) {
      const size_t which = rng_.Below(material_.tools.size());
      const std::string call = Concat({"I need to know more about the ", Word(rng_), ". ",
                                       Prose(rng_, static_cast<int32_t>(rng_.Range(10, 40))), "\n",
                                       CallText(rng_, material_.tools[which])});
      const double words = DrawLogNormal(
          rng_, std::max(1.0, static_cast<double>(options_.result_words) / options_.scale), 0.8);
      const std::string result = "Result of " + material_.tools[which].name + ": " +
                                 Prose(rng_, static_cast<int32_t>(std::min(words, 1e6)) + 1);
      if (bytes_ + call.size() + result.size() + kAnswerBytes > MaxBytes()) {
        break;
      }
      Answer(pause_s, call);
      session_.calls.back().calls_tool = true;
      session_.calls.back().tool = Fnv1a(material_.tools[which].name);
      Say("user", result);
      const ToolTime& time = kToolTimes[which % std::size(kToolTimes)];
      pause_s = DrawLogNormal(rng_, time.mean_s, time.sigma);
    }
    Answer(pause_s, Concat({"The answer is the ", Word(rng_), ". ",
                            Prose(rng_, static_cast<int32_t>(rng_.Range(30, 80)))}));
    return std::move(session_);
  }

 private:
  static constexpr size_t kAnswerBytes = 800;  // no last answer is longer

  [[nodiscard]] size_t MaxBytes() const {
    return static_cast<size_t>(options_.context_tokens / options_.scale) * kBytesPerToken;
  }
  void Say(const char* role, std::string text) {
    bytes_ += text.size();
    messages_.push_back({role, std::move(text)});
  }
  void Answer(double pause_s, std::string text) {
    bytes_ += text.size();
    PlannedCall call;
    call.gap_s = pause_s;
    call.prompt = std::move(messages_);
    call.max_tokens = static_cast<int32_t>(text.size() / kBytesPerToken) + 1;
    call.output = std::move(text);
    session_.calls.push_back(std::move(call));
    messages_.clear();
  }

  const AgentMaterial& material_;
  const AgentLoadOptions& options_;
  Rng rng_;
  PlannedSession session_;
  std::vector<PlannedMessage> messages_;  // not sent yet
  size_t bytes_ = 0;                      // of the conversation
};

}  // namespace

AgentMaterial MadeUpAgentMaterial() {
  AgentMaterial material;
  const auto add = [&](const char* name, const char* description, const Json& parameters) {
    material.tools.push_back(
        ToTool({{"name", name}, {"description", description}, {"parameters", parameters}}).value());
  };
  add("search_pages", "Finds pages about some words and returns their beginnings.",
      Dictionary({{"keywords", Property("string", "What to look for.")},
                  {"max_results", Property("integer", "How many pages at most.")}},
                 {"keywords"}));
  add("read_page", "Returns the text of a page without its layout.",
      Dictionary({{"url", Property("string", "The address, with http:// or https://.")},
                  {"max_words", Property("integer", "Where to cut the text.")}},
                 {"url"}));
  add("calculate", "Evaluates an arithmetic expression and returns a number.",
      Dictionary({{"expression", Property("string", "For example (3 + 4) * 2.")}}, {"expression"}));
  add("run_query", "Runs a query on the table of facts and returns rows as text.",
      Dictionary({{"table", Property("string", "The name of the table.")},
                  {"condition", Property("string", "Which rows.")},
                  {"limit", Property("integer", "How many rows at most.")}},
                 {"table", "condition", "limit"}));
  add("read_notes", "Returns what was noted in earlier conversations about a subject.",
      Dictionary({{"subject", Property("string", "What the notes are about.")}}, {"subject"}));
  Rng rng(0x7175657374696F6E);
  for (int i = 0; i < 100; ++i) {
    material.questions.push_back(
        Concat({"Some places are known for their ", Word(rng), ". In which year did the ",
                Word(rng), " of the ", Word(rng), " that stands beside the oldest ", Word(rng),
                " open, and who paid for the ", Word(rng), "? Give one name and one number."}));
  }
  return material;
}

Result<AgentMaterial> ParseAgentMaterial(std::string_view questions, std::string_view tools) {
  AgentMaterial material;
  KVIK_TRY(ForEachObject(questions, "questions", [&](const Json& json) -> Result<void> {
    const auto question = json.find("question");
    if (question == json.end() || !question->is_array() || question->empty() ||
        !question->front().is_array() || question->front().empty() ||
        !question->front().front().is_object()) {
      return Err(ErrorCode::kInvalidInput, "field \"question\" is not a list of lists of messages");
    }
    const Json& message = question->front().front();
    const auto content = message.find("content");
    if (content == message.end() || !content->is_string()) {
      return Err(ErrorCode::kInvalidInput, "the first message has no \"content\"");
    }
    material.questions.push_back(content->get<std::string>());
    return {};
  }));
  KVIK_TRY(ForEachObject(tools, "functions", [&](const Json& json) -> Result<void> {
    KVIK_ASSIGN(AgentTool tool, ToTool(json));
    material.tools.push_back(std::move(tool));
    return {};
  }));
  if (material.questions.empty() || material.tools.empty()) {
    return Err(ErrorCode::kInvalidInput, "no questions or no functions in the files");
  }
  return material;
}

LoadPlan PlanAgent(const AgentMaterial& material, const AgentLoadOptions& options) {
  KVIK_CHECK(!material.questions.empty() && !material.tools.empty() && options.scale > 0);
  KVIK_CHECK(options.min_tool_calls <= options.max_tool_calls);
  LoadPlan plan;
  for (int32_t i = 0; i < options.sessions; ++i) {
    plan.sessions.push_back(SessionWriter(material, options, static_cast<size_t>(i)).Write());
  }
  return plan;
}

}  // namespace kvik::workload
