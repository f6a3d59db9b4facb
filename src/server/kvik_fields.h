// SPDX-License-Identifier: Apache-2.0
// server/kvik_fields.h: the `kvik` object and `kv_transfer_params` of a request.
#pragma once

#include "server/openai_request.h"

namespace kvik::server {

class Fields;  // server/request_fields.h

// Both of a body. An unknown name in `kvik` is an error, since nobody else has an object of this
// name; one in `kv_transfer_params` is not: every engine puts its own into it.
void ReadKvik(Fields& fields, GenerationParams& params);
void ReadTransferParams(Fields& fields, GenerationParams& params);

}  // namespace kvik::server
