// SPDX-License-Identifier: Apache-2.0
// With S1 = sum exp(alpha t_i) over the uses of an item, its value by the first piece at time t is
// w S1 exp(-alpha t). The last factor is the same for all items of a curve, so the order of
//
//   key1 = ln w + ln S1          key2 = ln w + ln S2 + ln f2(0),   S2 = sum exp(r alpha t_i)
//
// is the order of values for as long as nothing happens to the items, and adding
//
//   offset1 = -alpha t           offset2 = -r alpha t + ln lambda
//
// makes the two comparable with each other and with those of other classes. Times count from the
// generation's epoch.
#include "kv/least_value_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"

namespace kvik::kv {
namespace {

// Logarithms on a grid of 2^-36, fine enough for 1 us of age at lifespans up to half a day. Keys
// and terms of offsets are kept within 2^25, so that three of them add up without overflow.
constexpr double kGrid = 0x1p36;
constexpr double kLimit = 0x1p25;
// A generation that decayed more since its epoch gives way to one with a later epoch.
constexpr double kMaxDecay = 0x1p24;

// What a Tick may spend on a pending generation: items re-keyed, and items looked at.
constexpr int kRekeyedPerTick = 128;
constexpr int32_t kVisitedPerTick = 4096;

int64_t ToGrid(double ln) { return std::llrint(std::clamp(ln, -kLimit, kLimit) * kGrid); }

double Seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

// A number for each of the two pieces.
struct Pair {
  int64_t piece1 = 0;
  int64_t piece2 = 0;
};

}  // namespace

struct LeastValueIndex::Candidate {
  int64_t value = 0;
  uint64_t order = 0;
  int32_t id = -1;

  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.value < b.value || (a.value == b.value && a.order < b.order);
  }
};

struct LeastValueIndex::Generation {
  Generation(const ReuseCurve& reuse_curve, size_t num_items)
      : curve(reuse_curve), heap1(num_items), heap2(num_items) {}

  void Begin(const ReuseCurve& reuse_curve, int64_t now_us) {
    curve = reuse_curve;
    epoch_us = now_us;
    heap1.Clear();
    heap2.Clear();
  }

  [[nodiscard]] Pair Keys(const Item& item) const {
    const double t = Seconds(item.uses.last_us - epoch_us);
    return {
        ToGrid(item.ln_weight + item.uses.ln_sum1 + curve.alpha() * t),
        ToGrid(item.ln_weight + item.uses.ln_sum2 + curve.ln_f2_start() + curve.steep_alpha() * t)};
  }
  [[nodiscard]] Pair Offsets(double lifespan_s, int64_t now_us) const {
    const double t = Seconds(now_us - epoch_us);
    return {-ToGrid(curve.alpha() * t),
            ToGrid(curve.LnLambda(lifespan_s)) - ToGrid(curve.steep_alpha() * t)};
  }
  [[nodiscard]] bool IsWornOut(int64_t now_us) const {
    return curve.steep_alpha() * Seconds(now_us - epoch_us) > kMaxDecay;
  }
  void Insert(int32_t id, const Item& item) {
    const Pair keys = Keys(item);
    heap1.Push({keys.piece1, item.order, id});
    heap2.Push({keys.piece2, item.order, id});
  }
  void Erase(int32_t id) {
    heap1.Erase(id);
    heap2.Erase(id);
  }

  ReuseCurve curve;
  int64_t epoch_us = 0;
  IndexedHeap heap1;  // both empty unless the selection is kAuto
  IndexedHeap heap2;
};

struct LeastValueIndex::Class {
  std::unique_ptr<Generation> current;
  std::unique_ptr<Generation> next;  // takes over when every item is in it
  bool filling_next = false;         // else it waits for its time
  int32_t swept = 0;                 // of `next`: items below this one are in it
  double lifespan_s = 0;             // wanted; lambda makes up for the curve's own
  size_t size = 0;
};

LeastValueIndex::LeastValueIndex(int32_t num_items, VictimSelection selection,
                                 std::span<const ReuseCurve> curves)
    : selection_(selection),
      items_(static_cast<size_t>(num_items)),
      slot_(static_cast<size_t>(num_items), kNotFree) {
  for (const ReuseCurve& curve : curves) {
    Class& c = classes_.emplace_back();
    c.current = std::make_unique<Generation>(curve, HeapItems());
    c.next = std::make_unique<Generation>(curve, HeapItems());
    c.lifespan_s = curve.lifespan_s();
  }
}

LeastValueIndex::~LeastValueIndex() = default;

size_t LeastValueIndex::HeapItems() const {
  return selection_ == VictimSelection::kAuto ? items_.size() : 0;
}

void LeastValueIndex::Insert(int32_t id, const Item& item) {
  KVIK_CHECK(!Contains(id));
  items_[static_cast<size_t>(id)] = item;
  slot_[static_cast<size_t>(id)] = static_cast<int32_t>(free_.size());
  free_.push_back(id);
  Class& c = classes_[static_cast<size_t>(item.cls)];
  if (c.size++ == 0) {
    c.current->epoch_us = item.uses.last_us;
  }
  if (selection_ == VictimSelection::kAuto) {
    c.current->Insert(id, item);
    if (c.filling_next && id < c.swept) {
      c.next->Insert(id, item);
    }
  }
}

