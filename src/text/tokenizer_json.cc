// SPDX-License-Identifier: Apache-2.0
// tokenizer.json is a pipeline written as data: normalizer, pre_tokenizer, model, post_processor,
// decoder, each a component or a Sequence of them. Components become steps of a TokenizerSpec; one
// that kvik does not have is an error that names it, because skipping it would give wrong ids
// without a word.
#include "text/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_parse.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_regex.h"
#include "text/tokenizer_utf8.h"

namespace kvik::text {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLimits = {.max_bytes = size_t{512} << 20, .max_nesting = 64};
constexpr size_t kMaxSteps = 64;
// Ids need not be contiguous, but a few bytes of file must not ask for a large vocabulary.
constexpr size_t kMaxIdGaps = 65536;

// Words and runs of other characters. Here \w is Unicode's, not that of patterns in the file.
constexpr std::string_view kWhitespaceSplit =
    R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}\x{200C}\x{200D}]+|)"
    R"([^\s\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}\x{200C}\x{200D}]+)";

std::string Shown(std::string_view text) {
  std::string shown(text.substr(0, 60));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
  return shown;
}

Error Corrupt(const std::string& where, const char* what) {
  return Err(ErrorCode::kCorrupt, "tokenizer.json: %s %s", where.c_str(), what);
}

Error Unsupported(const std::string& where, const std::string& what) {
  return Err(ErrorCode::kUnsupported, "tokenizer.json: %s %s is not supported", where.c_str(),
             Shown(what).c_str());
}

// A JSON object and where it is, with typed access.
class Node {
 public:
  Node(const Json& json, std::string where) : json_(&json), where_(std::move(where)) {}

  [[nodiscard]] const std::string& where() const { return where_; }

  // Null if absent or null.
  [[nodiscard]] const Json* Field(const char* key) const {
    if (!json_->is_object()) {
      return nullptr;
    }
    const auto it = json_->find(key);
    return it == json_->end() || it->is_null() ? nullptr : &*it;
  }

  [[nodiscard]] Result<std::string> String(const char* key) const {
    const Json* field = Field(key);
    if (field == nullptr || !field->is_string()) {
      return Corrupt(Name(key), "is not a string");
    }
    return field->get_ref<const std::string&>();
  }
  [[nodiscard]] Result<std::string> StringOr(const char* key, const char* absent) const {
    return Field(key) == nullptr ? Result<std::string>(std::string(absent)) : String(key);
  }
  [[nodiscard]] Result<bool> BoolOr(const char* key, bool absent) const {
    const Json* field = Field(key);
    if (field == nullptr) {
      return absent;
    }
    if (!field->is_boolean()) {
      return Corrupt(Name(key), "is not true or false");
    }
    return field->get<bool>();
  }
  [[nodiscard]] Result<int64_t> IntOr(const char* key, int64_t absent) const {
    const Json* field = Field(key);
    if (field == nullptr) {
      return absent;
    }
    if (!field->is_number_integer()) {
      return Corrupt(Name(key), "is not an integer");
    }
    return field->is_number_unsigned() && field->get<uint64_t>() > INT64_MAX
               ? INT64_MAX
               : field->get<int64_t>();
  }
  [[nodiscard]] Result<std::string> Type() const {
    if (!json_->is_object()) {
      return Corrupt(where_, "is not an object");
    }
    return String("type");
  }
  [[nodiscard]] std::string Name(const char* key) const { return where_ + "." + key; }

 private:
  const Json* json_;
  std::string where_;
};

// A component, or the components of a Sequence (nested ones in order), which lie in `list_key`.
Result<void> Flatten(const Json& json, const std::string& where, const char* list_key,
                     std::vector<Node>* out) {
  const Node node(json, where);
  KVIK_ASSIGN(const std::string type, node.Type());
  if (type != "Sequence") {
    if (out->size() == kMaxSteps) {
      return Unsupported(where, "with more than 64 steps");
    }
    out->push_back(node);
    return {};
  }
  const Json* list = node.Field(list_key);
  if (list == nullptr || !list->is_array()) {
    return Corrupt(node.Name(list_key), "is not a list");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    // Depth is bounded by that of the JSON.
    KVIK_TRY(Flatten((*list)[i], where + "[" + std::to_string(i) + "]", list_key, out));
  }
  return {};
}

