// SPDX-License-Identifier: Apache-2.0
// kv/least_value_index.h: the free item with the least expected value, at any time.
//
// An item of weight w, in a class with reuse curve (f1, f2) and factor lambda, is worth
//
//   w min(sum f1(now - t_i), lambda sum f2(now - t_i))      over its uses t_i
//
// Two heaps a class hold every item of the class, one by each piece. The factor by which a piece
// decays is common to a heap, so keys stand still while time runs, and since min commutes with min,
// the least of all heads is the least of all items, whatever the time and lambda. Of equal values
// the smaller order is less. Values are integers (fixed-point logarithms): every way of finding the
// least gives the same item, to the last bit.
//
// A class's lifespan follows SetLifespan through lambda in O(1) while it is within [1/2, 2] of the
// curve's own; beyond, the curve gets the new lifespan: new heaps are filled a hundred items a
// Tick while the old ones serve, and then take over. Time never runs backwards. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/eviction_policy.h"
#include "kv/indexed_heap.h"
#include "kv/reuse_curve.h"

namespace kvik::kv {

class LeastValueIndex {
 public:
  struct Item {
    int32_t cls = 0;
    double ln_weight = 0;
    DecayedUses uses;
    uint64_t order = 0;  // no two items of the index share one
  };

  // Items are [0, num_items); one class for each curve. kAuto is the heaps; the others keep a plain
  // list.
  LeastValueIndex(int32_t num_items, VictimSelection selection, std::span<const ReuseCurve> curves);
  ~LeastValueIndex();

  // REQUIRES: not in the index.
  void Insert(int32_t id, const Item& item);
  // REQUIRES: in the index.
  void Erase(int32_t id);
  [[nodiscard]] bool Contains(int32_t id) const {
    return slot_[static_cast<size_t>(id)] != kNotFree;
  }
  // REQUIRES: in the index.
  [[nodiscard]] const Item& item(int32_t id) const { return items_[static_cast<size_t>(id)]; }
  [[nodiscard]] size_t size() const { return free_.size(); }

  // Removes the `count` items worth least, the least first. REQUIRES: count <= size().
  std::vector<int32_t> PopLeast(size_t count, int64_t now_us);

  void SetLifespan(int32_t cls, double lifespan_s);
  // A bounded piece of a pending change of curves, if there is one.
  void Tick(int64_t now_us);

  // What values are computed with now: the curve, and the lifespan that lambda makes of it.
  [[nodiscard]] const ReuseCurve& curve(int32_t cls) const;
  [[nodiscard]] double lifespan_s(int32_t cls) const;

 private:
  struct Generation;  // a curve and its two heaps
  struct Class;
  struct Candidate;
  static constexpr int32_t kNotFree = -1;

  [[nodiscard]] size_t HeapItems() const;
  [[nodiscard]] Candidate LeastOfHeaps(int64_t now_us) const;
  [[nodiscard]] std::vector<Candidate> AllFree(int64_t now_us) const;
  void Sweep(Class& c, int32_t cls);

  VictimSelection selection_;
  std::vector<Class> classes_;
  std::vector<Item> items_;    // [num_items]
  std::vector<int32_t> slot_;  // [num_items] index into free_, or kNotFree
  std::vector<int32_t> free_;  // in no order
};

}  // namespace kvik::kv
