// SPDX-License-Identifier: Apache-2.0
#include "codec/profile_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/isa.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "codec/testing/made_kv.h"
#include "codec/testing/made_side_info.h"

namespace kvik::codec {
namespace {

using ::testing::HasSubstr;

// Exact by itself; the quantizer `none` needs nothing calibrated.
constexpr const char* kPipeline = "none -> none -> none";

ModelFacts SmallModel() {
  ModelFacts model;
  model.name = "small";
  model.fingerprint = 0xFEDCBA9876543210U;
  model.num_layers = 2;
  model.num_kv_heads = 3;
  model.head_dim = 8;
  model.rope_frequencies = {1.0, 0.1, 0.01, 1e-3 / 3};
  return model;
}

QualityRecord MakeQuality(const std::string& workload, int32_t prompt_tokens) {
  QualityRecord record;
  record.workload = workload;
  record.prompt_tokens = prompt_tokens;
  record.prompts = 12;
  record.positions = 768;
  record.q = {0.981, 0.972, 0.99};
  record.kl = {0.0123, 0.0101, 0.0150};
  record.top1 = {0.95, 0.94, 0.96};
  record.ppl_ratio = {1.01, 0.999, 1.02};
  return record;
}

ProfileLibrary MakeLibrary() {
  ProfileLibrary library;
  library.model = SmallModel();
  auto side = std::make_shared<SideInfo>();
  Rng rng(7);
  std::vector<float> values(2 * 3 * 8);
  for (float& value : values) {
    value = static_cast<float>(rng.Uniform() * 100 - 50);
  }
  EXPECT_TRUE(side->Add("center/k/prerope", {2, 3, 8}, values));
  values.resize(5);
  EXPECT_TRUE(side->Add("tables/k/none", {1, 5}, values));
  library.side_info = side;
  library.calibration = {.command = "kvik calibrate --texts a.txt",
                         .numerics = "f32-1",
                         .seed = 0xFFFFFFFFFFFFFFFFU,
                         .texts = {{.name = "a.txt", .sha256 = std::string(64, 'a'), .tokens = 9}}};
  library.evaluation = EvaluationRecord{.command = "kvik eval", .numerics = "f32-1", .seed = 3};
  Profile profile;
  profile.name = "bf16";
  profile.pipeline = kPipeline;
  profile.ratios = {{128, 0.99}, {1024, 0.999}};
  profile.quality = {MakeQuality("math", 0), MakeQuality("math", 128), MakeQuality("unified", 0)};
  library.profiles.push_back(profile);
  profile.name = "bf16-again";
  profile.quality.clear();
  library.profiles.push_back(profile);
  EXPECT_TRUE(CompleteProfiles(library));
  return library;
}

ProfileLibraryFiles Printed() {
  auto files = PrintProfileLibrary(MakeLibrary(), "side.f16");
  EXPECT_TRUE(files) << files.error().message;
  return std::move(files).value();
}

std::string Replace(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in\n" << text;
  if (at != std::string::npos) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// The error of a document in which `from` became `to`.
Error Edited(const std::string& from, const std::string& to) {
  const ProfileLibraryFiles files = Printed();
  const auto library = ParseProfileLibrary(Replace(files.json, from, to), files.side);
  EXPECT_FALSE(library);
  return library ? Error{} : library.error();
}

TEST(ProfileLibrary, WhatIsPrintedIsReadBack) {
  const ProfileLibrary library = MakeLibrary();
  const ProfileLibraryFiles files = Printed();
  const auto read = ParseProfileLibrary(files.json, files.side);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->model, library.model);
  EXPECT_EQ(read->calibration, library.calibration);
  EXPECT_EQ(read->evaluation, library.evaluation);
  EXPECT_EQ(read->profiles, library.profiles);
  ASSERT_EQ(read->side_info->tensors().size(), 2U);
  for (const auto& [name, tensor] : library.side_info->tensors()) {
    const SideTensor* const other = read->side_info->Find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(other->shape, tensor.shape);
    EXPECT_EQ(other->values, tensor.values);
  }
  EXPECT_EQ(ProfileLibraryHash(*read), ProfileLibraryHash(library));
  const auto again = PrintProfileLibrary(*read, "side.f16");
  ASSERT_TRUE(again);
  EXPECT_EQ(again->json, files.json);
  EXPECT_EQ(again->side, files.side);
  const auto side_file = ProfileLibrarySideFile(files.json);
  ASSERT_TRUE(side_file);
  EXPECT_EQ(*side_file, "side.f16");
}

// The tensors of `pipeline` in a model of 2 layers, with what is optional too: weights of ecsq and
// tables of rans.
std::shared_ptr<const SideInfo> AllSideInfo(const PipelineSpec& pipeline, const ModelFacts& model) {
  auto side = testing::MadeSideInfo(pipeline, model, 3);
  for (const kv::KvPart which : {kv::KvPart::kKey, kv::KvPart::kValue}) {
    const PartSpec& part = pipeline.part(which);
    const std::string quantizer = SideKey(part, which, part.transforms.size());
    EXPECT_TRUE(side->Add(quantizer + "/weights", {2, 3}, std::vector<float>(6, 0.3F)));
    std::vector<float> counts(24 * 16);
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i] = static_cast<float>(1 << (i % 16 < 8 ? i % 16 : 15 - i % 16));
    }
    EXPECT_TRUE(side->Add(TablesKey(part, which), {24, 16}, counts));
  }
  return side;
}

