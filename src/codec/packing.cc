// SPDX-License-Identifier: Apache-2.0
#include "codec/packing.h"

#include <array>

#include "base/check.h"

namespace kvik::codec {
namespace {

constexpr PackShape MakeShape(uint32_t alphabet) {
  PackShape best{alphabet, 0, 1, 1};
  for (uint32_t bytes = 1; bytes <= 7; ++bytes) {
    const uint64_t room = uint64_t{1} << (8 * bytes);
    PackShape shape{alphabet, 0, bytes, 1};
    while (shape.power <= room / alphabet) {
      shape.power *= alphabet;
      ++shape.digits;
    }
    if (shape.digits * best.word_bytes > best.digits * bytes) {
      best = shape;
    }
  }
  return best;
}

constexpr std::array<PackShape, 257> MakeShapes() {
  std::array<PackShape, 257> shapes{};
  for (uint32_t alphabet = 2; alphabet <= 256; ++alphabet) {
    shapes[alphabet] = MakeShape(alphabet);
  }
  return shapes;
}
constexpr std::array<PackShape, 257> kShapes = MakeShapes();

}  // namespace

const PackShape& PackShapeOf(int alphabet) {
  KVIK_CHECK(alphabet >= 2 && alphabet <= 256);
  return kShapes[static_cast<size_t>(alphabet)];
}

size_t PackedBytes(size_t symbols, int alphabet) {
  const PackShape& shape = PackShapeOf(alphabet);
  return (symbols + shape.digits - 1) / shape.digits * shape.word_bytes;
}

void PackSymbols(Isa isa, std::span<const uint8_t> symbols, int alphabet,
                 std::span<std::byte> out) {
  KVIK_CHECK(out.size() == PackedBytes(symbols.size(), alphabet));
  CoderKernelsOf(isa).pack(symbols.data(), symbols.size(), PackShapeOf(alphabet),
                           reinterpret_cast<uint8_t*>(out.data()));
}

Result<void> UnpackSymbols(Isa isa, std::span<const std::byte> in, int alphabet,
                           std::span<uint8_t> symbols) {
  if (in.size() != PackedBytes(symbols.size(), alphabet)) {
    return Err(ErrorCode::kCorrupt, "%zu bytes of %zu packed symbols", in.size(), symbols.size());
  }
  const CoderKernels& kernels = CoderKernelsOf(isa);
  const PackShape& shape = PackShapeOf(alphabet);
  kernels.unpack(reinterpret_cast<const uint8_t*>(in.data()), symbols.size(), shape,
                 symbols.data());
  // Words of several digits cannot say anything else.
  if (shape.digits == 1 && kernels.largest(symbols.data(), symbols.size()) >= alphabet) {
    return Err(ErrorCode::kCorrupt, "a symbol is outside its alphabet of %d", alphabet);
  }
  return {};
}

}  // namespace kvik::codec
