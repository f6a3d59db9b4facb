// SPDX-License-Identifier: Apache-2.0
// server/kv_params.h: what a request says about the KV it reads and leaves behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kv/block_key.h"
#include "server/api_error.h"
#include "server/http.h"

namespace kvik::server {

// The kv_transfer_params object, with vLLM's names: how the KV of a request moves between servers.
// remote_block_ids is not among them: blocks are found by content.
struct TransferFields {
  bool do_remote_prefill = false;  // the KV is, or is being computed, at remote_host:remote_port
  bool do_remote_decode = false;   // somebody will come for this request's KV
  std::string remote_host;
  int32_t remote_port = 0;
  std::string remote_engine_id;
  std::string remote_request_id;
};

struct KvParams {
  std::string workload;     // label of the kind of work; empty: not said
  int64_t slo_ttft_us = 0;  // to the first token; 0: not said
  int64_t slo_us = 0;       // to the last token; 0: not said
  // [0, 1], 1 = exact: the least quality of KV to read; 0: any, also if it was never measured.
  std::optional<float> quality;
  std::optional<TransferFields> transfer;
};

// Bounds of the fields, wherever they stand.
constexpr size_t kMaxWorkloadBytes = 64;
constexpr size_t kMaxTransferTextBytes = 256;
constexpr float kMinSloMs = 1e-3F;
constexpr float kMaxSloMs = 1e9F;

// Fills in from the headers X-Kvik-Workload, X-Kvik-Slo-Ttft-Ms, X-Kvik-Slo-Ms and X-Kvik-Quality
// what the body did not say. An error names the header.
[[nodiscard]] std::optional<ApiError> ReadKvHeaders(const HttpRequest& request, KvParams& params);

// `quality` as a reader's condition.
[[nodiscard]] kv::MinQuality ToMinQuality(float quality);

}  // namespace kvik::server