TEST(ProfileLibrary, FramesDecodeWithALibraryThatWasJustRead) {
  for (const char* const text :
       {"k:prerope+center+klt|v:center+klt -> ecsq(d=0.5) -> rans",
        "k:center+qklt(share=0.75)|v:affine(kind=full) -> ecsq(mode=self) -> rans",
        "affine+hadamard -> uniform(levels=mix(0.5,16,6),scores=output) -> rans(tables=static)",
        "keep(sinks=2,recent=4) -> uniform(levels=16) -> pack"}) {
    SCOPED_TRACE(text);
    const auto pipeline = PipelineSpec::Parse(text);
    ASSERT_TRUE(pipeline) << pipeline.error().message;
    ProfileLibrary library;
    library.model = SmallModel();
    library.side_info = AllSideInfo(*pipeline, library.model);
    library.profiles.emplace_back();
    library.profiles[0].name = "one";
    library.profiles[0].pipeline = text;
    ASSERT_TRUE(CompleteProfiles(library));
    const auto writer =
        FrameCodec::Create(*pipeline, library.model, library.side_info, Isa::kScalar);
    ASSERT_TRUE(writer) << writer.error().message;
    const testing::MadeRows made(library.model, 1, 0, 40, 9);
    Workspace workspace;
    std::vector<std::byte> bytes;
    ASSERT_TRUE((*writer)->Encode(made.rows, FrameParts::kBoth, workspace, bytes));
    testing::DecodedRows expected(library.model, made.rows);
    const auto decoded = (*writer)->Decode(bytes, workspace, expected.out);
    ASSERT_TRUE(decoded) << decoded.error().message;

    const auto files = PrintProfileLibrary(library, "side.f16");
    ASSERT_TRUE(files) << files.error().message;
    const auto read = ParseProfileLibrary(files->json, files->side);
    ASSERT_TRUE(read) << read.error().message;
    const Profile* const profile = read->FindHash(decoded->header.profile_hash);
    ASSERT_NE(profile, nullptr);
    const auto reader = FrameCodec::Create(*PipelineSpec::Parse(profile->pipeline), read->model,
                                           read->side_info, SupportedIsas().back());
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_EQ((*reader)->profile_hash(), (*writer)->profile_hash());
    testing::DecodedRows rows(library.model, made.rows);
    Workspace fresh;
    const auto again = (*reader)->Decode(bytes, fresh, rows.out);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->dropped, decoded->dropped);
    EXPECT_EQ(rows.keys, expected.keys);
    EXPECT_EQ(rows.values, expected.values);
  }
}

TEST(ProfileLibrary, AnEmptyLibraryIsOne) {
  ProfileLibrary library;
  library.model = SmallModel();
  library.model.rope_frequencies.clear();
  library.side_info = std::make_shared<SideInfo>();
  const auto files = PrintProfileLibrary(library, "side.f16");
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_TRUE(files->side.empty());
  const auto read = ParseProfileLibrary(files->json, files->side);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(read->profiles.empty());
  EXPECT_FALSE(read->evaluation);
}

TEST(ProfileLibrary, ItsHashIsOfPipelinesAndTensorsAndTheModel) {
  ProfileLibrary library = MakeLibrary();
  const std::string hash = ProfileLibraryHash(library);
  library.profiles[0].name = "another";
  library.profiles[0].quality.clear();
  library.profiles[0].ratios.clear();
  library.calibration.command = "typed otherwise";
  library.evaluation.reset();
  library.model.name = "called otherwise";
  EXPECT_EQ(ProfileLibraryHash(library), hash);

  ProfileLibrary other = MakeLibrary();
  other.profiles[0].pipeline = "another pipeline";
  EXPECT_NE(ProfileLibraryHash(other), hash);
  other = MakeLibrary();
  other.model.rope_frequencies[3] *= 1 + 1e-15;
  EXPECT_NE(ProfileLibraryHash(other), hash);
  other = MakeLibrary();
  auto side = std::make_shared<SideInfo>(*other.side_info);
  std::vector<float> values = side->Find("tables/k/none")->values;
  values[4] += 1;
  ASSERT_TRUE(side->Add("tables/k/none", {1, 5}, values));
  other.side_info = side;
  EXPECT_NE(ProfileLibraryHash(other), hash);
  // The same values in another shape.
  values[4] -= 1;
  ASSERT_TRUE(side->Add("tables/k/none", {5, 1}, values));
  EXPECT_NE(ProfileLibraryHash(other), hash);
}