Result<std::vector<Node>> Steps(const Node& root, const char* key, const char* list_key) {
  std::vector<Node> steps;
  if (const Json* json = root.Field(key)) {
    KVIK_TRY(Flatten(*json, key, list_key, &steps));
  }
  return steps;
}

struct Pattern {
  std::string text;
  bool is_regex = false;
};

// {"String": "..."} or {"Regex": "..."}.
Result<Pattern> ReadPattern(const Node& step) {
  const Json* json = step.Field("pattern");
  if (json == nullptr) {
    return Corrupt(step.Name("pattern"), "is absent");
  }
  const Node pattern(*json, step.Name("pattern"));
  const bool is_regex = pattern.Field("Regex") != nullptr;
  KVIK_ASSIGN(std::string text, pattern.String(is_regex ? "Regex" : "String"));
  return Pattern{std::move(text), is_regex};
}

Result<NormalizerStep> ReadNormalizer(const Node& node) {
  using Kind = NormalizerStep::Kind;
  KVIK_ASSIGN(const std::string type, node.Type());
  static const std::map<std::string, Kind> kPlain = {{"NFC", Kind::kNfc},
                                                     {"NFD", Kind::kNfd},
                                                     {"NFKC", Kind::kNfkc},
                                                     {"NFKD", Kind::kNfkd},
                                                     {"Lowercase", Kind::kLowercase},
                                                     {"StripAccents", Kind::kStripAccents}};
  NormalizerStep step;
  if (const auto it = kPlain.find(type); it != kPlain.end()) {
    step.kind = it->second;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    KVIK_ASSIGN(step.strip_left, node.BoolOr("strip_left", true));
    KVIK_ASSIGN(step.strip_right, node.BoolOr("strip_right", true));
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    KVIK_ASSIGN(step.content, node.String("prepend"));
  } else if (type == "Replace") {
    KVIK_ASSIGN(Pattern pattern, ReadPattern(node));
    step.kind = pattern.is_regex ? Kind::kReplaceRegex : Kind::kReplace;
    step.pattern = std::move(pattern.text);
    KVIK_ASSIGN(step.content, node.String("content"));
  } else {
    return Unsupported(node.where(), "normalizer '" + type + "'");
  }
  return step;
}

Result<SplitBehavior> ReadBehavior(const Node& node, const char* absent) {
  static const std::map<std::string, SplitBehavior> kBehaviors = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  KVIK_ASSIGN(const std::string name, node.StringOr("behavior", absent));
  const auto it = kBehaviors.find(name);
  if (it == kBehaviors.end()) {
    return Unsupported(node.where(), "behavior '" + name + "'");
  }
  return it->second;
}

PreTokenizerStep SplitBy(std::string_view regex, SplitBehavior behavior, bool invert = false) {
  return {.kind = PreTokenizerStep::Kind::kSplit,
          .pattern = std::string(regex),
          .behavior = behavior,
          .invert = invert};
}

// "prepend_scheme", or the older "add_prefix_space".
Result<PreTokenizerStep::Prepend> ReadPrepend(const Node& node) {
  using Prepend = PreTokenizerStep::Prepend;
  KVIK_ASSIGN(const bool add_prefix_space, node.BoolOr("add_prefix_space", true));
  KVIK_ASSIGN(const std::string scheme,
              node.StringOr("prepend_scheme", add_prefix_space ? "always" : "never"));
  if (scheme == "always") {
    return Prepend::kAlways;
  }
  if (scheme == "first") {
    return Prepend::kFirst;
  }
  if (scheme == "never") {
    return Prepend::kNever;
  }
  return Unsupported(node.where(), "prepend_scheme '" + scheme + "'");
}

