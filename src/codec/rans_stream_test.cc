// SPDX-License-Identifier: Apache-2.0
#include "codec/rans_stream.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/rng.h"
#include "codec/symbol_table.h"
#include "codec/testing/coder_reference.h"

namespace kvik::codec {
namespace {

using testing::ReferenceRans;
using testing::ReferenceSegment;

// Symbols of a random distribution and frequencies that fit it; some symbols never come.
ReferenceSegment RandomSegment(Rng& rng, uint32_t bits, size_t alphabet, size_t n) {
  std::vector<uint64_t> counts(alphabet);
  const double shape = 4.0 * rng.Uniform();
  double weight = 1e6;
  for (size_t s = 0; s < alphabet; ++s) {
    counts[s] = s > 1 && rng.Below(4) == 0 ? 0 : 1 + static_cast<uint64_t>(weight * rng.Uniform());
    weight /= 1.0 + shape / 8;
  }
  std::vector<uint16_t> freq(alphabet);
  NormalizeCounts(counts, bits, false, freq);
  ReferenceSegment segment;
  segment.freq.assign(freq.begin(), freq.end());
  for (size_t i = 0; i < n; ++i) {
    // Now and then a symbol as rare as they come.
    auto slot = static_cast<int64_t>(rng.Below(uint64_t{1} << bits));
    size_t s = 0;
    for (; slot >= segment.freq[s]; ++s) {
      slot -= segment.freq[s];
    }
    segment.symbols.push_back(static_cast<uint8_t>(s));
  }
  return segment;
}

Rans8Model Model8(const ReferenceSegment& segment) {
  Rans8Model model;
  model.size = static_cast<uint8_t>(segment.freq.size());
  uint32_t start = 0;
  for (size_t s = 0; s < segment.freq.size(); ++s) {
    model.freq[s] = static_cast<uint8_t>(segment.freq[s]);
    model.start[s] = static_cast<uint8_t>(start);
    start += segment.freq[s];
  }
  return model;
}

Rans12Model Model12(const ReferenceSegment& segment) {
  Rans12Model model;
  model.size = static_cast<uint32_t>(segment.freq.size());
  uint32_t start = 0;
  for (size_t s = 0; s < segment.freq.size(); ++s) {
    model.freq[s] = static_cast<uint16_t>(segment.freq[s]);
    model.start[s] = static_cast<uint16_t>(start);
    start += segment.freq[s];
  }
  return model;
}

// On both sides of where kernels change their ways.
constexpr size_t kSizes[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 200, 300, 1000, 4096, 5003, 9001};

TEST(RansStream, EveryIsaWritesTheReferencesBytesAndReadsThemBack8) {
  constexpr uint64_t kSeed = 20;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Rng rng(kSeed);
  for (int lanes = 1; lanes <= kMaxLanes; lanes *= 2) {
    for (int trial = 0; trial < 24; ++trial) {
      std::vector<ReferenceSegment> segments;
      std::vector<Rans8Model> models;
      for (size_t i = 0, n = rng.Below(4); i < n; ++i) {
        const size_t alphabet = 2 + rng.Below(trial % 2 == 0 ? 15 : 31);
        segments.push_back(RandomSegment(rng, 8, alphabet, kSizes[rng.Below(std::size(kSizes))]));
        models.push_back(Model8(segments.back()));
      }
      const std::vector<std::byte> expected = ReferenceRans(segments, 8, lanes);
      std::vector<Rans8Source> sources;
      for (size_t i = 0; i < segments.size(); ++i) {
        sources.push_back({segments[i].symbols.data(), segments[i].symbols.size(), &models[i]});
      }
      for (const Isa isa : SupportedIsas()) {
        std::vector<std::byte> bytes(3);
        EncodeRans8(isa, sources, lanes, bytes);
        ASSERT_EQ(std::vector<std::byte>(bytes.begin() + 3, bytes.end()), expected)
            << IsaName(isa) << ", " << lanes << " lanes, trial " << trial;
        std::vector<std::vector<uint8_t>> decoded;
        std::vector<Rans8Target> targets;
        for (size_t i = 0; i < segments.size(); ++i) {
          decoded.emplace_back(segments[i].symbols.size());
        }
        for (size_t i = 0; i < segments.size(); ++i) {
          targets.push_back({decoded[i].data(), decoded[i].size(), &models[i]});
        }
        const auto done = DecodeRans8(isa, targets, lanes, expected);
        ASSERT_TRUE(done.has_value()) << IsaName(isa) << ": " << done.error().message;
        for (size_t i = 0; i < segments.size(); ++i) {
          ASSERT_EQ(decoded[i], segments[i].symbols) << IsaName(isa) << ", " << lanes << " lanes";
        }
      }
    }
  }
}

TEST(RansStream, EveryIsaWritesTheReferencesBytesAndReadsThemBack12) {
  constexpr uint64_t kSeed = 21;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Rng rng(kSeed);
  for (int lanes = 1; lanes <= kMaxLanes; lanes *= 2) {
    for (int trial = 0; trial < 16; ++trial) {
      std::vector<ReferenceSegment> segments;
      std::vector<Rans12Model> models;
      for (size_t i = 0, n = rng.Below(4); i < n; ++i) {
        constexpr uint64_t kMost[] = {16, 32, 64, 256};
        segments.push_back(RandomSegment(rng, 12, 2 + rng.Below(kMost[trial % 4] - 1),
                                         kSizes[rng.Below(std::size(kSizes))]));
        models.push_back(Model12(segments.back()));
      }
      const std::vector<std::byte> expected = ReferenceRans(segments, 12, lanes);
      std::vector<Rans12Source> sources;
      for (size_t i = 0; i < segments.size(); ++i) {
        sources.push_back({segments[i].symbols.data(), segments[i].symbols.size(), &models[i]});
      }
      for (const Isa isa : SupportedIsas()) {
        std::vector<std::byte> bytes;
        EncodeRans12(isa, sources, lanes, bytes);
        ASSERT_EQ(bytes, expected) << IsaName(isa) << ", " << lanes << " lanes, trial " << trial;
        std::vector<std::vector<uint8_t>> decoded;
        std::vector<Rans12Target> targets;
        for (size_t i = 0; i < segments.size(); ++i) {
          decoded.emplace_back(segments[i].symbols.size());
        }
        for (size_t i = 0; i < segments.size(); ++i) {
          targets.push_back({decoded[i].data(), decoded[i].size(), &models[i]});
        }
        const auto done = DecodeRans12(isa, targets, lanes, expected);
        ASSERT_TRUE(done.has_value()) << IsaName(isa) << ": " << done.error().message;
        for (size_t i = 0; i < segments.size(); ++i) {
          ASSERT_EQ(decoded[i], segments[i].symbols) << IsaName(isa) << ", " << lanes << " lanes";
        }
      }
    }
  }
}

// Every quotient an encoder may need, against a division.
TEST(RansStream, EveryFrequencyDividesEveryState8) {
  for (uint32_t freq = 1; freq <= 255; ++freq) {
    Rans8Model model;
    model.freq[0] = static_cast<uint8_t>(freq);
    model.freq[1] = static_cast<uint8_t>(256 - freq);
    model.start[1] = static_cast<uint8_t>(freq);
    const std::array<uint8_t, 16> symbols{};
    const Rans8Source source{symbols.data(), symbols.size(), &model};
    for (const Isa isa : SupportedIsas()) {
      const CoderKernels& kernels = CoderKernelsOf(isa);
      // Multiples of freq and what lies just below them, near the top and elsewhere.
      for (uint32_t multiple = 4096; multiple > 4096 - 1024; multiple -= 13) {
        for (uint32_t below = 0; below < 2; ++below) {
          const uint32_t x = multiple * freq - 1 - below;
          if (x < kRans8Low) {
            continue;
          }
          uint32_t states[16];
          std::fill_n(states, 16, x);
          uint8_t bytes[16 + kRansSlackBytes];
          uint8_t* end = kernels.rans8_encode(&source, 1, 16, states, bytes);
          ASSERT_EQ(end, bytes);
          for (const uint32_t state : states) {
            ASSERT_EQ(state, ((x / freq) << 8) + x % freq) << freq << " " << x;
          }
        }
      }
    }
  }
}

TEST(RansStream, EveryFrequencyDividesEveryState12) {
  constexpr uint32_t kTop = 1U << 20;
  const std::array<uint8_t, 16> symbols{};
  for (const uint32_t size : {2U, 17U, 33U, 65U}) {  // tables of dividers differ
    for (uint32_t freq = 1; freq <= 4095; freq += size == 2 ? 1 : 37) {
      Rans12Model model;
      model.size = size;
      model.freq[0] = static_cast<uint16_t>(freq);
      model.freq[1] = static_cast<uint16_t>(4096 - freq);
      model.start[1] = static_cast<uint16_t>(freq);
      const Rans12Source source{symbols.data(), symbols.size(), &model};
      for (const Isa isa : SupportedIsas()) {
        for (uint32_t multiple : {kTop, kTop - 1, kTop - 97, kTop / 2 + 1, kTop / 3, 65537U}) {
          uint32_t states[16];
          for (uint32_t i = 0; i < 16; ++i) {
            states[i] = static_cast<uint32_t>(uint64_t{multiple - i / 2} * freq - 1 - i % 2);
          }
          uint32_t expected[16];
          for (size_t i = 0; i < 16; ++i) {
            expected[i] = ((states[i] / freq) << 12) + states[i] % freq;
          }
          uint8_t bytes[32 + kRansSlackBytes];
          uint8_t* const end = CoderKernelsOf(isa).rans12_encode(&source, 1, 16, states, bytes);
          ASSERT_EQ(end, bytes) << IsaName(isa) << ": " << freq << " " << multiple;
          for (size_t i = 0; i < 16; ++i) {
            ASSERT_EQ(states[i], expected[i]) << IsaName(isa) << ": " << freq << " " << multiple;
          }
        }
      }
    }
  }
}

TEST(RansStream, DamagedBytesAreRefusedOrGiveSymbolsOfTheModel) {
  constexpr uint64_t kSeed = 22;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Rng rng(kSeed);
  for (int trial = 0; trial < 400; ++trial) {
    const int lanes = 1 << rng.Below(7);
    const size_t alphabet = 2 + rng.Below(31);
    const ReferenceSegment segment = RandomSegment(rng, 8, alphabet, 1 + rng.Below(3000));
    const Rans8Model model = Model8(segment);
    const Rans8Source source{segment.symbols.data(), segment.symbols.size(), &model};
    std::vector<std::byte> bytes;
    EncodeRans8(Isa::kScalar, {&source, 1}, lanes, bytes);
    switch (rng.Below(3)) {
      case 0:
        bytes.resize(rng.Below(bytes.size() + 1));
        break;
      case 1:
        bytes[rng.Below(bytes.size())] ^= static_cast<std::byte>(1 + rng.Below(255));
        break;
      default:
        for (auto& byte : bytes) {
          byte = static_cast<std::byte>(rng.Next());
        }
        break;
    }
    bytes.shrink_to_fit();
    std::string said;
    for (const Isa isa : SupportedIsas()) {
      std::vector<uint8_t> symbols(segment.symbols.size());
      const Rans8Target target{symbols.data(), symbols.size(), &model};
      const auto done = DecodeRans8(isa, {&target, 1}, lanes, bytes);
      for (const uint8_t symbol : symbols) {
        ASSERT_LT(symbol, alphabet);
      }
      // The same verdict everywhere.
      const std::string says = done.has_value() ? "" : done.error().message;
      ASSERT_TRUE(isa == Isa::kScalar || says == said) << IsaName(isa) << ": " << says;
      said = says;
    }
  }
}

}  // namespace
}  // namespace kvik::codec