TEST(ProfileLibrary, FindsProfilesAndQuality) {
  const ProfileLibrary library = MakeLibrary();
  ASSERT_NE(library.Find("bf16"), nullptr);
  EXPECT_EQ(library.Find("bf15"), nullptr);
  EXPECT_EQ(library.FindHash(library.profiles[0].hash)->pipeline, kPipeline);
  EXPECT_EQ(library.FindHash(library.profiles[0].hash + 1), nullptr);
  const Profile& profile = *library.Find("bf16");
  EXPECT_EQ(profile.QualityFor("math")->workload, "math");
  EXPECT_EQ(profile.QualityFor("math")->prompt_tokens, 0);
  EXPECT_EQ(profile.QualityFor("poems")->workload, "unified");
  EXPECT_EQ(library.Find("bf16-again")->QualityFor("math"), nullptr);
}

TEST(ProfileLibrary, OtherDocumentsAreRefused) {
  for (const char* text : {"", "[]", "{}", "null", "{\"format\": \"kvik.policy-state\"}", "{{"}) {
    const auto library = ParseProfileLibrary(text, {});
    ASSERT_FALSE(library) << text;
    EXPECT_EQ(library.error().code, ErrorCode::kInvalidInput);
    EXPECT_FALSE(ProfileLibrarySideFile(text)) << text;
  }
  EXPECT_THAT(Edited("\"version\": 1", "\"version\": 2").message,
              HasSubstr("has version 2, this program reads version 1"));
}

TEST(ProfileLibrary, MembersAreAllThereAndAllKnown) {
  EXPECT_THAT(Edited("\"halves\"", "\"quarters\"").message, HasSubstr("side lacks \"halves\""));
  EXPECT_THAT(Edited("\"fingerprint\"", "\"speed\": 3, \"fingerprint\"").message,
              HasSubstr("model has a member that this version does not know: \"speed\""));
  EXPECT_THAT(Edited("\"calibration\"", "\"caliber\"").message, HasSubstr("lacks \"calibration\""));
}

TEST(ProfileLibrary, NumbersAreInTheirRanges) {
  EXPECT_THAT(Edited("\"layers\": 2", "\"layers\": 0").message,
              HasSubstr("model.layers must be an integer in [1, 4096], it is 0"));
  EXPECT_THAT(Edited("\"layers\": 2", "\"layers\": 2.5").message, HasSubstr("it is 2.5"));
  EXPECT_THAT(Edited("\"layers\": 2", "\"layers\": 18446744073709551615").message,
              HasSubstr("must be an integer"));
  EXPECT_THAT(Edited("[0.981", "[null").message,
              HasSubstr("profiles[0].quality[0].q[0] must be a number in [0, 1], it is null"));
  EXPECT_THAT(Edited("[0.981", "[1.5").message, HasSubstr("it is 1.5"));
  EXPECT_THAT(Edited("[0.981", "[0.97").message, HasSubstr("low <= value <= high"));
  EXPECT_THAT(Edited("[0.981, ", "[").message, HasSubstr("must be [value, low, high]"));
  EXPECT_THAT(Edited("\"head_dim\": 8", "\"head_dim\": 16").message,
              HasSubstr("must have head_dim / 2 numbers"));
  EXPECT_THAT(Edited("fedcba9876543210", "fedcba987654321").message,
              HasSubstr("16 lower-case hexadecimal digits"));
}

TEST(ProfileLibrary, WhatIsNotANumberIsNotWritten) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    ProfileLibrary library = MakeLibrary();
    library.profiles[0].quality[1].kl.high = bad;
    const auto files = PrintProfileLibrary(library, "side.f16");
    ASSERT_FALSE(files);
    EXPECT_THAT(files.error().message, HasSubstr("profiles[0].quality[1].kl[2]"));
  }
}

TEST(ProfileLibrary, TensorsTileTheirFile) {
  EXPECT_THAT(Edited("\"offset\": 48", "\"offset\": 47").message, HasSubstr("overlap"));
  EXPECT_THAT(Edited("\"offset\": 48", "\"offset\": 49").message,
              HasSubstr("ends at half 54, beyond the file of tensors, which has 53"));
  EXPECT_THAT(Edited("\"shape\": [1, 5]", "\"shape\": [1, 4]").message,
              HasSubstr("leave halves of the file unnamed, from 52 on"));
  EXPECT_THAT(Edited("\"shape\": [1, 5]", "\"shape\": [16777216, 16777216, 16777216]").message,
              HasSubstr("is larger than the whole file"));
  EXPECT_THAT(Edited("\"shape\": [1, 5]", "\"shape\": [0, 5]").message, HasSubstr("shape[0]"));
  EXPECT_THAT(Edited("\"shape\": [1, 5]", "\"shape\": []").message, HasSubstr("extents"));
  EXPECT_THAT(Edited("tables/k/none", "center/k/prerope").message,
              HasSubstr("tensors[1] has a name that another tensor has"));
}

