// SPDX-License-Identifier: Apache-2.0
// What every published preset, and a few pipelines across them, must do whatever the shape and the
// values: come back, to the same bytes and values on every instruction set and any number of
// threads, count every byte, and never let one value spoil another.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/crc32c.h"
#include "base/isa.h"
#include "base/rng.h"
#include "codec/frame.h"
#include "codec/frame_stream.h"
#include "codec/pages.h"
#include "codec/presets.h"
#include "codec/registry.h"
#include "codec/stage.h"
#include "codec/testing/made_kv.h"
#include "codec/testing/made_side_info.h"

namespace kvik::codec {
namespace {

using testing::DecodedRows;
using testing::MadeModel;
using testing::MadeRows;
using testing::MadeSideInfo;

struct Case {
  std::string name;
  std::string pipeline;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Preset& preset : AllPresets()) {
    cases.push_back({std::string(preset.name), std::string(preset.pipeline)});
  }
  cases.push_back({"hadamard_with_cachegens_quantizer",
                   "center+hadamard -> uniform(levels=thirds(32,16,12),mode=symmetric) -> rans"});
  cases.push_back(
      {"prerope_klt_ecsq_rans", "k:prerope+center+klt|v:center+klt -> ecsq(d=0.05) -> rans"});
  cases.push_back({"prerope_fp8", "k:prerope|v:none -> fp8 -> none"});
  cases.push_back({"odd_levels_packed", "selfcenter+hadamard -> uniform(levels=6) -> pack"});
  cases.push_back(
      {"streaming_heads_in_two_bits",
       "keep(sinks=4,recent=16)+hadamard -> uniform(levels=4,per=token,group=64) -> lz4"});
  return cases;
}

class EveryPreset : public ::testing::TestWithParam<Case> {
 protected:
  static std::unique_ptr<FrameCodec> Make(const ModelFacts& model, Isa isa = Isa::kScalar) {
    const auto pipeline = PipelineSpec::Parse(GetParam().pipeline);
    KVIK_CHECK(pipeline.has_value(), "%s", pipeline.error().message.c_str());
    auto codec = FrameCodec::Create(*pipeline, model, MadeSideInfo(*pipeline, model, 3), isa);
    KVIK_CHECK(codec.has_value(), "%s", codec.error().message.c_str());
    return std::move(codec).value();
  }