Result<void> CheckReplacement(const Node& node) {
  KVIK_ASSIGN(const std::string replacement, node.StringOr("replacement", kSpaceSymbol.data()));
  if (replacement != kSpaceSymbol) {
    return Unsupported(node.where(), "replacement '" + replacement + "'");
  }
  return {};
}

// Appends one component's steps; `byte_level` is set by the component of that name, after which
// text is no longer text.
Result<void> ReadPreTokenizer(const Node& node, bool* byte_level, TokenizerSpec* spec) {
  KVIK_ASSIGN(const std::string type, node.Type());
  auto& steps = spec->pre_tokenizer;
  if (*byte_level) {
    return Unsupported(node.where(), "pre_tokenizer '" + type + "' after ByteLevel");
  }
  if (type == "ByteLevel") {
    KVIK_ASSIGN(const bool prefix_space, node.BoolOr("add_prefix_space", true));
    KVIK_ASSIGN(const bool use_regex, node.BoolOr("use_regex", true));
    if (prefix_space) {
      steps.push_back({.kind = PreTokenizerStep::Kind::kPrefixSpace});
    }
    if (use_regex) {
      steps.push_back(SplitBy(kGpt2Split, SplitBehavior::kIsolated));
    }
    *byte_level = true;
  } else if (type == "Split") {
    KVIK_ASSIGN(const Pattern pattern, ReadPattern(node));
    KVIK_ASSIGN(const SplitBehavior behavior, ReadBehavior(node, ""));
    KVIK_ASSIGN(const bool invert, node.BoolOr("invert", false));
    steps.push_back(SplitBy(pattern.is_regex ? pattern.text : TokenizerRegex::Quote(pattern.text),
                            behavior, invert));
  } else if (type == "Digits") {
    KVIK_ASSIGN(const bool individual, node.BoolOr("individual_digits", false));
    steps.push_back(SplitBy(individual ? kOneDigitSplit : R"(\p{N}+)", SplitBehavior::kIsolated));
  } else if (type == "Metaspace") {
    KVIK_TRY(CheckReplacement(node));
    PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kMetaspace};
    KVIK_ASSIGN(step.prepend, ReadPrepend(node));
    KVIK_ASSIGN(step.split, node.BoolOr("split", true));
    steps.push_back(std::move(step));
  } else if (type == "Whitespace") {
    steps.push_back(SplitBy(kWhitespaceSplit, SplitBehavior::kRemoved, true));
  } else if (type == "WhitespaceSplit") {
    steps.push_back(SplitBy(R"(\s)", SplitBehavior::kRemoved));
  } else if (type == "Punctuation") {
    KVIK_ASSIGN(const SplitBehavior behavior, ReadBehavior(node, "Isolated"));
    steps.push_back(SplitBy(R"([\p{P}!-/:-@\[-`{-~])", behavior));
  } else if (type == "BertPreTokenizer") {
    steps.push_back(SplitBy(R"(\s)", SplitBehavior::kRemoved));
    steps.push_back(SplitBy(R"([\p{P}!-/:-@\[-`{-~])", SplitBehavior::kIsolated));
  } else {
    return Unsupported(node.where(), "pre_tokenizer '" + type + "'");
  }
  return {};
}

