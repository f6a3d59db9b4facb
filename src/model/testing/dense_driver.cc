// SPDX-License-Identifier: Apache-2.0
#include "model/testing/dense_driver.h"

#include <numeric>
#include <utility>

#include "base/check.h"

namespace kvik::model::testing {

DenseDriver::DenseDriver(Model& model, AlignedBuffer arena, std::vector<BlockId> blocks)
    : model_(model), arena_(std::move(arena)), blocks_(std::move(blocks)) {}

Result<std::unique_ptr<DenseDriver>> DenseDriver::Create(Model& model, int32_t max_tokens) {
  const kv::KvGeometry& geometry = model.kv_geometry();
  const auto num_blocks = static_cast<size_t>((max_tokens + geometry.block_size_tokens - 1) /
                                              geometry.block_size_tokens);
  KVIK_ASSIGN(AlignedBuffer arena, AlignedBuffer::Create(num_blocks * geometry.bytes_per_block()));
  std::vector<BlockId> blocks(num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  return std::unique_ptr<DenseDriver>(new DenseDriver(model, std::move(arena), std::move(blocks)));
}

LogitsView DenseDriver::Step(std::span<const TokenId> tokens, Want want, bool is_last) {
  batch_.Clear();
  batch_.Add(tokens, position_, blocks_, want == Want::kLast && is_last);
  if (want == Want::kAll) {
    for (int32_t row = 0; row < batch_.num_rows(); ++row) {
      batch_.logit_rows.push_back(row);
    }
  }
  const LogitsView logits = model_.Forward(batch_, {arena_.data(), arena_.size_bytes()});
  position_ += batch_.num_rows();
  return logits;
}

}  // namespace kvik::model::testing