  static std::vector<std::byte> Encode(const FrameCodec& codec, const KvRows& rows,
                                       FrameParts parts = FrameParts::kBoth) {
    Workspace workspace;
    std::vector<std::byte> bytes;
    const auto size = codec.Encode(rows, parts, workspace, bytes);
    KVIK_CHECK(size.has_value(), "%s", size.error().message.c_str());
    return bytes;
  }
};

INSTANTIATE_TEST_SUITE_P(Presets, EveryPreset, ::testing::ValuesIn(Cases()), [](const auto& test) {
  std::string name = test.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Root mean square of the difference over that of the original about its channel means.
double RelativeError(const std::vector<Bf16>& raw, const std::vector<Bf16>& decoded, size_t tokens,
                     size_t dim, const std::vector<bool>& kept) {
  double error = 0;
  double power = 0;
  for (size_t first = 0; first < raw.size(); first += tokens * dim) {
    for (size_t c = 0; c < dim; ++c) {
      double mean = 0;
      for (size_t t = 0; t < tokens; ++t) {
        mean +=
            static_cast<double>(ToFloat(raw[first + t * dim + c])) / static_cast<double>(tokens);
      }
      for (size_t t = 0; t < tokens; ++t) {
        const size_t i = first + t * dim + c;
        if (!kept[i]) {
          continue;
        }
        const double x = ToFloat(raw[i]);
        const double difference = ToFloat(decoded[i]) - x;
        error += difference * difference;
        power += (x - mean) * (x - mean);
      }
    }
  }
  return power > 0 ? std::sqrt(error / power) : std::sqrt(error);
}

std::vector<bool> KeptValues(const DecodedFrame& frame, size_t values, size_t tokens, size_t dim) {
  std::vector<bool> kept(values, true);
  for (const DroppedRange& range : frame.dropped) {
    for (int32_t t = range.first_token; t < range.end_token; ++t) {
      const size_t row = static_cast<size_t>(range.kv_head) * tokens +
                         static_cast<size_t>(t - frame.header.first_token);
      std::fill_n(kept.begin() + static_cast<ptrdiff_t>(row * dim), dim, false);
    }
  }
  return kept;
}

TEST_P(EveryPreset, OddShapesComeBack) {
  // kv heads of models with 28/4, 14/2, 9/3 and 5 heads, of MQA, and of MHA.
  for (const int32_t head_dim : {64, 80, 96, 100, 112, 128, 192, 256}) {
    for (const int32_t heads : head_dim == 64 ? std::vector<int32_t>{1, 2, 3, 4, 5, 12}
                                              : std::vector<int32_t>{1 + head_dim / 16 % 2}) {
      const ModelFacts model = MadeModel(2, heads, head_dim);
      const auto codec = Make(model);
      for (const int32_t tokens : {1, 2, 3, 16, 33, 77}) {
        SCOPED_TRACE(::testing::Message() << head_dim << " x " << heads << " x " << tokens);
        const MadeRows made(model, 1, 64, tokens, 5);
        const auto bytes = Encode(*codec, made.rows);
        DecodedRows decoded(model, made.rows);
        Workspace workspace;
        const auto frame = codec->Decode(bytes, workspace, decoded.out);
        ASSERT_TRUE(frame) << frame.error().message;
        const auto kept = KeptValues(*frame, made.keys.size(), static_cast<size_t>(tokens),
                                     static_cast<size_t>(head_dim));
        for (size_t i = 0; i < kept.size(); ++i) {
          ASSERT_TRUE(std::isfinite(ToFloat(decoded.keys[i])));
          ASSERT_TRUE(std::isfinite(ToFloat(decoded.values[i])));
          if (!kept[i]) {
            ASSERT_EQ(decoded.keys[i].bits, 0);
            ASSERT_EQ(decoded.values[i].bits, 0);
          } else if (!codec->lossy() || frame->header.fidelity == Fidelity::kExact) {
            ASSERT_EQ(decoded.keys[i], made.keys[i]);
            ASSERT_EQ(decoded.values[i], made.values[i]);
          }
        }
      }
    }
  }
}

TEST_P(EveryPreset, IsCloserThanTheMeansOfChannels) {
  const ModelFacts model = MadeModel(12, 2, 64);
  const auto codec = Make(model, SupportedIsas().back());
  const MadeRows made(model, 5, 0, 512, 5);
  DecodedRows decoded(model, made.rows);
  Workspace workspace;
  const auto frame = codec->Decode(Encode(*codec, made.rows), workspace, decoded.out);
  ASSERT_TRUE(frame) << frame.error().message;
  const auto kept = KeptValues(*frame, made.keys.size(), 512, 64);
  const double key_error = RelativeError(made.keys, decoded.keys, 512, 64, kept);
  const double value_error = RelativeError(made.values, decoded.values, 512, 64, kept);
  RecordProperty("key_error", std::to_string(key_error));
  RecordProperty("value_error", std::to_string(value_error));
  // Key biases of 200 beside spreads of 1 are what methods without mean removal stumble over.
  const bool removes_means = GetParam().pipeline.find("selfcenter") != std::string::npos ||
                             GetParam().pipeline.find("per=channel") != std::string::npos;
  EXPECT_LT(key_error, removes_means ? 0.8 : 40.0);
  EXPECT_LT(value_error, 0.8);
}

TEST_P(EveryPreset, EveryIsaWritesTheSameBytesAndReadsTheSameValues) {
  for (const auto& [heads, head_dim, tokens] :
       std::vector<std::tuple<int32_t, int32_t, int32_t>>{{3, 64, 128}, {2, 96, 37}, {1, 100, 5}}) {
    const ModelFacts model = MadeModel(12, heads, head_dim);
    const MadeRows made(model, 10, 0, tokens, 8);
    const auto reference = Make(model);
    const auto bytes = Encode(*reference, made.rows);
    DecodedRows expected(model, made.rows);
    Workspace workspace;
    ASSERT_TRUE(reference->Decode(bytes, workspace, expected.out));
    for (const Isa isa : SupportedIsas()) {
      const auto codec = Make(model, isa);
      EXPECT_EQ(Encode(*codec, made.rows), bytes) << IsaName(isa);
      DecodedRows decoded(model, made.rows);
      ASSERT_TRUE(codec->Decode(bytes, workspace, decoded.out)) << IsaName(isa);
      EXPECT_EQ(decoded.keys, expected.keys) << IsaName(isa);
      EXPECT_EQ(decoded.values, expected.values) << IsaName(isa);
    }
  }
}

TEST_P(EveryPreset, ThreadsAndOrderDoNotMatter) {
  const ModelFacts model = MadeModel(12, 2, 64);
  const auto codec = Make(model);
  std::vector<std::unique_ptr<MadeRows>> made;
  std::vector<std::vector<std::byte>> alone;
  for (int32_t layer = 0; layer < 12; ++layer) {
    made.push_back(std::make_unique<MadeRows>(model, layer, 16 * layer, 16 + layer, 4));
    alone.push_back(Encode(*codec, made.back()->rows));
  }
  // In one stream by one thread, with one workspace.
  std::vector<std::byte> stream;
  StreamWriter writer(*codec, stream);
  Workspace shared;
  const size_t header_bytes = stream.size();
  size_t sum = 0;
  for (const auto& rows : made) {
    const auto size = writer.Add(rows->rows, FrameParts::kBoth, shared);
    ASSERT_TRUE(size);
    sum += *size;
  }
  // What is reported per object sums to the bytes on the wire.
  EXPECT_EQ(stream.size() - header_bytes, sum);
  EXPECT_EQ(writer.frame_bytes(), sum);
  size_t at = header_bytes;
  for (const auto& bytes : alone) {
    ASSERT_TRUE(
        std::equal(bytes.begin(), bytes.end(), stream.begin() + static_cast<ptrdiff_t>(at)));
    at += bytes.size();
  }
  // By three threads at once, in different orders.
  std::vector<std::vector<std::byte>> by_threads(36);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      Workspace workspace;
      for (size_t i = 0; i < 12; ++i) {
        const size_t layer = (i * 5 + thread * 7) % 12;
        std::vector<std::byte>& out = by_threads[thread * 12 + layer];
        KVIK_CHECK(codec->Encode(made[layer]->rows, FrameParts::kBoth, workspace, out).has_value());
        DecodedRows decoded(model, made[layer]->rows);
        KVIK_CHECK(codec->Decode(out, workspace, decoded.out).has_value());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t i = 0; i < by_threads.size(); ++i) {
    EXPECT_EQ(by_threads[i], alone[i % 12]);
  }
}

TEST_P(EveryPreset, KeysAndValuesMayTravelApart) {
  const ModelFacts model = MadeModel(3, 2, 64);
  const auto codec = Make(model);
  const MadeRows made(model, 1, 0, 40, 3);
  DecodedRows together(model, made.rows);
  DecodedRows apart(model, made.rows);
  Workspace workspace;
  ASSERT_TRUE(codec->Decode(Encode(*codec, made.rows), workspace, together.out));
  ASSERT_TRUE(codec->Decode(Encode(*codec, made.rows, FrameParts::kValue), workspace, apart.out));
  ASSERT_TRUE(codec->Decode(Encode(*codec, made.rows, FrameParts::kKey), workspace, apart.out));
  EXPECT_EQ(together.keys, apart.keys);
  EXPECT_EQ(together.values, apart.values);
}

TEST_P(EveryPreset, OneBadValueSpoilsNoOther) {
  const ModelFacts model = MadeModel(3, 2, 64);
  const auto codec = Make(model);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad :
       {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 1e38F, -1e38F, 20000.0F}) {
    MadeRows made(model, 1, 0, 40, 3);
    const size_t at = (1 * 40 + 23) * 64 + 17;
    MadeRows ordinary(model, 1, 0, 40, 3);  // as the token before is
    ordinary.keys[at] = made.keys[at - 64];
    ordinary.values[at] = made.values[at - 64];
    made.keys[at] = made.values[at] = ToBf16(bad);
    DecodedRows decoded(model, made.rows);
    DecodedRows expected(model, made.rows);
    Workspace workspace;
    const auto frame = codec->Decode(Encode(*codec, made.rows), workspace, decoded.out);
    ASSERT_TRUE(frame);
    ASSERT_TRUE(codec->Decode(Encode(*codec, ordinary.rows), workspace, expected.out));
    if (KeptValues(*frame, made.keys.size(), 40, 64)[at]) {
      EXPECT_EQ(decoded.keys[at], made.keys[at]);
      EXPECT_EQ(decoded.values[at], made.values[at]);
    }
    // All others are what they are beside an ordinary value.
    decoded.keys[at] = expected.keys[at];
    decoded.values[at] = expected.values[at];
    EXPECT_EQ(decoded.keys, expected.keys) << bad;
    EXPECT_EQ(decoded.values, expected.values) << bad;
  }
}

TEST_P(EveryPreset, DegenerateValuesStayFinite) {
  const ModelFacts model = MadeModel(3, 2, 64);
  const auto codec = Make(model);
  const float denormal = 1e-39F;
  const auto fill = [&](auto value_of) {
    MadeRows made(model, 2, 0, 37, 3);
    for (size_t i = 0; i < made.keys.size(); ++i) {
      made.keys[i] = made.values[i] = ToBf16(value_of(i));
    }
    DecodedRows decoded(model, made.rows);
    Workspace workspace;
    const auto frame = codec->Decode(Encode(*codec, made.rows), workspace, decoded.out);
    ASSERT_TRUE(frame) << frame.error().message;
    double largest = 0;
    for (const Bf16 value : made.keys) {
      largest = std::max(largest, std::fabs(static_cast<double>(ToFloat(value))));
    }
    for (const std::vector<Bf16>* part : {&decoded.keys, &decoded.values}) {
      SCOPED_TRACE(part == &decoded.keys ? "keys" : "values");
      for (size_t i = 0; i < part->size(); ++i) {
        ASSERT_TRUE(std::isfinite(ToFloat((*part)[i]))) << i;
        // Not farther off than the values are large (and what calibration was made up).
        ASSERT_LE(std::fabs(ToFloat((*part)[i])), 40 * largest + 40) << i;
      }
    }
  };
  fill([](size_t) { return 0.0F; });
  fill([](size_t) { return -0.0F; });
  fill([](size_t) { return 3.25F; });
  fill([](size_t i) { return i % 64 == 5 ? 211.0F : 0.01F; });
  fill([&](size_t i) { return i % 2 == 0 ? denormal : -denormal; });
  fill([](size_t i) { return i % 2 == 0 ? 16384.0F : -16384.0F; });  // ranges overflow a half
  fill([](size_t i) { return i % 3 == 0 ? 1e38F : 1.0F; });          // too many to take out
}

TEST_P(EveryPreset, StaleSlotsOfAPartlyFilledBlockDoNotMatter) {
  const ModelFacts model = MadeModel(2, 2, 64);
  const auto codec = Make(model);
  kv::KvGeometry geometry;
  geometry.num_layers = 2;
  geometry.num_kv_heads = 2;
  geometry.head_dim = 64;
  const std::vector<BlockId> table = {2, 0};
  const TokenSpan tokens{table, 0, 16 + 5};
  const MadeRows made(model, 0, 0, tokens.num_tokens, 3);
  std::vector<std::byte> first;
  for (const int stale : {0x00, 0xFF, 0x7F, 0x5A}) {
    std::vector<std::byte> arena(geometry.bytes_per_block() * 3, static_cast<std::byte>(stale));
    WriteRows(geometry, arena, tokens, 0, kv::KvPart::kKey, made.rows.head_stride, made.rows.keys);
    WriteRows(geometry, arena, tokens, 0, kv::KvPart::kValue, made.rows.head_stride,
              made.rows.values);
    std::vector<Bf16> keys(made.keys.size());
    std::vector<Bf16> values(made.values.size());
    KvRows rows = made.rows;
    rows.keys = keys.data();
    rows.values = values.data();
    ReadRows(geometry, arena, tokens, 0, kv::KvPart::kKey, rows.head_stride, keys.data());
    ReadRows(geometry, arena, tokens, 0, kv::KvPart::kValue, rows.head_stride, values.data());
    const auto bytes = Encode(*codec, rows);
    if (first.empty()) {
      first = bytes;
    }
    EXPECT_EQ(bytes, first);
    // Decoded into a block of stale bytes, the rest of it is defined.
    DecodedRows decoded(model, rows);
    Workspace workspace;
    ASSERT_TRUE(codec->Decode(bytes, workspace, decoded.out));
    ZeroSlotsFrom(geometry, arena, table[1], 5);
    std::vector<Bf16> rest(2 * 11 * 64, Bf16{1});
    ReadRows(geometry, arena, {table, 21, 11}, 0, kv::KvPart::kKey, 11 * 64, rest.data());
    EXPECT_TRUE(std::all_of(rest.begin(), rest.end(), [](Bf16 v) { return v.bits == 0; }));
  }
}

TEST_P(EveryPreset, DamageUnderAValidCrcIsAnErrorOrOtherValuesNeverHarm) {
  const ModelFacts model = MadeModel(3, 2, 64);
  const auto codec = Make(model);
  const MadeRows made(model, 1, 0, 21, 3);
  const auto bytes = Encode(*codec, made.rows);
  Rng rng(17);
  Workspace workspace;
  for (int round = 0; round < 400; ++round) {
    std::vector<std::byte> damaged = bytes;
    const size_t edits = 1 + rng.Below(6);
    for (size_t i = 0; i < edits; ++i) {
      // Mostly where lengths are: near the start of the payload.
      const size_t span =
          rng.Below(2) == 0 ? std::min<size_t>(48, damaged.size() - 56) : damaged.size() - 56;
      damaged[56 + rng.Below(span)] = static_cast<std::byte>(rng.Below(256));
    }
    if (rng.Below(4) == 0) {
      damaged.resize(56 + rng.Below(damaged.size() - 56));
    }
    const auto payload = static_cast<uint32_t>(damaged.size() - 56);
    std::memcpy(damaged.data() + 28, &payload, sizeof(payload));
    const uint32_t crc = Crc32c(std::span(damaged).subspan(8));
    std::memcpy(damaged.data() + 4, &crc, sizeof(crc));
    DecodedRows decoded(model, made.rows);
    const auto frame = codec->Decode(damaged, workspace, decoded.out);
    EXPECT_TRUE(frame || frame.error().code == ErrorCode::kCorrupt) << frame.error().message;
  }
}

TEST(EveryPresetTogether, AProfileSwitchBetweenRequestsIsNoticed) {
  const ModelFacts model = MadeModel(3, 2, 64);
  std::vector<std::unique_ptr<FrameCodec>> codecs;
  std::vector<std::vector<std::byte>> frames;
  const MadeRows made(model, 1, 0, 20, 3);
  Workspace workspace;  // one, for all of them in turn
  for (const Case& c : Cases()) {
    const auto pipeline = PipelineSpec::Parse(c.pipeline);
    ASSERT_TRUE(pipeline) << pipeline.error().message;
    auto codec = FrameCodec::Create(*pipeline, model, MadeSideInfo(*pipeline, model, 3),
                                    SupportedIsas().back());
    ASSERT_TRUE(codec) << codec.error().message;
    codecs.push_back(std::move(codec).value());
    frames.emplace_back();
    ASSERT_TRUE(codecs.back()->Encode(made.rows, FrameParts::kBoth, workspace, frames.back()));
  }
  for (size_t writer = 0; writer < codecs.size(); ++writer) {
    for (size_t reader = 0; reader < codecs.size(); ++reader) {
      DecodedRows decoded(model, made.rows);
      const auto frame = codecs[reader]->Decode(frames[writer], workspace, decoded.out);
      EXPECT_EQ(frame.has_value(), writer == reader) << writer << " " << reader;
      EXPECT_TRUE(frame || frame.error().code == ErrorCode::kInvalidInput);
    }
  }
  // The same pipeline with another calibration is another profile.
  const auto pipeline = PipelineSpec::Parse("center -> uniform -> pack");
  ASSERT_TRUE(pipeline);
  const auto one =
      FrameCodec::Create(*pipeline, model, MadeSideInfo(*pipeline, model, 3), Isa::kScalar);
  const auto other =
      FrameCodec::Create(*pipeline, model, MadeSideInfo(*pipeline, model, 4), Isa::kScalar);
  ASSERT_TRUE(one && other);
  std::vector<std::byte> bytes;
  ASSERT_TRUE((*one)->Encode(made.rows, FrameParts::kBoth, workspace, bytes));
  DecodedRows decoded(model, made.rows);
  const auto frame = (*other)->Decode(bytes, workspace, decoded.out);
  ASSERT_FALSE(frame);
  EXPECT_NE(frame.error().message.find("another calibration"), std::string::npos);
}

TEST(EveryPresetTogether, ABadValueBesideALargeBiasCostsItsGroupNothing) {
  // Ranges of a channel with a large constant part must not reach down to a zero.
  const ModelFacts model = MadeModel(1, 1, 64);
  for (const char* const text : {"kivi-2", "selfcenter -> uniform(levels=4,per=channel) -> pack"}) {
    SCOPED_TRACE(text);
    const auto codec =
        FrameCodec::Create(*ParsePipelineOrPreset(text), model, nullptr, Isa::kScalar);
    ASSERT_TRUE(codec);
    for (const size_t bad_row : {0U, 1U, 17U, 31U}) {
      MadeRows made(model, 0, 0, 32, 3, false);
      made.rows.prompt_tokens = 0;
      for (size_t i = 0; i < made.keys.size(); ++i) {
        made.keys[i] = ToBf16(600.0F + 4 * ToFloat(made.keys[i]));
      }
      made.keys[bad_row * 64 + 9] = ToBf16(std::numeric_limits<float>::quiet_NaN());
      Workspace workspace;
      std::vector<std::byte> bytes;
      ASSERT_TRUE((*codec)->Encode(made.rows, FrameParts::kBoth, workspace, bytes));
      DecodedRows decoded(model, made.rows);
      ASSERT_TRUE((*codec)->Decode(bytes, workspace, decoded.out));
      for (size_t row = 0; row < 32; ++row) {
        if (row != bad_row) {
          EXPECT_NEAR(ToFloat(decoded.keys[row * 64 + 9]), ToFloat(made.keys[row * 64 + 9]), 30);
        }
      }
    }
  }
}

TEST(Presets, Kivi2TendsTo5Point33) {
  // 2 bits and two halves for 32 values are 3 bits: 16 / 3. The last 128 tokens and the header
  // weigh less the longer the prompt.
  const auto codec = [](const ModelFacts& model) {
    return std::move(FrameCodec::Create(*ParsePipelineOrPreset("kivi-2"), model, nullptr,
                                        SupportedIsas().back()))
        .value();
  };
  const ModelFacts model = MadeModel(2, 2, 64);
  double before = 0;
  for (const int32_t tokens : {128, 1024, 8192, 65536}) {
    const MadeRows made(model, 1, 0, tokens, 5);
    Workspace workspace;
    std::vector<std::byte> bytes;
    ASSERT_TRUE(codec(model)->Encode(made.rows, FrameParts::kBoth, workspace, bytes));
    const double ratio =
        static_cast<double>(tokens) * 2 * 2 * 64 * 2 / static_cast<double>(bytes.size());
    EXPECT_GT(ratio, before) << tokens;
    EXPECT_LT(ratio, 16.0 / 3);
    before = ratio;
  }
  EXPECT_GT(before, 5.28);
}

TEST(Presets, EachParsesToItsOwnCanonicalFormAndIsDescribed) {
  ASSERT_GE(AllPresets().size(), 12U);
  for (const Preset& preset : AllPresets()) {
    SCOPED_TRACE(preset.name);
    const auto pipeline = PipelineSpec::Parse(preset.pipeline);
    ASSERT_TRUE(pipeline) << pipeline.error().message;
    EXPECT_EQ(*PipelineSpec::Parse(pipeline->ToString()), *pipeline);
    EXPECT_FALSE(preset.source.empty() || preset.kept.empty() || preset.differs.empty());
    // What is said of calibration is so.
    const ModelFacts model = MadeModel(2, 2, 64);
    EXPECT_EQ(FrameCodec::Create(*pipeline, model, nullptr, Isa::kScalar).has_value(),
              !preset.calibrated);
    EXPECT_TRUE(
        FrameCodec::Create(*pipeline, model, MadeSideInfo(*pipeline, model, 1), Isa::kScalar));
  }
  EXPECT_EQ(FindPreset("kivi-3"), nullptr);
  const auto wrong = ParsePipelineOrPreset("kivi-3");
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("presets: lossless, kivi-2"), std::string::npos);
}

}  // namespace
}  // namespace kvik::codec
