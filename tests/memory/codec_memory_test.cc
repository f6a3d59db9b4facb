// SPDX-License-Identifier: Apache-2.0
// What readers of the codec may allocate, whatever they are given: a frame's reader what its caller
// asked to be decoded, the others what they were given, a few times over. Hostile inputs are made
// from good ones: cut anywhere, every bit flipped, and every byte in turn taken for a length that
// claims far more than is there, with checksums made to match.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocation_meter.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/isa.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "codec/frame.h"
#include "codec/frame_stream.h"
#include "codec/pipeline.h"
#include "codec/presets.h"
#include "codec/profile_library.h"
#include "codec/testing/made_kv.h"
#include "codec/testing/made_side_info.h"

namespace kvik::codec {
namespace {

using kvik::testing::HeldBytes;
using kvik::testing::PeakOf;
using testing::DecodedRows;
using testing::MadeModel;
using testing::MadeRows;
using testing::MadeSideInfo;

using Bytes = std::vector<std::byte>;

constexpr size_t kKiB = 1024;
// Contexts of the zstd library, tables of all stages: once a thread, whatever is read.
constexpr size_t kOnce = 1024 * kKiB;

TEST(AllocationMeter, SeesWhatIsTakenAndGivenBack) {
  const size_t held = HeldBytes();
  // Through a volatile, or compilers leave out what has no effect.
  void* volatile at = nullptr;
  const auto give_back = [&] { std::free(at); };
  EXPECT_GE(PeakOf([&] { at = std::malloc(100 * kKiB); }), 100 * kKiB);
  EXPECT_GE(PeakOf([&] { at = std::realloc(at, 200 * kKiB); }), 100 * kKiB);
  EXPECT_EQ(PeakOf(give_back), 0U);
  EXPECT_GE(PeakOf([&] { at = std::calloc(10, 10 * kKiB); }), 100 * kKiB);
  give_back();
  EXPECT_GE(PeakOf([&] { at = std::aligned_alloc(64, 64 * kKiB); }), 64 * kKiB);
  give_back();
  EXPECT_GE(PeakOf([&] { at = ::operator new(64 * kKiB); }), 64 * kKiB);
  ::operator delete(at);
  EXPECT_EQ(PeakOf([] {}), 0U);
  EXPECT_EQ(HeldBytes(), held);
}

// ---- Frames

constexpr size_t kHeaderBytes = kFrameHeaderBytes;
constexpr size_t kPayloadBytesAt = 28;

// A frame whose payload has the length that its header says, and a CRC that matches.
void Seal(Bytes& frame) {
  const auto payload = static_cast<uint32_t>(frame.size() - kHeaderBytes);
  std::memcpy(frame.data() + kPayloadBytesAt, &payload, sizeof payload);
  const uint32_t crc = Crc32c(std::span<const std::byte>(frame).subspan(8));
  std::memcpy(frame.data() + 4, &crc, sizeof crc);
}

// What may stand where a length is expected: the largest numbers of every width, and just below the
// signed ones; as fixed fields and as varints.
std::vector<Bytes> Lengths() {
  std::vector<Bytes> lengths;
  const auto add = [&](std::initializer_list<int> values) {
    Bytes bytes;
    for (const int v : values) {
      bytes.push_back(static_cast<std::byte>(v));
    }
    lengths.push_back(std::move(bytes));
  };
  add({0x7F});
  add({0xFF});
  add({0xFF, 0x7F});
  add({0xFF, 0xFF});
  add({0x00, 0x00, 0x01, 0x00});
  add({0xFF, 0xFF, 0xFF, 0x7F});
  add({0xFF, 0xFF, 0xFF, 0xFF});
  add({0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F});
  add({0xFF, 0xFF, 0x03});                                            // varint 65,535
  add({0xFF, 0xFF, 0xFF, 0xFF, 0x03});                                // 2^30 - 1
  add({0xFF, 0xFF, 0xFF, 0xFF, 0x07});                                // 2^31 - 1
  add({0xFF, 0xFF, 0xFF, 0xFF, 0x0F});                                // 2^32 - 1
  add({0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01});  // 2^64 - 1
  return lengths;
}

// Calls visit(bytes) with damaged copies of `good`.
template <typename Visit>
void ForEachDamage(const Bytes& good, Visit&& visit) {
  for (size_t n = 0; n < good.size(); ++n) {
    visit(Bytes(good.begin(), good.begin() + static_cast<ptrdiff_t>(n)));
  }
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    visit(std::move(bytes));
  }
  for (const Bytes& length : Lengths()) {
    for (size_t at = 0; at < good.size(); ++at) {
      Bytes over = good;  // the length over what stands here
      std::copy_n(length.begin(), std::min(length.size(), good.size() - at),
                  over.begin() + static_cast<ptrdiff_t>(at));
      visit(std::move(over));
      Bytes instead = good;  // the length for one byte
      instead.erase(instead.begin() + static_cast<ptrdiff_t>(at));
      instead.insert(instead.begin() + static_cast<ptrdiff_t>(at), length.begin(), length.end());
      visit(std::move(instead));
    }
  }
}

constexpr int32_t kTokens = 12;

struct Case {
  std::string pipeline;
  // Of the frame, and of the prompt it is in: without first and recent tokens, or with both.
  int32_t first_token = 500;
  int32_t prompt_tokens = 1000;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Preset& preset : AllPresets()) {
    cases.push_back({std::string(preset.pipeline)});
  }
  for (const char* const pipeline :
       {"keep(sinks=2,recent=4)+hadamard -> uniform(levels=6,group=8) -> lz4",
        "selfcenter+delta(group=4) -> uniform(levels=256,sinks=2) -> rans",
        "none -> ecsq(mode=self,d=0.1,recent=8) -> rans",
        "k:prerope+center|v:center -> fp8(per=channel,group=8) -> zstd"}) {
    cases.push_back({pipeline, 0, kTokens});
  }
  return cases;
}

