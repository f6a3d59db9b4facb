// SPDX-License-Identifier: Apache-2.0
// server/kvik_fields.h: what a request says about KV: the `kvik` object and `kv_transfer_params`.
// Private to the module.
#pragma once

#include "server/openai_request.h"
#include "server/request_fields.h"

namespace kvik::server {

// Both of a body. An unknown name in `kvik` is an error, since nobody else has an object of this
// name; one in `kv_transfer_params` is not: every engine puts its own into it.
void ReadKvik(Fields& fields, GenerationParams& params);
void ReadTransferParams(Fields& fields, GenerationParams& params);

}  // namespace kvik::server