void LeastValueIndex::Erase(int32_t id) {
  KVIK_CHECK(Contains(id));
  const auto slot = static_cast<size_t>(slot_[static_cast<size_t>(id)]);
  const int32_t last = free_.back();
  free_[slot] = last;
  slot_[static_cast<size_t>(last)] = static_cast<int32_t>(slot);
  free_.pop_back();
  slot_[static_cast<size_t>(id)] = kNotFree;
  Class& c = classes_[static_cast<size_t>(item(id).cls)];
  --c.size;
  if (selection_ == VictimSelection::kAuto) {
    c.current->Erase(id);
    if (c.filling_next && id < c.swept) {
      c.next->Erase(id);
    }
  }
}

LeastValueIndex::Candidate LeastValueIndex::LeastOfHeaps(int64_t now_us) const {
  Candidate least{.value = std::numeric_limits<int64_t>::max()};
  for (const Class& c : classes_) {
    if (c.size == 0) {
      continue;
    }
    const Pair offset = c.current->Offsets(c.lifespan_s, now_us);
    const IndexedHeap::Entry& head1 = c.current->heap1.least();
    const IndexedHeap::Entry& head2 = c.current->heap2.least();
    least = std::min({least, Candidate{head1.key + offset.piece1, head1.order, head1.item},
                      Candidate{head2.key + offset.piece2, head2.order, head2.item}});
  }
  return least;
}

std::vector<LeastValueIndex::Candidate> LeastValueIndex::AllFree(int64_t now_us) const {
  std::vector<Candidate> all;
  all.reserve(free_.size());
  std::vector<Pair> offsets;
  for (const Class& c : classes_) {
    offsets.push_back(c.current->Offsets(c.lifespan_s, now_us));
  }
  for (const int32_t id : free_) {
    const auto cls = static_cast<size_t>(item(id).cls);
    const Pair keys = classes_[cls].current->Keys(item(id));
    all.push_back(
        Candidate{std::min(keys.piece1 + offsets[cls].piece1, keys.piece2 + offsets[cls].piece2),
                  item(id).order, id});
  }
  return all;
}

std::vector<int32_t> LeastValueIndex::PopLeast(size_t count, int64_t now_us) {
  KVIK_CHECK(count <= size());
  std::vector<int32_t> popped;
  popped.reserve(count);
  const auto pop = [&](const Candidate& candidate) {
    Erase(candidate.id);
    popped.push_back(candidate.id);
  };
  if (selection_ == VictimSelection::kBatch && count > 0) {
    std::vector<Candidate> all = AllFree(now_us);
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(all.begin(), end - 1, all.end());
    std::sort(all.begin(), end);
    std::for_each(all.begin(), end, pop);
    return popped;
  }
  while (popped.size() < count) {
    if (selection_ == VictimSelection::kAuto) {
      pop(LeastOfHeaps(now_us));
    } else {
      const std::vector<Candidate> all = AllFree(now_us);
      pop(*std::min_element(all.begin(), all.end()));
    }
  }
  return popped;
}

void LeastValueIndex::SetLifespan(int32_t cls, double lifespan_s) {
  KVIK_CHECK(lifespan_s > 0);
  classes_[static_cast<size_t>(cls)].lifespan_s = lifespan_s;
}

void LeastValueIndex::Tick(int64_t now_us) {
  for (size_t i = 0; i < classes_.size(); ++i) {
    Class& c = classes_[i];
    if (!c.filling_next) {
      const double ratio = c.lifespan_s / c.current->curve.lifespan_s();
      if (ratio >= 0.5 && ratio <= 2 && !c.current->IsWornOut(now_us)) {
        continue;
      }
      c.next->Begin(c.current->curve.WithLifespan(c.lifespan_s), now_us);
      c.filling_next = true;
      c.swept = 0;
    }
    Sweep(c, static_cast<int32_t>(i));
  }
}

void LeastValueIndex::Sweep(Class& c, int32_t cls) {
  const auto num_items = static_cast<int32_t>(items_.size());
  const int32_t end = std::min(num_items, c.swept + kVisitedPerTick);
  for (int rekeyed = 0; c.swept < end && rekeyed < kRekeyedPerTick; ++c.swept) {
    if (Contains(c.swept) && item(c.swept).cls == cls) {
      ++rekeyed;
      if (selection_ == VictimSelection::kAuto) {
        c.next->Insert(c.swept, item(c.swept));
      }
    }
  }
  if (c.swept == num_items || c.size == 0) {
    std::swap(c.current, c.next);
    c.filling_next = false;
  }
}

const ReuseCurve& LeastValueIndex::curve(int32_t cls) const {
  return classes_[static_cast<size_t>(cls)].current->curve;
}

double LeastValueIndex::lifespan_s(int32_t cls) const {
  return classes_[static_cast<size_t>(cls)].lifespan_s;
}

}  // namespace kvik::kv
