// SPDX-License-Identifier: Apache-2.0
#include "kv/slru_policy.h"

namespace kvik::kv {
namespace {

constexpr double kProtectedShare = 0.8;
constexpr double kBehindAll = 0x1p52;  // more than any order

}  // namespace

SlruPolicy::SlruPolicy(const PolicyOptions& options)
    : ScorePolicy(options),
      places_(static_cast<size_t>(options.num_blocks)),
      max_protected_(static_cast<int64_t>(kProtectedShare * options.num_blocks)) {}

double SlruPolicy::Score(const Block& /*block*/, BlockId id, int64_t /*now_us*/) {
  const Place& place = places_[static_cast<size_t>(id)];
  return static_cast<double>(place.order) + (place.is_protected ? kBehindAll : 0);
}

void SlruPolicy::OnRelease(BlockId id, const Access& /*access*/) {
  Place& place = places_[static_cast<size_t>(id)];
  place.order = next_order_++;
  if (block(id).uses < 2) {
    return;
  }
  num_protected_ += place.is_protected ? 0 : 1;
  place.is_protected = true;
  protected_.push_back(Waiting{id, place.order});
  while (num_protected_ > max_protected_) {
    DemoteOldest();
  }
  if (protected_.size() > 2 * places_.size()) {  // mostly stale
    std::erase_if(protected_, [this](const Waiting& waiting) { return IsStale(waiting); });
  }
}

bool SlruPolicy::IsStale(const Waiting& waiting) const {
  const Place& place = places_[static_cast<size_t>(waiting.id)];
  return !place.is_protected || place.order != waiting.order;
}

void SlruPolicy::DemoteOldest() {
  const Waiting oldest = protected_.front();
  protected_.pop_front();
  if (!IsStale(oldest)) {
    places_[static_cast<size_t>(oldest.id)] = Place{false, next_order_++};
    --num_protected_;
  }
}

void SlruPolicy::Unprotect(BlockId id) {
  Place& place = places_[static_cast<size_t>(id)];
  num_protected_ -= place.is_protected ? 1 : 0;
  place.is_protected = false;
}

}  // namespace kvik::kv
