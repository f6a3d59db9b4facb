// SPDX-License-Identifier: Apache-2.0
// The prompt's positions are written from rows, what follows is computed over them, and the next
// coder writes the prompt anew. Work is cut into layers or rows that are independent; their results
// are added up in order afterwards.
#include "eval/coded_sequences.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "eval/kv_rows.h"
#include "eval/stopwatch.h"

namespace kvik::eval {
namespace {

constexpr kv::KvPart kParts[] = {kv::KvPart::kKey, kv::KvPart::kValue};

bool SameBits(std::span<const Bf16> a, std::span<const Bf16> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](Bf16 x, Bf16 y) { return x.bits == y.bits; });
}

}  // namespace

CodedSequences::CodedSequences(model::Model& model, ThreadPool& pool, const Clock& clock,
                               bool every_block)
    : model_(model), pool_(pool), clock_(clock), every_block_(every_block) {}

size_t CodedSequences::BlocksOf(int32_t tokens) const {
  const int32_t block_size = model_.kv_geometry().block_size_tokens;
  return static_cast<size_t>((tokens + block_size - 1) / block_size);
}

size_t CodedSequences::SharedBlocks(const RawPrompt& prompt) const {
  return static_cast<size_t>(prompt.shape().num_tokens / model_.kv_geometry().block_size_tokens);
}

size_t CodedSequences::BytesOf(const RawPrompt& prompt, int32_t tokens) const {
  const size_t shared = SharedBlocks(prompt);
  return (shared + kBranches * (BlocksOf(tokens) - shared)) *
         model_.kv_geometry().bytes_per_block();
}

Result<void> CodedSequences::Reset(const RawPrompt& prompt, size_t count, int32_t tokens) {
  const kv::KvGeometry& geometry = model_.kv_geometry();
  const size_t bytes = count * BytesOf(prompt, tokens);
  sequences_.clear();
  if (bytes > arena_.size_bytes()) {
    arena_ = AlignedBuffer();  // or both would be there at once
    KVIK_ASSIGN(arena_, AlignedBuffer::Create(bytes));
  }
  masks_ = std::make_unique<kv::BlockMasks>(
      geometry, static_cast<int32_t>(bytes / geometry.bytes_per_block()));
  prompt_ = &prompt;
  coded_rows_.resize(static_cast<size_t>(geometry.num_layers) * 2);
  sequences_.resize(count);
  BlockId next = 0;
  for (Sequence& sequence : sequences_) {
    for (std::vector<BlockId>& blocks : sequence.blocks) {
      if (&blocks != sequence.blocks.data()) {
        blocks.assign(sequence.blocks[0].begin(),
                      sequence.blocks[0].begin() + static_cast<ptrdiff_t>(SharedBlocks(prompt)));
      }
      while (blocks.size() < BlocksOf(tokens)) {
        blocks.push_back(next++);
      }
    }
    sequence.prompt_dropped.resize(static_cast<size_t>(geometry.num_layers));
  }
  return {};
}

void CodedSequences::Fork(const Sequence& sequence) {
  if (prompt_->shape().num_tokens % model_.kv_geometry().block_size_tokens == 0) {
    return;
  }
  const size_t bytes = model_.kv_geometry().bytes_per_block();
  const size_t last = SharedBlocks(*prompt_);
  const auto block = [&](size_t branch) {
    return arena().data() + static_cast<size_t>(sequence.blocks[branch][last]) * bytes;
  };
  for (size_t branch = 1; branch < kBranches; ++branch) {
    std::memcpy(block(branch), block(0), bytes);
  }
}

void CodedSequences::BeginRaw(size_t index) {
  Sequence& sequence = sequences_[index];
  sequence.coder = nullptr;
  sequence.error.reset();
  sequence.unchanged = true;
  sequence.values = sequence.bytes = 0;
  const RawShape& shape = prompt_->shape();
  pool_.ParallelFor(static_cast<size_t>(shape.num_layers) * 2, [&](size_t i, int /*thread*/) {
    const auto layer = static_cast<int32_t>(i / 2);
    WriteRows(model_.kv_geometry(), arena(),
              {.block_table = sequence.blocks[0],
               .layer = layer,
               .part = kParts[i % 2],
               .first_pos = 0,
               .num_tokens = shape.num_tokens},
              prompt_->rows(layer, kParts[i % 2]));
  });
  for (std::vector<DroppedTokens>& dropped : sequence.prompt_dropped) {
    dropped.clear();
  }
  Fork(sequence);
  Rewind(index);
}