Result<void> ReadDecoder(const Node& node, bool byte_level, bool* fused, TokenizerSpec* spec) {
  KVIK_ASSIGN(const std::string type, node.Type());
  if (type == "ByteLevel" && byte_level) {
    return {};
  }
  if (!byte_level) {
    if (type == "ByteFallback") {
      return {};
    }
    if (type == "Fuse") {
      *fused = true;
      return {};
    }
    if (type == "Metaspace") {
      KVIK_TRY(CheckReplacement(node));
      KVIK_ASSIGN(const PreTokenizerStep::Prepend prepend, ReadPrepend(node));
      spec->unescape_spaces = true;
      spec->strip_leading_space = prepend != PreTokenizerStep::Prepend::kNever;
      return {};
    }
    if (type == "Replace") {
      KVIK_ASSIGN(const Pattern pattern, ReadPattern(node));
      KVIK_ASSIGN(const std::string content, node.String("content"));
      if (!pattern.is_regex && pattern.text == kSpaceSymbol && content == " ") {
        spec->unescape_spaces = true;
        return {};
      }
    }
    if (type == "Strip") {
      KVIK_ASSIGN(const std::string content, node.String("content"));
      KVIK_ASSIGN(const int64_t start, node.IntOr("start", 0));
      KVIK_ASSIGN(const int64_t stop, node.IntOr("stop", 0));
      if (content == " " && stop == 0 && (start == 0 || (start == 1 && *fused))) {
        spec->strip_leading_space = start == 1;
        return {};
      }
    }
  }
  return Unsupported(node.where(),
                     "decoder '" + type + "' with these settings and this pre_tokenizer");
}

// {"id": ["..."], "ids": [n]} by name.
Result<TokenId> SpecialId(const Node& processor, const std::string& name,
                          const TokenizerSpec& spec) {
  const Json* all = processor.Field("special_tokens");
  if (all == nullptr) {
    return Corrupt(processor.Name("special_tokens"), "is absent");
  }
  const Node tokens(*all, processor.Name("special_tokens"));
  const Json* token = tokens.Field(name.c_str());
  const Json* ids = token == nullptr ? nullptr : Node(*token, "").Field("ids");
  if (ids == nullptr || !ids->is_array() || ids->size() != 1 || !(*ids)[0].is_number_unsigned()) {
    return Corrupt(tokens.where(), "does not give one id for each token");
  }
  const auto id = (*ids)[0].get<uint64_t>();
  if (id >= spec.pieces.size()) {
    return Corrupt(tokens.where(), "has an id outside the vocabulary");
  }
  return static_cast<TokenId>(id);
}

// What stands before the text becomes BOS, what stands after it EOS.
Result<void> AddAround(const Node& node, bool before, TokenId id, TokenizerSpec* spec) {
  std::optional<TokenId>& target = before ? spec->bos_id : spec->eos_id;
  bool& add = before ? spec->add_bos : spec->add_eos;
  if (add) {
    return Unsupported(node.where(), "post_processor with two tokens in one place");
  }
  target = id;
  add = true;
  return {};
}

Result<void> ReadPostProcessor(const Node& node, TokenizerSpec* spec) {
  KVIK_ASSIGN(const std::string type, node.Type());
  if (type == "ByteLevel") {
    return {};  // concerns offsets only
  }
  if (type == "TemplateProcessing") {
    const Json* single = node.Field("single");
    if (single == nullptr || !single->is_array()) {
      return Corrupt(node.Name("single"), "is not a list");
    }
    bool before = true;
    for (const Json& element : *single) {
      const Node item(element, node.Name("single"));
      if (item.Field("Sequence") != nullptr) {
        before = false;
        continue;
      }
      const Json* special = item.Field("SpecialToken");
      if (special == nullptr) {
        return Corrupt(item.where(), "has an element that is no Sequence and no SpecialToken");
      }
      KVIK_ASSIGN(const std::string name, Node(*special, item.where()).String("id"));
      KVIK_ASSIGN(const TokenId id, SpecialId(node, name, *spec));
      KVIK_TRY(AddAround(node, before, id, spec));
    }
    return {};
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    for (const bool before : {true, false}) {
      const char* key = before ? "cls" : "sep";
      const Json* pair = node.Field(key);
      if (pair == nullptr || !pair->is_array() || pair->size() != 2 ||
          !(*pair)[1].is_number_unsigned() || (*pair)[1].get<uint64_t>() >= spec->pieces.size()) {
        return Corrupt(node.Name(key), "is not a token and its id");
      }
      KVIK_TRY(AddAround(node, before, (*pair)[1].get<TokenId>(), spec));
    }
    return {};
  }
  return Unsupported(node.where(), "post_processor '" + type + "'");
}