TEST(Frames, AReaderAllocatesForWhatItsCallerAskedFor) {
  const ModelFacts model = MadeModel(3, 2, 16);
  // Rows as bf16; tiles of float32 beside symbols, scratch and side information are a few of these.
  constexpr size_t kAsked = size_t{2} * 2 * kTokens * 16 * sizeof(Bf16);
  constexpr size_t kBound = 8 * kAsked + 8 * kKiB;
  for (const Case& test : Cases()) {
    SCOPED_TRACE(test.pipeline);
    const auto pipeline = PipelineSpec::Parse(test.pipeline);
    ASSERT_TRUE(pipeline) << pipeline.error().message;
    const auto codec = FrameCodec::Create(*pipeline, model, MadeSideInfo(*pipeline, model, 3),
                                          SupportedIsas().back());
    ASSERT_TRUE(codec) << codec.error().message;
    MadeRows made(model, 1, test.first_token, kTokens, 7);
    made.rows.prompt_tokens = test.prompt_tokens;
    Bytes good;
    Workspace writer;
    ASSERT_TRUE((*codec)->Encode(made.rows, FrameParts::kBoth, writer, good));
    DecodedRows rows(model, made.rows);
    size_t worst = 0;
    int decoded = 0;
    int refused = 0;
    const auto read = [&](const Bytes& frame) {
      const size_t peak = PeakOf([&] {
        Workspace workspace;
        ((*codec)->Decode(frame, workspace, rows.out) ? decoded : refused) += 1;
      });
      worst = std::max(worst, peak);
    };
    read(good);
    ASSERT_EQ(decoded, 1);
    EXPECT_LE(worst, kBound + kOnce);
    const size_t held = HeldBytes();
    worst = 0;
    ForEachDamage(good, [&](Bytes bytes) {
      read(bytes);
      if (bytes.size() >= kHeaderBytes) {
        Seal(bytes);
        read(bytes);
      }
    });
    EXPECT_LE(worst, kBound);
    EXPECT_LE(HeldBytes(), held + kBound);  // scratch of this thread
    EXPECT_GT(decoded, 20);
    EXPECT_GT(refused, 1000);
  }
}

// ---- Streams