void CodedSequences::Begin(size_t index, KvCoder& coder, int64_t& coding_us) {
  Sequence& sequence = sequences_[index];
  sequence.coder = &coder;
  sequence.coding_us = &coding_us;
  sequence.error.reset();
  sequence.values = sequence.bytes = 0;
  Pass(sequence, 0, 0, prompt_->shape().num_tokens);
  Fork(sequence);
  Rewind(index);
}

void CodedSequences::Rewind(size_t index) {
  const Sequence& sequence = sequences_[index];
  for (const std::vector<BlockId>& blocks : sequence.blocks) {
    for (const BlockId block : blocks) {
      masks_->Clear(block);
    }
  }
  for (const std::vector<BlockId>& blocks : sequence.blocks) {
    for (size_t layer = 0; layer < sequence.prompt_dropped.size(); ++layer) {
      for (const DroppedTokens& dropped : sequence.prompt_dropped[layer]) {
        Drop(blocks, static_cast<int32_t>(layer), dropped);
      }
    }
  }
}

void CodedSequences::Drop(std::span<const BlockId> blocks, int32_t layer,
                          const DroppedTokens& dropped) {
  const int32_t block_size = model_.kv_geometry().block_size_tokens;
  for (int32_t pos = dropped.first_pos; pos < dropped.end_pos;) {
    const int32_t block = pos / block_size;
    const int32_t end = std::min(dropped.end_pos, (block + 1) * block_size);
    masks_->Drop(blocks[static_cast<size_t>(block)], layer, dropped.kv_head,
                 pos - block * block_size, end - block * block_size);
    pos = end;
  }
}

Result<CodedSequences::CodedLayer> CodedSequences::PassLayer(const Sequence& sequence,
                                                             size_t branch, int32_t layer,
                                                             int32_t first_pos, int32_t num_tokens,
                                                             int thread) {
  const kv::KvGeometry& geometry = model_.kv_geometry();
  const int32_t prompt_tokens = prompt_->shape().num_tokens;
  const bool whole_prompt = first_pos == 0 && num_tokens == prompt_tokens;
  const auto range = [&](kv::KvPart part) {
    return RowRange{sequence.blocks[branch], layer, part, first_pos, num_tokens};
  };
  const auto rows = [&](kv::KvPart part) -> std::vector<Bf16>& {
    return coded_rows_[2 * static_cast<size_t>(layer) + static_cast<size_t>(part)];
  };
  for (const kv::KvPart part : kParts) {
    if (whole_prompt) {
      const std::span<const Bf16> raw = prompt_->rows(layer, part);
      rows(part).assign(raw.begin(), raw.end());
    } else {
      rows(part).resize(NumRowValues(geometry, num_tokens));
      ReadRows(geometry, arena(), range(part), rows(part));
    }
  }
  CodedLayer coded;
  KVIK_ASSIGN(coded.size, sequence.coder->RoundTrip({.layer = layer,
                                                     .first_pos = first_pos,
                                                     .num_tokens = num_tokens,
                                                     .prompt_tokens = prompt_tokens,
                                                     .keys = &rows(kv::KvPart::kKey),
                                                     .values = &rows(kv::KvPart::kValue)},
                                                    thread));
  coded.unchanged = whole_prompt && coded.size.dropped.empty();
  for (const kv::KvPart part : kParts) {
    KVIK_CHECK(rows(part).size() == NumRowValues(geometry, num_tokens));
    WriteRows(geometry, arena(), range(part), rows(part));
    coded.unchanged = coded.unchanged && SameBits(rows(part), prompt_->rows(layer, part));
  }
  return coded;
}

