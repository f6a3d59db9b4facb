// SPDX-License-Identifier: Apache-2.0
// server/tool_name.h: which tool an answer calls.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/types.h"
#include "text/tokenizer.h"

namespace kvik::server {

// The name in what follows a marker of tool calls: the first "name" of a JSON object (Hermes, Qwen,
// Mistral) or a bare name before anything else (Llama 3: `search.call(...)`, later Mistrals:
// `search{...}`). Empty if there is none, or none that ends. A view into `call`.
std::string_view ToolName(std::string_view call);

// Of the name in these tokens; 0 if they hold none.
uint64_t ToolDigest(const text::Tokenizer& tokenizer, std::span<const TokenId> call);

}  // namespace kvik::server
