// SPDX-License-Identifier: Apache-2.0
#include "eval/raw_prompt.h"

#include <xxhash.h>

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/replace_file.h"

namespace kvik::eval {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is written as memory lies");

constexpr std::array<char, 8> kMagic = {'K', 'V', 'I', 'K', 'R', 'A', 'W', 'P'};
constexpr uint32_t kVersion = 1;
constexpr size_t kAlign = 64;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t header_bytes = 128;
  uint64_t key = 0;
  int32_t item = 0;
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t num_q_heads = 0;
  int32_t head_dim = 0;
  int32_t num_tokens = 0;
  int32_t num_continuation = 0;
  int32_t num_reference = 0;
  int32_t num_queries = 0;
  int32_t reserved = 0;
  uint64_t size_bytes = 0;
  uint64_t payload_hash = 0;
  std::array<uint64_t, 5> unused = {};
  uint64_t header_hash = 0;  // of everything before it
};
static_assert(sizeof(Header) == 128);

uint64_t HeaderHash(const Header& header) {
  return XXH3_64bits(&header, offsetof(Header, header_hash));
}

bool InRange(int32_t value, int32_t low, int32_t high) { return value >= low && value <= high; }

size_t Aligned(size_t offset) { return (offset + kAlign - 1) / kAlign * kAlign; }

}  // namespace

// Every count is bounded first, so that no product below overflows 64 bits.
Result<RawPrompt::Layout> RawPrompt::LayoutOf(const RawShape& shape) {
  constexpr int32_t kMany = 1 << 24;
  if (!InRange(shape.item, 0, kMany) || !InRange(shape.num_layers, 1, 1024) ||
      !InRange(shape.num_kv_heads, 1, 1024) || !InRange(shape.num_q_heads, 1, 1024) ||
      !InRange(shape.head_dim, 1, 1024) || !InRange(shape.num_tokens, 1, kMany) ||
      !InRange(shape.num_continuation, 1, kMany) || !InRange(shape.num_reference, 0, kMany) ||
      !InRange(shape.num_queries, 0, shape.num_continuation)) {
    return Err(ErrorCode::kInvalidInput, "a count of the shape is out of range");
  }
  const auto size = [](int32_t count) { return static_cast<size_t>(count); };
  Layout layout;
  layout.tokens = sizeof(Header);
  layout.continuation = Aligned(layout.tokens + size(shape.num_tokens) * sizeof(TokenId));
  layout.reference = Aligned(layout.continuation + size(shape.num_continuation) * sizeof(TokenId));
  layout.query_positions = Aligned(layout.reference + size(shape.num_reference) * sizeof(TokenId));
  layout.queries = Aligned(layout.query_positions + size(shape.num_queries) * sizeof(int32_t));
  layout.rows =
      Aligned(layout.queries + size(shape.num_layers) * size(shape.num_queries) *
                                   size(shape.num_q_heads) * size(shape.head_dim) * sizeof(float));
  layout.end = layout.rows + size(shape.num_layers) * 2 * size(shape.num_kv_heads) *
                                 size(shape.num_tokens) * size(shape.head_dim) * sizeof(Bf16);
  return layout;
}

Result<uint64_t> RawPrompt::SizeBytes(const RawShape& shape) {
  KVIK_ASSIGN(const Layout layout, LayoutOf(shape));
  return uint64_t{layout.end};
}

RawPrompt::RawPrompt(const RawShape& shape, const Layout& layout,
                     std::variant<AlignedBuffer, MappedFile> storage)
    : shape_(shape), layout_(layout), storage_(std::move(storage)) {}

Result<RawPrompt> RawPrompt::Create(const RawShape& shape) {
  KVIK_ASSIGN(const Layout layout, LayoutOf(shape));
  KVIK_ASSIGN(AlignedBuffer memory, AlignedBuffer::Create(layout.end));
  return RawPrompt(shape, layout, std::move(memory));
}