void CodedSequences::Pass(Sequence& sequence, size_t branch, int32_t first_pos,
                          int32_t num_tokens) {
  const Stopwatch watch(clock_, *sequence.coding_us);
  const kv::KvGeometry& geometry = model_.kv_geometry();
  const bool whole_prompt = first_pos == 0 && num_tokens == prompt_->shape().num_tokens;
  std::vector<Result<CodedLayer>> layers(static_cast<size_t>(geometry.num_layers), CodedLayer());
  pool_.ParallelFor(layers.size(), [&](size_t i, int thread) {
    layers[i] = PassLayer(sequence, branch, static_cast<int32_t>(i), first_pos, num_tokens, thread);
  });
  sequence.unchanged = sequence.unchanged || whole_prompt;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i]) {
      sequence.error = layers[i].error().Wrap(sequence.coder->name());
      return;
    }
    CodedLayer& layer = *layers[i];
    sequence.unchanged = sequence.unchanged && (layer.unchanged || !whole_prompt);
    if (branch == 0) {
      sequence.bytes += static_cast<int64_t>(layer.size.bytes);
      sequence.values += static_cast<int64_t>(2 * NumRowValues(geometry, num_tokens));
    }
    if (whole_prompt) {
      sequence.prompt_dropped[i] = std::move(layer.size.dropped);
    } else {
      for (const DroppedTokens& dropped : layer.size.dropped) {
        Drop(sequence.blocks[branch], static_cast<int32_t>(i), dropped);
      }
    }
  }
}

void CodedSequences::Feed(std::span<const FedTokens> feeds, const FeedTimes& times,
                          const Visit& visit) {
  const int32_t prompt_tokens = prompt_->shape().num_tokens;
  const int32_t block_size = model_.kv_geometry().block_size_tokens;
  const int32_t most = std::min(model_.options().max_logit_rows, model_.options().max_batch_rows);
  struct Row {
    size_t feed;
    size_t row;
  };
  std::vector<Row> rows;                       // of a step
  std::vector<int32_t> done(feeds.size(), 0);  // tokens
  const auto pos_of = [&](size_t feed) {
    return prompt_tokens + static_cast<int32_t>(feeds[feed].first) + done[feed];
  };
  while (true) {
    step_.Clear();
    step_.masks = masks_.get();
    rows.clear();
    std::vector<size_t> filled;  // feeds of which a block is full after the step
    for (size_t feed = 0; feed < feeds.size() && step_.num_rows() < most; ++feed) {
      const Sequence& sequence = sequences_[feeds[feed].sequence];
      const std::span<const TokenId> left =
          feeds[feed].tokens.subspan(static_cast<size_t>(done[feed]));
      if (left.empty() || sequence.error) {
        continue;
      }
      const bool seal = every_block_ && sequence.coder != nullptr;
      const int32_t pos = pos_of(feed);
      int32_t count = std::min(most - step_.num_rows(), static_cast<int32_t>(left.size()));
      count = seal ? std::min(count, block_size - pos % block_size) : count;
      step_.Add(left.first(static_cast<size_t>(count)), pos, sequence.blocks[feeds[feed].branch],
                false);
      for (int32_t i = 0; i < count; ++i) {
        step_.logit_rows.push_back(static_cast<int32_t>(rows.size()));
        rows.push_back({feed, static_cast<size_t>(done[feed] + i)});
      }
      done[feed] += count;
      if (seal && (pos + count) % block_size == 0) {
        filled.push_back(feed);
      }
    }
    if (rows.empty()) {
      return;
    }
    model::LogitsView logits;
    {
      const Stopwatch watch(clock_, times.model_us);
      logits = model_.Forward(step_, arena());
    }
    {
      const Stopwatch watch(clock_, times.visit_us);
      pool_.ParallelFor(rows.size(), [&](size_t i, int /*thread*/) {
        visit(rows[i].feed, rows[i].row, logits.Row(static_cast<int32_t>(i)));
      });
    }
    for (const size_t feed : filled) {
      const int32_t end = pos_of(feed);
      const int32_t begin = std::max(prompt_tokens, end - block_size);
      if (Sequence& sequence = sequences_[feeds[feed].sequence]; !sequence.error) {
        Pass(sequence, feeds[feed].branch, begin, end - begin);
      }
    }
  }
}

}  // namespace kvik::eval