TEST(Streams, AReaderHoldsNoMoreThanItWasFed) {
  const ModelFacts model = MadeModel(3, 2, 16);
  const auto codec = FrameCodec::Create(*PipelineSpec::Parse("hadamard -> uniform -> pack"), model,
                                        nullptr, SupportedIsas().back());
  ASSERT_TRUE(codec) << codec.error().message;
  Bytes good;
  StreamWriter writer(**codec, good);
  Workspace workspace;
  for (int32_t layer = 0; layer < 3; ++layer) {
    const MadeRows made(model, layer, 0, 4, 7);
    ASSERT_TRUE(writer.Add(made.rows, FrameParts::kBoth, workspace));
  }
  writer.Finish();
  // What is fed is moved together in a vector, which grows by doubling.
  const size_t bound = 4 * good.size() + 4 * kKiB;
  size_t worst = 0;
  int complete = 0;
  int refused = 0;
  const auto read = [&](const Bytes& bytes, size_t piece) {
    const size_t peak = PeakOf([&] {
      StreamReader reader;
      for (size_t at = 0; at < bytes.size(); at += piece) {
        reader.Feed(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
        for (;;) {
          const auto frame = reader.Next();
          if (!frame) {
            ++refused;
            return;
          }
          if (!*frame) {
            break;
          }
        }
      }
      complete += reader.complete() ? 1 : 0;
    });
    worst = std::max(worst, peak);
  };
  for (const size_t piece : {size_t{37}, good.size()}) {
    read(good, piece);
    ForEachDamage(good, [&](const Bytes& bytes) { read(bytes, piece); });
  }
  EXPECT_LE(worst, bound);
  EXPECT_GT(complete, 100);  // damage within frames is the decoder's to find
  EXPECT_GT(refused, 1000);
}

// ---- Pipelines

TEST(Pipelines, AParserAllocatesAFewTimesItsText) {
  std::vector<std::string> texts;
  const auto repeat = [](const std::string& what, size_t bytes) {
    std::string text;
    while (text.size() < bytes) {
      text += what;
    }
    return text;
  };
  for (const Case& test : Cases()) {
    const std::string& text = test.pipeline;
    for (size_t n = 0; n < text.size(); ++n) {
      texts.push_back(text.substr(0, n));
      for (const char c : {'(', ')', ',', '+', '9', 'e', '=', ' ', '\xFF'}) {
        std::string changed = text;
        changed[n] = c;
        texts.push_back(std::move(changed));
      }
      texts.push_back(text.substr(0, n) + "99999999999999999999" + text.substr(n));
    }
  }
  // Lists, chains, names and nests as long as a text may be, and far longer.
  for (const char* const open : {"none -> uniform(", "none -> uniform(mix(", "", "k:", "(",
                                 "none -> uniform(levels=mix(mix("}) {
    for (const char* const item : {"1,", "a,", "a=1,", "a(", "a(1,", "none+", "hadamard+", "a", "9",
                                   "(", " ", "k:none|v:", "1e9999,"}) {
      for (const size_t bytes : {size_t{500}, size_t{4080}, size_t{1} << 20}) {
        texts.push_back(open + repeat(item, bytes));
      }
    }
  }
  const auto parse = [](const std::string& text) { return PipelineSpec::Parse(text).has_value(); };
  ASSERT_TRUE(parse("none -> none -> none"));  // the registry
  int parsed = 0;
  for (const std::string& text : texts) {
    const size_t read = std::min(text.size(), size_t{4096});
    const size_t peak = PeakOf([&] { parsed += parse(text) ? 1 : 0; });
    EXPECT_LE(peak, 128 * read + 16 * kKiB) << text.substr(0, 100);
  }
  EXPECT_GT(parsed, 100);
}

// ---- Profile libraries

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  KVIK_CHECK(at != std::string::npos, "no %s", std::string(from).c_str());
  return text.replace(at, from.size(), to);
}

