// SPDX-License-Identifier: Apache-2.0
#include "codec/symbol_groups.h"

#include <cstring>

namespace kvik::codec {
namespace {
// Planes and groups of that many symbols stand alone: a table of their own costs them little.
constexpr size_t kJoinBelow = 8192;
constexpr size_t kNoGroup = static_cast<size_t>(-1);
}  // namespace

void SymbolGroups::Form(std::span<const SymbolPlane> planes, Join join) {
  groups_.clear();
  group_of_.assign(planes.size(), kNoGroup);
  for (size_t p = 0; p < planes.size(); ++p) {
    const SymbolPlane& plane = planes[p];
    const size_t n = plane.symbols.size();
    if (n == 0) {
      continue;
    }
    const auto alike = [&](const SymbolGroup& group) {
      return group.alphabet == plane.alphabet &&
             (join == Join::kSameAlphabet || (group.uniform == plane.uniform &&
                                              (plane.uniform || group.context == plane.context)));
    };
    size_t g = kNoGroup;
    if (n < kJoinBelow) {
      for (size_t i = groups_.size(); i-- > 0;) {
        if (alike(groups_[i])) {
          g = groups_[i].n < kJoinBelow ? i : kNoGroup;
          break;
        }
      }
    }
    if (g == kNoGroup) {
      g = groups_.size();
      groups_.push_back({plane.alphabet, plane.context, plane.uniform, 0, p, 0, 0});
    }
    groups_[g].n += n;
    ++groups_[g].planes;
    group_of_[p] = g;
  }
  size_t offset = 0;
  for (SymbolGroup& group : groups_) {
    if (group.planes > 1) {
      group.offset = offset;
      offset += group.n;
    }
  }
  if (joined_.size() < offset) {
    joined_.resize(offset);
  }
}

template <typename F>
void SymbolGroups::ForEachJoined(size_t planes, F f) const {
  // Groups interleave: where the next plane of each goes.
  std::vector<size_t> next(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    next[g] = groups_[g].offset;
  }
  for (size_t p = 0; p < planes; ++p) {
    const size_t g = group_of_[p];
    if (g != kNoGroup && groups_[g].planes > 1) {
      next[g] += f(p, next[g]);
    }
  }
}

void SymbolGroups::Gather(std::span<const SymbolPlane> planes) {
  ForEachJoined(planes.size(), [&](size_t p, size_t at) {
    std::memcpy(joined_.data() + at, planes[p].symbols.data(), planes[p].symbols.size());
    return planes[p].symbols.size();
  });
}

std::span<const uint8_t> SymbolGroups::Source(std::span<const SymbolPlane> planes,
                                              const SymbolGroup& group) const {
  if (group.planes == 1) {
    return planes[group.first_plane].symbols;
  }
  return {joined_.data() + group.offset, group.n};
}

std::span<uint8_t> SymbolGroups::Target(std::span<SymbolPlane> planes, const SymbolGroup& group) {
  if (group.planes == 1) {
    return planes[group.first_plane].symbols;
  }
  return {joined_.data() + group.offset, group.n};
}

void SymbolGroups::Scatter(std::span<SymbolPlane> planes) const {
  ForEachJoined(planes.size(), [&](size_t p, size_t at) {
    std::memcpy(planes[p].symbols.data(), joined_.data() + at, planes[p].symbols.size());
    return planes[p].symbols.size();
  });
}

}  // namespace kvik::codec