// An id of `json` that the vocabulary may have. `limit` is the number of tokens that the file
// spells out.
Result<TokenId> ReadId(const Json& json, const std::string& where, size_t limit) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() >= limit + kMaxIdGaps) {
    return Corrupt(where, "has an id that is no number or far too large");
  }
  return json.get<TokenId>();
}

void PutPiece(TokenId id, std::string piece, TokenType type, TokenizerSpec* spec) {
  const auto index = static_cast<size_t>(id);
  if (index >= spec->pieces.size()) {
    spec->pieces.resize(index + 1);
    spec->types.resize(index + 1, TokenType::kUnused);
  }
  spec->pieces[index] = std::move(piece);
  spec->types[index] = type;
}

Result<void> ReadVocabulary(const Node& model, const Json* added, TokenizerSpec* spec) {
  const Json* vocab = model.Field("vocab");
  if (vocab == nullptr || !vocab->is_object()) {
    return Corrupt("model.vocab", "is not an object");
  }
  if (added != nullptr && !added->is_array()) {
    return Corrupt("added_tokens", "is not a list");
  }
  const size_t limit = vocab->size() + (added != nullptr ? added->size() : 0);
  for (const auto& [piece, id_json] : vocab->items()) {
    KVIK_ASSIGN(const TokenId id, ReadId(id_json, "model.vocab", limit));
    const bool is_byte = spec->kind == TokenizerKind::kSentencePieceBpe && spec->byte_fallback &&
                         ByteOfSpelling(piece) >= 0;
    PutPiece(id, piece, is_byte ? TokenType::kByte : TokenType::kNormal, spec);
  }
  if (added == nullptr) {
    return {};
  }
  for (const Json& json : *added) {
    const Node token(json, "added_tokens");
    const Json* id_json = token.Field("id");
    if (id_json == nullptr) {
      return Corrupt("added_tokens", "has an entry without an id");
    }
    KVIK_ASSIGN(const TokenId id, ReadId(*id_json, "added_tokens", limit));
    KVIK_ASSIGN(std::string content, token.String("content"));
    KVIK_ASSIGN(const bool special, token.BoolOr("special", false));
    AddedTokenRule rule{.id = id};
    KVIK_ASSIGN(rule.strip_left, token.BoolOr("lstrip", false));
    KVIK_ASSIGN(rule.strip_right, token.BoolOr("rstrip", false));
    KVIK_ASSIGN(rule.single_word, token.BoolOr("single_word", false));
    KVIK_ASSIGN(rule.normalized, token.BoolOr("normalized", !special));
    if (rule.strip_left || rule.strip_right || rule.single_word || rule.normalized) {
      spec->added_rules.push_back(rule);
    }
    PutPiece(id, std::move(content), special ? TokenType::kControl : TokenType::kUserDefined, spec);
  }
  return {};
}

Result<void> ReadMergeList(const Node& model, TokenizerSpec* spec) {
  const Json* merges = model.Field("merges");
  if (merges == nullptr) {
    return {};
  }
  if (!merges->is_array()) {
    return Corrupt("model.merges", "is not a list");
  }
  spec->merges.reserve(merges->size());
  for (const Json& merge : *merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spec->merges.push_back({merge[0].get<std::string>(), merge[1].get<std::string>()});
      continue;
    }
    const std::string* text = merge.is_string() ? &merge.get_ref<const std::string&>() : nullptr;
    const size_t space = text == nullptr ? std::string::npos : text->find(' ');
    if (space == std::string::npos || text->find(' ', space + 1) != std::string::npos) {
      return Corrupt("model.merges", "has an entry that is not two pieces");
    }
    spec->merges.push_back({text->substr(0, space), text->substr(space + 1)});
  }
  return {};
}