// A library with profiles of these pipelines and everything that they need.
ProfileLibraryFiles MadeLibrary(const ModelFacts& model,
                                const std::vector<std::string>& pipelines) {
  ProfileLibrary library;
  library.model = model;
  auto side = std::make_shared<SideInfo>();
  for (size_t i = 0; i < pipelines.size(); ++i) {
    Profile profile;
    profile.name = "p" + std::to_string(100 + i);
    profile.pipeline = pipelines[i];
    profile.ratios = {{128, 3.5}, {1024, 4.5}};
    QualityRecord record;
    record.workload = "math";
    record.prompts = 3;
    record.positions = 100;
    record.q = record.kl = record.top1 = record.ppl_ratio = {0.5, 0.4, 0.6};
    profile.quality = {record};
    library.profiles.push_back(profile);
    const PipelineSpec spec = *PipelineSpec::Parse(pipelines[i]);
    const auto needed = MadeSideInfo(spec, model, 3);
    for (const auto& [name, tensor] : needed->tensors()) {
      KVIK_CHECK(side->Add(name, tensor.shape, tensor.values).has_value());
    }
    for (const kv::KvPart which : {kv::KvPart::kKey, kv::KvPart::kValue}) {
      KVIK_CHECK(
          side->Add(TablesKey(spec.part(which), which), {2, 16}, std::vector<float>(32, 1.0F))
              .has_value());
    }
  }
  library.side_info = side;
  library.calibration.texts = {{"a.txt", std::string(64, 'a'), 9}};
  const auto done = CompleteProfiles(library);
  KVIK_CHECK(done.has_value(), "%s", done.error().message.c_str());
  auto files = PrintProfileLibrary(library, "side.f16");
  KVIK_CHECK(files.has_value(), "%s", files.error().message.c_str());
  return std::move(files).value();
}

// The document and its tensors as a tree, tables of frequencies and checks of profiles beside them.
size_t LibraryBound(std::string_view json, std::span<const std::byte> side) {
  return 64 * (json.size() + side.size()) + 256 * kKiB;
}

class Libraries : public ::testing::Test {
 protected:
  bool Read(std::string_view json, std::span<const std::byte> side) {
    bool good = false;
    const size_t peak = PeakOf([&] {
      const auto name = ProfileLibrarySideFile(json);
      good = ParseProfileLibrary(json, side).has_value() && name.has_value();
    });
    EXPECT_LE(peak, LibraryBound(json, side)) << json.substr(0, 2000);
    ++(good ? accepted_ : refused_);
    return good;
  }
  int accepted_ = 0;
  int refused_ = 0;
};

TEST_F(Libraries, NumbersAreNotBelieved) {
  const ProfileLibraryFiles files = MadeLibrary(
      MadeModel(2, 2, 8),
      {"k:center|v:none -> ecsq -> rans", "keep -> uniform(levels=mix(0.5,16,5)) -> rans"});
  ASSERT_TRUE(Read(files.json, files.side));
  const std::string& json = files.json;
  bool in_string = false;
  for (size_t at = 0; at < json.size(); ++at) {
    in_string ^= json[at] == '"';
    const bool begins =
        !in_string && std::isdigit(json[at]) != 0 && std::isdigit(json[at - 1]) == 0;
    if (!begins) {
      continue;
    }
    const size_t end = json.find_first_not_of("0123456789.e+-", at);
    for (const char* const number :
         {"-1", "0", "4096", "65535", "16777216", "2147483647", "2147483648", "4294967295",
          "9007199254740992", "9223372036854775807", "18446744073709551615", "1e308"}) {
      Read(json.substr(0, at) + number + json.substr(end), files.side);
    }
  }
  EXPECT_GT(refused_, 500);
}