TEST(ProfileLibrary, TheFileOfTensorsIsTheOneMeant) {
  ProfileLibraryFiles files = Printed();
  files.side[3] ^= std::byte{1};
  auto library = ParseProfileLibrary(files.json, files.side);
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(library.error().message, HasSubstr("SHA-256"));
  files.side.pop_back();
  library = ParseProfileLibrary(files.json, files.side);
  ASSERT_FALSE(library);
  EXPECT_THAT(library.error().message, HasSubstr("has 106 bytes, it has 105"));
  for (const char* name : {"../side.f16", "/etc/passwd", "a/b", "..", ""}) {
    const std::string json =
        Replace(Printed().json, "\"side.f16\"", std::string("\"") + name + "\"");
    const auto side_file = ProfileLibrarySideFile(json);
    ASSERT_FALSE(side_file) << name;
    EXPECT_THAT(side_file.error().message, HasSubstr("not a path"));
  }
}

TEST(ProfileLibrary, ValuesOfTensorsAreFinite) {
  ProfileLibraryFiles files = Printed();
  const std::string before = ToHex(Sha256Of(files.side));
  const F16 infinity = ToF16(std::numeric_limits<float>::infinity());
  std::memcpy(files.side.data() + 10, &infinity.bits, 2);
  const std::string json = Replace(files.json, before, ToHex(Sha256Of(files.side)));
  const auto library = ParseProfileLibrary(json, files.side);
  ASSERT_FALSE(library);
  EXPECT_THAT(library.error().message, HasSubstr("(center/k/prerope) hold a value that is not"));
}

TEST(ProfileLibrary, PipelinesAreCanonicalAndWhatTheHashesSay) {
  EXPECT_THAT(Edited(kPipeline, "none->none -> none").message,
              HasSubstr("is not in its canonical form, which is \"none -> none -> none\""));
  EXPECT_THAT(Edited(kPipeline, "nonsense -> none -> none").message, HasSubstr("profile bf16: "));
  EXPECT_THAT(Edited("\"exact\"", "\"lossy\"").message, HasSubstr("fidelity must be exact"));
  EXPECT_THAT(Edited("\"exact\"", "\"nice\"").message, HasSubstr("must be \"exact\", \"lossy\""));
  const ProfileLibraryFiles files = Printed();
  const std::string hash = files.json.substr(files.json.find("\"hash\": \"", 200) + 9, 16);
  Error error = Edited(hash, std::string(16, '0'));
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("states hash 0000000000000000 for profile bf16"));
  const std::string library_hash = ProfileLibraryHash(MakeLibrary());
  error = Edited(library_hash, std::string(64, '0'));
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("what it holds has " + library_hash));
}

TEST(ProfileLibrary, NamesAreInOrderAndDiffer) {
  EXPECT_THAT(Edited("\"bf16-again\"", "\"bf16\"").message,
              HasSubstr("profiles[1] must come after the one before it by name"));
  EXPECT_THAT(Edited("\"bf16-again\"", "\"a\"").message, HasSubstr("profiles[1]"));
  EXPECT_THAT(Edited("\"bf16-again\"", "\"BF16\"").message, HasSubstr("must be of a-z"));
  EXPECT_THAT(
      Edited("\"prompt_tokens\": 128, \"prompts\"", "\"prompt_tokens\": 0, \"prompts\"").message,
      HasSubstr("quality[1] must come after"));
  EXPECT_THAT(Edited("\"prompt_tokens\": 1024", "\"prompt_tokens\": 128").message,
              HasSubstr("ratios[1] must have more prompt_tokens"));
}

// Whatever is cut off or flipped, the answer is a library or an error.
TEST(ProfileLibrary, DamageIsNeverFollowed) {
  const ProfileLibraryFiles files = Printed();
  Rng rng(11);
  int accepted = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string json = files.json;
    std::vector<std::byte> side = files.side;
    if (rng.Below(2) == 0) {
      json.resize(rng.Below(json.size()));
    } else {
      json[rng.Below(json.size())] = static_cast<char>(rng.Below(256));
    }
    if (rng.Below(4) == 0) {
      side.resize(rng.Below(side.size()));
    }
    accepted += ParseProfileLibrary(json, side) ? 1 : 0;
  }
  // Texts for people may change, and blanks.
  EXPECT_LT(accepted, 700);
}

}  // namespace
}  // namespace kvik::codec
