// SPDX-License-Identifier: Apache-2.0
// The transform `delta`: tokens as differences to the first one of their group [CacheGen].
//
// Rows 0, g, 2g, ... of a tile are anchors: they leave the tile and are stored with 8 bits a value
// and one step a vector. The rows after an anchor become their differences to it as a decoder will
// see it, so errors of anchors do not add to errors of differences.
//
// Side, per head and anchor: the step as bf16, whose range no value of a tile exceeds, then a byte
// a channel, value / step + 128. A step of 0 stands for a vector of zeros.
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/float16.h"
#include "codec/kernels/transform_kernels.h"
#include "codec/stage.h"
#include "codec/stages/chain_rules.h"

namespace kvik::codec {
namespace {

constexpr float kMostSteps = 127.0F;
constexpr int kZeroCode = 128;

// The smallest bf16 with which `largest` is at most kMostSteps steps.
Bf16 StepFor(float largest) {
  const float exact = largest / kMostSteps;
  Bf16 step = ToBf16(exact);
  if (ToFloat(step) < exact) {
    ++step.bits;  // positive: the next one up
  }
  return step;
}

class Delta final : public Transform {
 public:
  explicit Delta(size_t group) : group_(group) {}

  Result<void> Forward(const TileContext& context, Tile& tile, ByteWriter& side) const override {
    const TransformKernels& kernels = TransformKernelsOf(context.isa);
    const auto rows = static_cast<size_t>(tile.rows);
    const auto n = static_cast<size_t>(tile.channels);
    float* const anchor = tile.Scratch(n).data();
    float* out = tile.values.data();  // never beyond what has been read
    for (int32_t head = 0; head < tile.heads; ++head) {
      const float* const in = tile.Head(head).data();
      for (size_t first = 0; first < rows; first += group_) {
        const float* const row = in + first * n;
        const Bf16 step = StepFor(kernels.max_abs(row, n));
        if (!std::isfinite(ToFloat(step))) {
          return Err(ErrorCode::kUnsupported, "the step of an anchor overflows");
        }
        side.U16(step.bits);
        auto* const codes = reinterpret_cast<uint8_t*>(side.Room(n).data());
        if (step.bits == 0) {
          std::memset(codes, kZeroCode, n);
        } else {
          kernels.encode_bytes(row, n, ToFloat(step), codes);
        }
        kernels.decode_bytes(codes, n, -ToFloat(step), anchor);
        const size_t count = std::min(group_, rows - first) - 1;
        kernels.add_row(row + n, count, n, anchor, out);
        out += count * n;
      }
    }
    tile.Resize(tile.heads, tile.rows - Anchors(tile.rows), tile.channels);
    return {};
  }

  Result<void> Inverse(const TileContext& context, Tile& tile, ByteReader& side) const override {
    const TransformKernels& kernels = TransformKernelsOf(context.isa);
    const size_t rows = context.positions.size();
    const auto n = static_cast<size_t>(tile.channels);
    const auto heads = static_cast<size_t>(tile.heads);
    const size_t anchors = (rows + group_ - 1) / group_;
    const size_t record_bytes = sizeof(Bf16) + n;
    KVIK_ASSIGN(const std::span<const std::byte> records,
                side.Bytes(heads * anchors * record_bytes));
    size_t unread = tile.size();  // values, from the start
    tile.Resize(tile.heads, static_cast<int32_t>(rows), tile.channels);
    float* const anchor = tile.Scratch(n).data();
    float* const values = tile.values.data();
    // Rows move towards the end, so the last ones move first.
    for (size_t i = heads * anchors; i-- > 0;) {
      Bf16 step;
      std::memcpy(&step.bits, records.data() + i * record_bytes, sizeof(step.bits));
      if (step.bits >= 0x7F80) {
        return Err(ErrorCode::kCorrupt, "the step of an anchor is negative or not finite");
      }
      const auto* const codes =
          reinterpret_cast<const uint8_t*>(records.data() + i * record_bytes + sizeof(step.bits));
      kernels.decode_bytes(codes, n, ToFloat(step), anchor);
      const size_t first = i % anchors * group_;
      const size_t count = std::min(group_, rows - first) - 1;
      unread -= count * n;
      float* const row = values + (i / anchors * rows + first) * n;
      kernels.add_row(values + unread, count, n, anchor, row + n);
      std::memcpy(row, anchor, n * sizeof(float));
    }
    return {};
  }

  [[nodiscard]] Shape Output(Shape input) const override {
    return {input.rows - Anchors(input.rows), input.channels};
  }
  void DropPositions(std::vector<int32_t>& positions) const override {
    size_t kept = 0;
    for (size_t i = 0; i < positions.size(); ++i) {
      if (i % group_ != 0) {
        positions[kept++] = positions[i];
      }
    }
    positions.resize(kept);
  }

 private:
  [[nodiscard]] int32_t Anchors(int32_t rows) const {
    const auto group = static_cast<int32_t>(group_);
    return rows / group + (rows % group != 0 ? 1 : 0);
  }

  size_t group_;
};

Result<std::unique_ptr<Transform>> Make(const StageArgs& args, const StageSite& /*site*/) {
  return std::unique_ptr<Transform>(
      std::make_unique<Delta>(static_cast<size_t>(args.Integer("group"))));
}

std::optional<std::string> Refuse(const StageArgs& /*args*/, const PipelineSpec& pipeline,
                                  kv::KvPart part, size_t index) {
  if (const std::string before = FirstBefore(pipeline, part, index, {"delta"}); !before.empty()) {
    return before + " has taken the differences already";
  }
  return std::nullopt;
}

}  // namespace

const StageModule& DeltaStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kTransform;
    module.name = "delta";
    module.summary = "tokens as differences to the first one of their group";
    ParamSpec group;
    group.name = "group";
    group.summary = "tokens, the anchor among them";
    group.type = ParamSpec::Type::kInteger;
    group.min = 2;
    group.max = 65536;
    group.default_value = ArgValue::Number(10);
    group.search = {ArgValue::Number(10), ArgValue::Number(5), ArgValue::Number(20)};
    module.params = {group};
    module.make_transform = Make;
    module.refuse = Refuse;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
