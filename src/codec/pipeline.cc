// SPDX-License-Identifier: Apache-2.0
#include "codec/pipeline.h"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>

#include "base/sha256.h"
#include "codec/arg_text.h"
#include "codec/registry.h"

namespace kvik::codec {
namespace {

constexpr size_t kMaxText = 4096;
constexpr int kMaxNesting = 3;  // name(word(number))
constexpr size_t kMaxStages = 16;

// A stage as written: not yet looked up.
struct WrittenStage {
  std::string name;
  std::vector<std::pair<std::string, ArgValue>> args;
};
using WrittenChain = std::vector<WrittenStage>;
struct WrittenPart {
  WrittenChain key;
  WrittenChain value;
};

bool IsLetter(char c) { return c >= 'a' && c <= 'z'; }
bool IsNumeric(char c) { return (c >= '0' && c <= '9') || c == '-' || c == '.'; }
bool IsNameRest(char c) { return IsLetter(c) || (c >= '0' && c <= '9') || c == '-' || c == '_'; }

// Recursive descent over the grammar of pipeline.h; nesting is bounded.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<WrittenPart> Part() {
    WrittenPart part;
    if (Take("k:")) {
      KVIK_ASSIGN(part.key, Chain());
      if (!Take("|") || !Take("v:")) {
        return Wrong("\"|v:\"");
      }
      KVIK_ASSIGN(part.value, Chain());
      return part;
    }
    KVIK_ASSIGN(part.key, Chain());
    part.value = part.key;
    return part;
  }

  Result<void> Arrow() {
    if (!Take("->")) {
      return Wrong("\"->\"");
    }
    return {};
  }

  Result<void> End() {
    SkipBlanks();
    if (at_ != text_.size()) {
      return Wrong("the end");
    }
    return {};
  }

 private:
  Result<WrittenChain> Chain() {
    WrittenChain chain;
    do {
      KVIK_ASSIGN(WrittenStage stage, Stage());
      chain.push_back(std::move(stage));
      if (chain.size() > kMaxStages) {
        return Err(ErrorCode::kInvalidInput, "a chain has more than %zu stages", kMaxStages);
      }
    } while (Take("+"));
    return chain;
  }

  Result<WrittenStage> Stage() {
    WrittenStage stage;
    KVIK_ASSIGN(stage.name, Name("the name of a stage"));
    if (Take("(") && !Take(")")) {
      do {
        KVIK_ASSIGN(ArgValue value, Value(1));
        std::string name;
        if (!value.word.empty() && value.list.empty() && Take("=")) {
          name = std::move(value.word);
          KVIK_ASSIGN(value, Value(1));
        }
        stage.args.emplace_back(std::move(name), std::move(value));
      } while (Take(","));
      if (!Take(")")) {
        return Wrong("\",\" or \")\"");
      }
    }
    return stage;
  }

  Result<ArgValue> Value(int nesting) {
    SkipBlanks();
    if (at_ < text_.size() && IsNumeric(text_[at_])) {
      ArgValue value;
      const char* const first = text_.data() + at_;
      const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), value.number);
      if (error != std::errc() || !std::isfinite(value.number)) {
        return Wrong("a number");
      }
      at_ += static_cast<size_t>(end - first);
      return value;
    }
    ArgValue value;
    KVIK_ASSIGN(value.word, Name("a number or a word"));
    if (Take("(")) {
      if (nesting >= kMaxNesting) {
        return Err(ErrorCode::kInvalidInput, "values nest deeper than %d levels", kMaxNesting);
      }
      do {
        KVIK_ASSIGN(ArgValue item, Value(nesting + 1));
        value.list.push_back(std::move(item));
      } while (Take(","));
      if (!Take(")")) {
        return Wrong("\",\" or \")\"");
      }
    }
    return value;
  }

  Result<std::string> Name(const char* what) {
    SkipBlanks();
    const size_t first = at_;
    if (at_ < text_.size() && IsLetter(text_[at_])) {
      while (at_ < text_.size() && IsNameRest(text_[at_]) && text_.substr(at_, 2) != "->") {
        ++at_;
      }
    }
    if (at_ == first) {
      return Wrong(what);
    }
    return std::string(text_.substr(first, at_ - first));
  }

  void SkipBlanks() {
    while (at_ < text_.size() && text_[at_] == ' ') {
      ++at_;
    }
  }

  bool Take(std::string_view token) {
    SkipBlanks();
    if (text_.substr(at_, token.size()) != token) {
      return false;
    }
    at_ += token.size();
    return true;
  }

  [[nodiscard]] Error Wrong(const char* wanted) {
    SkipBlanks();
    std::string found = "the text ends";
    if (at_ != text_.size()) {
      found.assign(1, '"').append(Printable(text_.substr(at_, 12))).append("\" stands");
    }
    return Err(ErrorCode::kInvalidInput, "column %zu: %s where %s should be", at_ + 1,
               found.c_str(), wanted);
  }

  static std::string Printable(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
      if (c < ' ' || c > '~') {
        c = '?';
      }
    }
    return out;
  }

  std::string_view text_;
  size_t at_ = 0;
};