// What a stage keeps for every layer and head must come with a tensor for them.
TEST_F(Libraries, SizesOfModelsAreNotBelieved) {
  std::vector<std::string> pipelines = {"none -> uniform(levels=pyramid(16,6)) -> pack",
                                        "none -> ecsq(d=pyramid(0.5,1),mode=self) -> rans"};
  for (const Preset& preset : AllPresets()) {
    if (!preset.calibrated) {
      pipelines.emplace_back(preset.pipeline);
    }
  }
  for (const std::string& pipeline : pipelines) {
    ModelFacts model = MadeModel(2, 2, 8);
    model.rope_frequencies.clear();
    const ProfileLibraryFiles files = MadeLibrary(model, {pipeline});
    ASSERT_TRUE(Read(files.json, files.side));
    for (const char* const layers : {"1", "4096"}) {
      for (const char* const heads : {"1", "4096"}) {
        for (const char* const dim : {"1", "64", "1024"}) {
          std::string json =
              Replaced(files.json, "\"layers\": 2", std::string("\"layers\": ") + layers);
          json = Replaced(json, "\"kv_heads\": 2", std::string("\"kv_heads\": ") + heads);
          Read(Replaced(json, "\"head_dim\": 8", std::string("\"head_dim\": ") + dim), files.side);
        }
      }
    }
  }
}

TEST_F(Libraries, ATreeIsAFewTimesItsText) {
  const ProfileLibraryFiles files = MadeLibrary(MadeModel(2, 2, 8), {"none -> none -> none"});
  for (const char* const item : {"0", "[]", "{}", "[{}]", "[[],[]]", "{\"a\":{}}", "\"\"", "null",
                                 "{\"a\":0,\"b\":0}", "[[[[[[]]]]]]"}) {
    for (const char* const member :
         {"tensors", "profiles", "calibration", "rope_frequencies", "texts", "ratios", "shape"}) {
      std::string many = std::string("\"") + member + "\": [" + item;
      while (many.size() < 200000) {
        many += std::string(",") + item;
      }
      Read(Replaced(files.json, std::string("\"") + member + "\": ", many + "], \"x\": "),
           files.side);
    }
  }
  std::string members = "{";
  for (int i = 0; i < 60000; ++i) {
    members += "\"" + std::to_string(i) + "\":{},";
  }
  Read(Replaced(files.json, "{", members), files.side);
}

TEST_F(Libraries, TablesAreAFewTimesTheirTensor) {
  const std::string pipeline = "none -> uniform -> rans(tables=static)";
  ProfileLibrary library;
  library.model = MadeModel(2, 2, 8);
  for (const int32_t width : {2, 3, 16, 33, 256}) {
    auto side = std::make_shared<SideInfo>();
    const PipelineSpec spec = *PipelineSpec::Parse(pipeline);
    for (const kv::KvPart which : {kv::KvPart::kKey, kv::KvPart::kValue}) {
      const int32_t contexts = 200000 / width;
      ASSERT_TRUE(side->Add(TablesKey(spec.part(which), which), {contexts, width},
                            std::vector<float>(static_cast<size_t>(contexts * width), 1.0F)));
    }
    library.side_info = side;
    Profile profile;
    profile.name = "wide";
    profile.pipeline = pipeline;
    library.profiles = {profile};
    ASSERT_TRUE(CompleteProfiles(library));
    const auto files = PrintProfileLibrary(library, "side.f16");
    ASSERT_TRUE(files) << files.error().message;
    EXPECT_TRUE(Read(files->json, files->side));
  }
}

TEST_F(Libraries, DamageAllocatesNothingMore) {
  const ProfileLibraryFiles files =
      MadeLibrary(MadeModel(2, 2, 8),
                  {"center -> ecsq -> rans", "keep -> uniform(levels=mix(0.5,16,5)) -> rans",
                   "none -> none -> none"});
  for (size_t n = 0; n < files.json.size(); n += 5) {
    Read(std::string_view(files.json).substr(0, n), files.side);
    for (const int bit : {0, 2, 4, 5, 6}) {
      std::string json = files.json;
      json[n] ^= static_cast<char>(1 << bit);
      Read(json, files.side);
    }
  }
  const std::string sha = ToHex(Sha256Of(files.side));
  Rng rng(5);
  for (int i = 0; i < 300; ++i) {
    Bytes side = files.side;
    side[rng.Below(side.size())] = static_cast<std::byte>(rng.Below(256));
    Read(Replaced(files.json, sha, ToHex(Sha256Of(side))), side);
    Read(files.json, std::span(side).first(rng.Below(side.size())));
  }
}

}  // namespace
}  // namespace kvik::codec