Result<void> ReadModel(const Node& root, TokenizerSpec* spec) {
  const Json* json = root.Field("model");
  if (json == nullptr || !json->is_object()) {
    return Corrupt("model", "is not an object");
  }
  const Node model(*json, "model");
  // Old files leave the type out.
  KVIK_ASSIGN(const std::string type, model.StringOr("type", "BPE"));
  if (type != "BPE") {
    return Unsupported("model", "type '" + type + "'");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    KVIK_ASSIGN(const std::string value, model.StringOr(key, ""));
    if (!value.empty()) {
      return Unsupported("model", key + (" '" + value + "'"));
    }
  }
  if (const Json* dropout = model.Field("dropout");
      dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0)) {
    return Unsupported("model", "dropout");
  }
  KVIK_ASSIGN(spec->byte_fallback, model.BoolOr("byte_fallback", false));
  KVIK_ASSIGN(spec->fuse_unknown, model.BoolOr("fuse_unk", false));
  KVIK_ASSIGN(spec->ignore_merges, model.BoolOr("ignore_merges", false));
  KVIK_TRY(ReadVocabulary(model, root.Field("added_tokens"), spec));
  KVIK_TRY(ReadMergeList(model, spec));
  if (spec->merges.empty()) {
    return Corrupt("model.merges", "is absent or empty");
  }
  KVIK_ASSIGN(const std::string unk, model.StringOr("unk_token", ""));
  if (!unk.empty()) {
    const auto it = std::find(spec->pieces.begin(), spec->pieces.end(), unk);
    if (it == spec->pieces.end()) {
      return Corrupt("model.unk_token", "is not in the vocabulary");
    }
    spec->unk_id = static_cast<TokenId>(it - spec->pieces.begin());
  }
  return {};
}

Result<TokenizerSpec> Parse(std::string_view json) {
  const Result<Json> parsed = ParseJson<Json>(json, kLimits);
  if (!parsed) {
    return Err(ErrorCode::kCorrupt, "tokenizer.json %s", parsed.error().message.c_str());
  }
  if (!parsed->is_object()) {
    return Err(ErrorCode::kCorrupt, "tokenizer.json: not a JSON object");
  }
  const Node root(*parsed, "top level");
  TokenizerSpec spec;
  KVIK_ASSIGN(const std::vector<Node> normalizers, Steps(root, "normalizer", "normalizers"));
  for (const Node& node : normalizers) {
    KVIK_ASSIGN(NormalizerStep step, ReadNormalizer(node));
    spec.normalizer.push_back(std::move(step));
  }
  KVIK_ASSIGN(const std::vector<Node> pre_tokenizers,
              Steps(root, "pre_tokenizer", "pretokenizers"));
  bool byte_level = false;
  for (const Node& node : pre_tokenizers) {
    KVIK_TRY(ReadPreTokenizer(node, &byte_level, &spec));
  }
  spec.kind = byte_level ? TokenizerKind::kByteLevelBpe : TokenizerKind::kSentencePieceBpe;
  KVIK_TRY(ReadModel(root, &spec));
  KVIK_ASSIGN(const std::vector<Node> decoders, Steps(root, "decoder", "decoders"));
  spec.unescape_spaces = false;
  bool fused = false;
  for (const Node& node : decoders) {
    KVIK_TRY(ReadDecoder(node, byte_level, &fused, &spec));
  }
  KVIK_ASSIGN(const std::vector<Node> processors, Steps(root, "post_processor", "processors"));
  for (const Node& node : processors) {
    KVIK_TRY(ReadPostProcessor(node, &spec));
  }
  return spec;
}

}  // namespace

Result<TokenizerSpec> ParseTokenizerJson(std::string_view json) {
  try {
    return Parse(json);
  } catch (const std::exception& e) {
    return Err(ErrorCode::kInternal, "tokenizer.json: %s", Shown(e.what()).c_str());
  }
}

}  // namespace kvik::text
