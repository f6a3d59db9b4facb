// SPDX-License-Identifier: Apache-2.0
// text/tokenizer_json.h: reads Hugging Face's tokenizer.json.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace kvik::text {

// `json` is the file's whole text. The result may still be refused by Tokenizer::Create. Which id
// is EOS or PAD is written elsewhere (tokenizer_config.json, generation_config.json): the caller
// sets them. BOS and add_bos come from the post-processor when it adds one.
// kCorrupt: not JSON, or not of the shape. kUnsupported: a component that kvik does not have, named
// in the message. One line; `json` may be anything.
Result<TokenizerSpec> ParseTokenizerJson(std::string_view json);

}  // namespace kvik::text
