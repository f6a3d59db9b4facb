// SPDX-License-Identifier: Apache-2.0
// text/tokenizer_spec.h: everything that defines a tokenizer, as plain data.
//
// Made from a GGUF file's metadata (text/tokenizer_gguf.h) or from a tokenizer.json
// (text/tokenizer_json.h), checked by Tokenizer::Create.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"

namespace kvik::text {

enum class TokenizerKind {
  // Symbols are the 256 bytes; pieces and merges are spelled with GPT-2's printable stand-ins.
  kByteLevelBpe,
  // Symbols are characters, usually with spaces spelled U+2581. The best pair is the lowest merge
  // when
  // there are merges, else the one whose piece has the highest score. What no piece covers
  // falls back to byte pieces (<0x00> ... <0xFF>), then to unk_id.
  kSentencePieceBpe,
};

// Numbered as in GGUF's `tokenizer.ggml.token_type`.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,      // recognised in text like kControl
  kControl = 3,      // <|im_start|>: recognised in text only with EncodeOptions::parse_special
  kUserDefined = 4,  // recognised in all text, before anything else
  kUnused = 5,       // never produced
  kByte = 6,         // <0x0A>: one byte
};

// One step of text normalisation, in tokenizer.json's terms.
struct NormalizerStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,  // drops all marks
    kStrip,         // white space at the ends named by strip_left, strip_right
    kPrepend,       // `content` before a text that is not empty
    kReplace,       // every `pattern` (a literal) by `content`
    kReplaceRegex,  // every match of `pattern` (a regex) by `content`
  };
  Kind kind = Kind::kNfc;
  std::string pattern = {};
  std::string content = {};
  bool strip_left = true;
  bool strip_right = true;
};

// What happens to the matches ("delimiters") of a split.
enum class SplitBehavior {
  kRemoved,
  kIsolated,            // each match is a word
  kMergedWithPrevious,  // each match ends the word before it
  kMergedWithNext,      // each match begins the word after it
  kContiguous,          // adjacent matches are one word
};

// One step of cutting text into words that are tokenised alone.
struct PreTokenizerStep {
  enum class Kind {
    kSplit,        // by `pattern`, a regex
    kPrefixSpace,  // a space before each word that has no white space in front
    kMetaspace,    // spaces become U+2581, see `prepend`; cut before each if `split`
  };
  enum class Prepend { kNever, kFirst, kAlways };

  Kind kind = Kind::kSplit;
  std::string pattern = {};
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the matches are the words, the rest are the delimiters
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

// How a piece that is recognised whole behaves at its edges; only for ids with a rule of their own.
struct AddedTokenRule {
  TokenId id = 0;
  bool strip_left = false;   // swallows white space before it
  bool strip_right = false;  // swallows white space after it
  bool single_word = false;  // only between characters that are not of a word
  bool normalized = false;   // looked for after normalisation, spelled normalised
};

struct TokenizerSpec {
  struct Merge {
    std::string left;
    std::string right;
  };

  TokenizerKind kind = TokenizerKind::kByteLevelBpe;

  // By id. `types` is empty (all kNormal) or as long as `pieces`; `scores` is empty or as long,
  // and needed by kSentencePieceBpe without merges. Pieces that are not kNormal, kUnused or kByte
  // are spelled as in text; the others as `kind` says.
  std::vector<std::string> pieces;
  std::vector<TokenType> types;
  std::vector<float> scores;
  std::vector<Merge> merges;  // best first
  std::vector<AddedTokenRule> added_rules;

  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;

  // A word that is a piece becomes it, whatever the merges say.
  bool ignore_merges = false;
  // kSentencePieceBpe: use kByte pieces for what no piece covers.
  bool byte_fallback = true;
  // kSentencePieceBpe: adjacent unknown characters become one unk_id.
  bool fuse_unknown = true;
  // kSentencePieceBpe: U+2581 in pieces is a space of the text. (The way there is `normalizer`'s.)
  bool unescape_spaces = true;
  // The one space with which a decoded text begins is not part of it.
  bool strip_leading_space = false;

  std::optional<TokenId> bos_id;
  std::optional<TokenId> eos_id;
  std::optional<TokenId> unk_id;
  std::optional<TokenId> pad_id;
  // Further ids at which generation ends (end of turn, end of message).
  std::vector<TokenId> more_end_ids;
  // What EncodeOptions::add_special adds. REQUIRES the id.
  bool add_bos = false;
  bool add_eos = false;
};

}  // namespace kvik::text