Result<RawPrompt> RawPrompt::Load(const std::string& path, uint64_t key) {
  KVIK_ASSIGN(MappedFile file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file.bytes();
  const auto corrupt = [&](const char* what) {
    return Err(ErrorCode::kCorrupt, "%s: %s; delete it and it is computed again", path.c_str(),
               what);
  };
  Header header;
  if (bytes.size() < sizeof header) {
    return corrupt("is too short for its header");
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic || header.version != kVersion || header.header_bytes != 128) {
    return corrupt("is no raw prompt of this version");
  }
  if (header.header_hash != HeaderHash(header)) {
    return corrupt("has a damaged header");
  }
  if (header.key != key) {
    return corrupt("was computed for something else");
  }
  const RawShape shape{.item = header.item,
                       .num_layers = header.num_layers,
                       .num_kv_heads = header.num_kv_heads,
                       .num_q_heads = header.num_q_heads,
                       .head_dim = header.head_dim,
                       .num_tokens = header.num_tokens,
                       .num_continuation = header.num_continuation,
                       .num_reference = header.num_reference,
                       .num_queries = header.num_queries};
  const Result<Layout> layout = LayoutOf(shape);
  if (!layout || header.size_bytes != layout->end || bytes.size() != layout->end) {
    return corrupt("has a size that its header contradicts");
  }
  const std::span<const std::byte> payload = bytes.subspan(sizeof header);
  if (XXH3_64bits(payload.data(), payload.size()) != header.payload_hash) {
    return corrupt("has damaged contents");
  }
  RawPrompt prompt(shape, *layout, std::move(file));
  int32_t previous = -1;
  for (const int32_t position : prompt.query_positions()) {
    if (position <= previous || position + 1 >= shape.num_continuation) {
      return corrupt("has queries at impossible positions");
    }
    previous = position;
  }
  return prompt;
}

Result<void> RawPrompt::Save(const std::string& path, uint64_t key) {
  AlignedBuffer& memory = std::get<AlignedBuffer>(storage_);
  const std::span<const std::byte> all = bytes();
  const std::span<const std::byte> payload = all.subspan(sizeof(Header));
  Header header;
  header.key = key;
  header.item = shape_.item;
  header.num_layers = shape_.num_layers;
  header.num_kv_heads = shape_.num_kv_heads;
  header.num_q_heads = shape_.num_q_heads;
  header.head_dim = shape_.head_dim;
  header.num_tokens = shape_.num_tokens;
  header.num_continuation = shape_.num_continuation;
  header.num_reference = shape_.num_reference;
  header.num_queries = shape_.num_queries;
  header.size_bytes = all.size();
  header.payload_hash = XXH3_64bits(payload.data(), payload.size());
  header.header_hash = HeaderHash(header);
  std::memcpy(memory.data(), &header, sizeof header);
  return ReplaceFile(path, all);
}

std::span<const std::byte> RawPrompt::bytes() const {
  if (const auto* memory = std::get_if<AlignedBuffer>(&storage_)) {
    return {memory->data(), memory->size_bytes()};
  }
  return std::get<MappedFile>(storage_).bytes();
}

namespace {

template <typename T>
std::span<const T> View(std::span<const std::byte> bytes, size_t offset, size_t count) {
  return {reinterpret_cast<const T*>(bytes.data() + offset), count};
}

// What is in memory of its own may be written.
template <typename T>
std::span<T> Mutable(std::span<const T> view) {
  return {const_cast<T*>(view.data()), view.size()};
}

}  // namespace

std::span<const TokenId> RawPrompt::tokens() const {
  return View<TokenId>(bytes(), layout_.tokens, static_cast<size_t>(shape_.num_tokens));
}
std::span<const TokenId> RawPrompt::continuation() const {
  return View<TokenId>(bytes(), layout_.continuation, static_cast<size_t>(shape_.num_continuation));
}
std::span<const TokenId> RawPrompt::reference() const {
  return View<TokenId>(bytes(), layout_.reference, static_cast<size_t>(shape_.num_reference));
}
std::span<const int32_t> RawPrompt::query_positions() const {
  return View<int32_t>(bytes(), layout_.query_positions, static_cast<size_t>(shape_.num_queries));
}
std::span<const float> RawPrompt::queries(int32_t layer) const {
  const size_t count = static_cast<size_t>(shape_.num_queries) *
                       static_cast<size_t>(shape_.num_q_heads) *
                       static_cast<size_t>(shape_.head_dim);
  return View<float>(bytes(), layout_.queries + static_cast<size_t>(layer) * count * sizeof(float),
                     count);
}
std::span<const Bf16> RawPrompt::rows(int32_t layer, kv::KvPart part) const {
  const size_t count = static_cast<size_t>(shape_.num_kv_heads) *
                       static_cast<size_t>(shape_.num_tokens) *
                       static_cast<size_t>(shape_.head_dim);
  const size_t index = static_cast<size_t>(layer) * 2 + static_cast<size_t>(part);
  return View<Bf16>(bytes(), layout_.rows + index * count * sizeof(Bf16), count);
}

std::span<TokenId> RawPrompt::mutable_tokens() {
  CheckOwned();
  return Mutable(tokens());
}
std::span<TokenId> RawPrompt::mutable_continuation() {
  CheckOwned();
  return Mutable(continuation());
}
std::span<TokenId> RawPrompt::mutable_reference() {
  CheckOwned();
  return Mutable(reference());
}
std::span<int32_t> RawPrompt::mutable_query_positions() {
  CheckOwned();
  return Mutable(query_positions());
}
std::span<float> RawPrompt::mutable_queries(int32_t layer) {
  CheckOwned();
  return Mutable(queries(layer));
}
std::span<Bf16> RawPrompt::mutable_rows(int32_t layer, kv::KvPart part) {
  CheckOwned();
  return Mutable(rows(layer, part));
}

void RawPrompt::CheckOwned() const {
  KVIK_CHECK(std::holds_alternative<AlignedBuffer>(storage_), "a loaded prompt is read-only");
}

}  // namespace kvik::eval