Result<StageSpec> Resolve(const WrittenStage& written, StageKind kind) {
  StageSpec stage;
  stage.module = FindStage(kind, written.name);
  if (stage.module == nullptr) {
    std::string known;
    for (const StageModule* module : AllStages()) {
      if (module->kind == kind) {
        known += (known.empty() ? "" : ", ") + module->name;
      }
    }
    const char* const kinds[] = {"selector", "transform", "quantizer", "coder"};
    return Error{ErrorCode::kInvalidInput, std::string("there is no ") +
                                               kinds[static_cast<size_t>(kind)] + " \"" +
                                               written.name + "\"; there are: " + known};
  }
  KVIK_ASSIGN(stage.args, StageArgs::Check(written.name, stage.module->params, written.args));
  return stage;
}

// Splits a selector off and looks the transforms up. `none` is the empty chain.
Result<void> ResolveTransforms(const WrittenChain& chain, PartSpec& part, StageSpec& selector) {
  for (size_t i = 0; i < chain.size(); ++i) {
    const WrittenStage& written = chain[i];
    if (written.name == "none") {
      if (chain.size() != 1 || !written.args.empty()) {
        return Err(ErrorCode::kInvalidInput,
                   "none is the empty chain of transforms: it stands alone, without arguments");
      }
      return {};
    }
    if (FindStage(StageKind::kSelector, written.name) != nullptr) {
      if (i != 0) {
        return Err(ErrorCode::kInvalidInput,
                   "%s chooses which slots are kept, so it stands before all transforms",
                   written.name.c_str());
      }
      KVIK_ASSIGN(selector, Resolve(written, StageKind::kSelector));
      continue;
    }
    KVIK_ASSIGN(StageSpec stage, Resolve(written, StageKind::kTransform));
    part.transforms.push_back(std::move(stage));
  }
  return {};
}

Result<StageSpec> ResolveOne(const WrittenChain& chain, StageKind kind) {
  if (chain.size() != 1) {
    return Err(ErrorCode::kInvalidInput, "there is exactly one %s, not a chain: \"%s+%s\"",
               kind == StageKind::kQuantizer ? "quantizer" : "coder", chain[0].name.c_str(),
               chain[1].name.c_str());
  }
  return Resolve(chain[0], kind);
}

std::optional<std::string> RefusalOf(const StageSpec& stage, const PipelineSpec& pipeline,
                                     kv::KvPart part, size_t index) {
  if (stage.module == nullptr || stage.module->refuse == nullptr) {
    return std::nullopt;
  }
  return stage.module->refuse(stage.args, pipeline, part, index);
}

Result<void> CheckLegal(const PipelineSpec& pipeline) {
  for (const kv::KvPart which : {kv::KvPart::kKey, kv::KvPart::kValue}) {
    const PartSpec& part = pipeline.part(which);
    const auto check = [&](const StageSpec& stage, size_t index) -> Result<void> {
      if (auto reason = RefusalOf(stage, pipeline, which, index)) {
        return Error{ErrorCode::kInvalidInput,
                     std::string(which == kv::KvPart::kKey ? "keys: " : "values: ") +
                         stage.module->name + ": " + *reason};
      }
      return {};
    };
    KVIK_TRY(check(pipeline.selector, 0));
    for (size_t i = 0; i < part.transforms.size(); ++i) {
      KVIK_TRY(check(part.transforms[i], i));
    }
    KVIK_TRY(check(part.quantizer, 0));
    KVIK_TRY(check(part.coder, 0));
  }
  return {};
}

