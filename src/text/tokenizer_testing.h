// SPDX-License-Identifier: Apache-2.0
// text/tokenizer_testing.h: small made-up vocabularies and random texts. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "text/tokenizer.h"
#include "text/tokenizer_utf8.h"

namespace kvik::text::testing {

inline std::string Utf8(char32_t c) {
  std::string out;
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
  return out;
}

// GPT-2's spelling of bytes, written out from its definition.
inline std::string SpellBytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const int byte = static_cast<unsigned char>(c);
    int shifted = 0;  // bytes below this one that have no character of their own
    const auto prints = [](int b) {
      return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    };
    for (int below = 0; below < byte; ++below) {
      shifted += prints(below) ? 0 : 1;
    }
    out += Utf8(static_cast<char32_t>(prints(byte) ? byte : 256 + shifted));
  }
  return out;
}

// Ids 0-255 are the bytes; then a piece for each merge, in order; then the control tokens.
inline TokenizerSpec ByteLevelSpec(const std::vector<std::pair<std::string, std::string>>& merges,
                                   const std::vector<std::string>& control = {"<|im_start|>",
                                                                              "<|im_end|>"}) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    spec.pieces.push_back(SpellBytes(std::string(1, static_cast<char>(byte))));
  }
  for (const auto& [left, right] : merges) {
    spec.merges.push_back({SpellBytes(left), SpellBytes(right)});
    spec.pieces.push_back(SpellBytes(left + right));
  }
  spec.types.assign(spec.pieces.size(), TokenType::kNormal);
  for (const std::string& name : control) {
    spec.pieces.push_back(name);
    spec.types.push_back(TokenType::kControl);
  }
  return spec;
}

inline std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(tokenizer) << (tokenizer ? "" : tokenizer.error().message);
  return tokenizer ? std::move(*tokenizer) : nullptr;
}

// `symbols` characters, mostly of a few letters so that pieces occur.
inline std::string RandomText(Rng* rng, size_t symbols) {
  std::string text;
  for (size_t i = 0; i < symbols; ++i) {
    switch (rng->Below(12)) {
      case 0:
        text += ' ';
        break;
      case 1:
        text += Utf8(static_cast<char32_t>(rng->Range(0xA0, 0x2FF)));
        break;
      case 2:
        text += Utf8(static_cast<char32_t>(rng->Range(0x4E00, 0x4E20)));
        break;
      case 3:
        text += Utf8(static_cast<char32_t>(rng->Range(0x1F300, 0x1F310)));
        break;
      default:
        text += static_cast<char>('a' + rng->Below(4));
    }
  }
  return text;
}

inline std::string RandomBytes(Rng* rng, size_t count) {
  // Bytes that begin, continue and break characters, in numbers that make all of it happen.
  static constexpr std::string_view kBytes =
      "a \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\x80\xBF\xED\xA0\xF4\x90\xFF\xE0\xC0";
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    bytes += kBytes[rng->Below(kBytes.size())];
  }
  return bytes;
}

}  // namespace kvik::text::testing
