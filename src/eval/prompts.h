// SPDX-License-Identifier: Apache-2.0
// eval/prompts.h: the prompts of a cell, built from items, as a model's own chat sees them.
//
// Short cells take items as they come. Long ones are built from the same file and never from the
// item itself: worked examples before the question (math, code, summarization: other items with
// their references, as earlier turns of the chat), or the passage that holds the answer at a seeded
// place among passages of other questions (qa). A text that is too long to summarise is cut.
// Everything depends on the items, the cell, the seed, the tokenizer and the template alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "eval/cell.h"
#include "eval/dataset.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvik::eval {

struct EvalPrompt {
  size_t item = 0;              // index into the items
  std::vector<TokenId> tokens;  // with the beginning of the answer's turn
  // Of the item's reference as the answer would begin; empty when there is none.
  std::vector<TokenId> reference;
};

// Immutable and thread-safe.
class CellPrompts {
 public:
  // Borrows everything for its lifetime; a null template stands for ChatML. kNotFound: no item has
  // the cell's workload.
  static Result<CellPrompts> Create(std::span<const EvalItem> items, const Cell& cell,
                                    uint64_t seed, const text::Tokenizer& tokenizer,
                                    const text::ChatTemplate* chat_template);

  [[nodiscard]] const Cell& cell() const { return cell_; }
  [[nodiscard]] const EvalItem& item(size_t index) const { return items_[index]; }
  // Items of the workload: candidates [0, size()) in a seeded order.
  [[nodiscard]] size_t size() const { return order_.size(); }
  // The prompt of a candidate; nothing where the item alone is far too long for the cell. Fails as
  // ChatTemplate::Render.
  [[nodiscard]] Result<std::optional<EvalPrompt>> Build(size_t candidate) const;

 private:
  struct Draft;
  CellPrompts(std::span<const EvalItem> items, const Cell& cell, uint64_t seed,
              const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
              bool add_special);
  [[nodiscard]] Result<std::vector<TokenId>> Render(const Draft& draft) const;
  [[nodiscard]] Result<void> CutText(Draft& draft) const;
  [[nodiscard]] Result<void> FillUp(Draft& draft) const;

  std::span<const EvalItem> items_;
  Cell cell_;
  uint64_t seed_;
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate& template_;
  bool add_special_;
  std::vector<size_t> order_;           // items of the workload
  std::vector<int32_t> filler_tokens_;  // by place in order_: what it adds as a filler, about
};

}  // namespace kvik::eval
