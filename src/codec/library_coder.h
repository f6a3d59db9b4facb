// SPDX-License-Identifier: Apache-2.0
// codec/library_coder.h: coders that are a general compression library over packed symbols: two,
// four or eight symbols share a byte where they fit, the rest are bytes.
//
//   byte    0: what follows is plain; 1: it is compressed
//   bytes   the groups of planes (codec/symbol_groups.h), packed
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "codec/stage.h"

namespace kvik::codec {

class Compressor {
 public:
  virtual ~Compressor() = default;
  // Bytes written to `out`, or 0 when they do not fit. Any out.size() is allowed.
  [[nodiscard]] virtual size_t Compress(std::span<const std::byte> in,
                                        std::span<std::byte> out) const = 0;
  // True when `in` gave exactly out.size() bytes. `in` is not trusted.
  [[nodiscard]] virtual bool Decompress(std::span<const std::byte> in,
                                        std::span<std::byte> out) const = 0;
};

std::unique_ptr<EntropyCoder> MakeLibraryCoder(std::unique_ptr<Compressor> compressor);

}  // namespace kvik::codec