Result<PipelineSpec> ParseParts(std::string_view text) {
  Reader reader(text);
  KVIK_ASSIGN(const WrittenPart transforms, reader.Part());
  KVIK_TRY(reader.Arrow());
  KVIK_ASSIGN(const WrittenPart quantizer, reader.Part());
  KVIK_TRY(reader.Arrow());
  KVIK_ASSIGN(const WrittenPart coder, reader.Part());
  KVIK_TRY(reader.End());

  PipelineSpec pipeline;
  StageSpec value_selector;
  KVIK_TRY(ResolveTransforms(transforms.key, pipeline.key, pipeline.selector));
  KVIK_TRY(ResolveTransforms(transforms.value, pipeline.value, value_selector));
  if (!(pipeline.selector == value_selector)) {
    return Err(ErrorCode::kInvalidInput,
               "keys and values must keep the same slots: write the same selector for both");
  }
  KVIK_ASSIGN(pipeline.key.quantizer, ResolveOne(quantizer.key, StageKind::kQuantizer));
  KVIK_ASSIGN(pipeline.value.quantizer, ResolveOne(quantizer.value, StageKind::kQuantizer));
  KVIK_ASSIGN(pipeline.key.coder, ResolveOne(coder.key, StageKind::kCoder));
  KVIK_ASSIGN(pipeline.value.coder, ResolveOne(coder.value, StageKind::kCoder));
  KVIK_TRY(CheckLegal(pipeline));
  return pipeline;
}

std::string Alike(const std::string& key, const std::string& value) {
  return key == value ? key : "k:" + key + "|v:" + value;
}

std::string TransformsText(const PipelineSpec& pipeline, const PartSpec& part) {
  std::string text = pipeline.selector.module == nullptr ? "" : pipeline.selector.ToString();
  const std::string rest = part.TransformsBefore(part.transforms.size());
  if (text.empty() || rest.empty()) {
    text += rest;
  } else {
    text += "+";
    text += rest;
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::string StageSpec::ToString() const {
  std::string text = module->name;
  bool first = true;
  for (const auto& [name, value] : args.Canonical()) {
    text += (first ? "(" : ",") + name + "=" + ToText(value);
    first = false;
  }
  return first ? text : text + ")";
}

std::string PartSpec::TransformsBefore(size_t n) const {
  std::string text;
  for (size_t i = 0; i < n; ++i) {
    text += i == 0 ? "" : "+";
    text += transforms[i].ToString();
  }
  return text;
}

Result<PipelineSpec> PipelineSpec::Parse(std::string_view text) {
  if (text.size() > kMaxText) {
    return Err(ErrorCode::kInvalidInput, "a pipeline of %zu characters; at most %zu are read",
               text.size(), kMaxText);
  }
  auto pipeline = ParseParts(text);
  if (!pipeline) {
    return pipeline.error().Wrap("pipeline \"" + std::string(text.substr(0, 200)) + "\"");
  }
  return pipeline;
}

std::string PipelineSpec::ToString() const {
  return Alike(TransformsText(*this, key), TransformsText(*this, value)) + " -> " +
         Alike(key.quantizer.ToString(), value.quantizer.ToString()) + " -> " +
         Alike(key.coder.ToString(), value.coder.ToString());
}

uint64_t PipelineSpec::Hash() const {
  const std::string text = ToString();
  return ShortHash(Sha256Of(std::as_bytes(std::span(text))));
}

namespace {
const char* PartName(kv::KvPart which) { return which == kv::KvPart::kKey ? "/k/" : "/v/"; }
}  // namespace

std::string SideKey(const PartSpec& part, kv::KvPart which, size_t index) {
  const StageSpec& stage = index < part.transforms.size() ? part.transforms[index] : part.quantizer;
  return stage.module->name + PartName(which) + part.TransformsBefore(index);
}

std::string TablesKey(const PartSpec& part, kv::KvPart which) {
  return std::string("tables") + PartName(which) + part.TransformsBefore(part.transforms.size()) +
         "->" + part.quantizer.ToString();
}

}  // namespace kvik::codec
