// SPDX-License-Identifier: Apache-2.0
// Any bytes are a tokenizer or an error of one line; a tokenizer encodes any bytes, and what it
// decodes piece by piece is valid and equals decoding at once.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  using namespace kvik::text;
  const std::string_view json(reinterpret_cast<const char*>(data), size_bytes);
  auto spec = ParseTokenizerJson(json);
  if (!spec) {
    KVIK_CHECK(spec.error().message.find('\n') == std::string::npos);
    return 0;
  }
  const auto tokenizer = Tokenizer::Create(std::move(*spec));
  if (!tokenizer) {
    KVIK_CHECK(tokenizer.error().message.find('\n') == std::string::npos);
    return 0;
  }
  // The file is a text as good as any; a part of it keeps slow patterns short.
  for (const std::string_view text : {json.substr(0, 200), json.substr(json.size() / 2, 200)}) {
    const auto ids = (*tokenizer)->Encode(text, {.parse_special = true, .add_special = true});
    Detokenizer detokenizer(**tokenizer);
    std::string joined;
    for (const kvik::TokenId id : ids) {
      KVIK_CHECK(id >= 0 && static_cast<size_t>(id) < (*tokenizer)->vocab_size());
      const std::string piece = detokenizer.Push(id);
      KVIK_CHECK(ValidUtf8Prefix(piece) == piece.size());
      joined += piece;
    }
    joined += detokenizer.Flush();
    KVIK_CHECK(joined == Decode(**tokenizer, ids));
  }
  return 0;
}
