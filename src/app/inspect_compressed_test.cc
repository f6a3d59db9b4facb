// SPDX-License-Identifier: Apache-2.0
#include "app/inspect_compressed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "app/profile_folder.h"
#include "app/text_file.h"
#include "base/testing/temp_path.h"
#include "codec/frame.h"
#include "codec/frame_stream.h"
#include "codec/testing/made_kv.h"

namespace kvik::app {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kPipeline = "none -> uniform(levels=16,per=token) -> pack";

std::string Text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class InspectCompressedTest : public ::testing::Test {
 protected:
  // What the program writes to standard output, and its exit code.
  static std::pair<int, std::string> Run(const std::string& path, bool json) {
    const auto kind = RecogniseCompressed(path);
    EXPECT_TRUE(kind);
    ::testing::internal::CaptureStdout();
    const Result<int> code = InspectCompressed(path, *kind, json);
    std::string out = ::testing::internal::GetCapturedStdout();
    EXPECT_TRUE(code) << code.error().message;
    return {code ? *code : -1, std::move(out)};
  }

  static std::string Write(const std::string& name, const std::string& text) {
    const std::string path = kvik::testing::TempPath(name);
    EXPECT_TRUE(ReplaceTextFile(path, text));
    return path;
  }

  InspectCompressedTest()
      : codec_(codec::FrameCodec::Create(codec::PipelineSpec::Parse(kPipeline).value(), model_,
                                         nullptr, Isa::kScalar)
                   .value()) {}

  std::vector<std::byte> Frames() {
    std::vector<std::byte> bytes;
    for (int32_t layer = 0; layer < 3; ++layer) {
      const codec::testing::MadeRows made(model_, layer, 32, 16, 1, false);
      EXPECT_TRUE(
          codec_->Encode(made.rows, codec::FrameParts::kBoth, workspace_, bytes).has_value());
    }
    return bytes;
  }

  codec::ModelFacts model_ = codec::testing::MadeModel(3, 2, 64);
  std::unique_ptr<codec::FrameCodec> codec_;
  codec::Workspace workspace_;
};

TEST_F(InspectCompressedTest, FramesAreListedAndCounted) {
  const std::vector<std::byte> bytes = Frames();
  const std::string path = Write("frames", Text(bytes));
  EXPECT_EQ(RecogniseCompressed(path), CompressedKind::kFrames);
  const auto [code, text] = Run(path, false);
  EXPECT_EQ(code, 0);
  EXPECT_THAT(text, HasSubstr("keys and values"));
  EXPECT_THAT(text, HasSubstr("[32, 48)"));
  EXPECT_THAT(text, HasSubstr("lossy"));
  const auto [json_code, json_text] = Run(path, true);
  EXPECT_EQ(json_code, 0);
  const Json json = Json::parse(json_text);
  EXPECT_EQ(json["frames"].size(), 3U);
  EXPECT_EQ(json["frames"][2]["layer"], 2);
  EXPECT_EQ(json["bytes"], bytes.size());
  EXPECT_EQ(json["values"], 3 * 2 * 2 * 16 * 64);
  EXPECT_TRUE(json["damage"].is_null());
}

TEST_F(InspectCompressedTest, DamageIsToldAfterWhatIsSound) {
  std::vector<std::byte> bytes = Frames();
  bytes[bytes.size() - 5] ^= std::byte{1};
  const auto [code, text] = Run(Write("damaged", Text(bytes)), true);
  EXPECT_EQ(code, 1);
  const Json json = Json::parse(text);
  EXPECT_EQ(json["frames"].size(), 2U);
  EXPECT_THAT(json["damage"].get<std::string>(), HasSubstr("CRC"));
  const auto [cut_code, cut] = Run(Write("cut", Text(bytes).substr(0, 70)), false);
  EXPECT_EQ(cut_code, 1);
  EXPECT_THAT(cut, HasSubstr("damaged"));
}

TEST_F(InspectCompressedTest, AStreamSaysWhatItWasWrittenWith) {
  std::vector<std::byte> bytes;
  codec::StreamWriter writer(*codec_, bytes);
  const codec::testing::MadeRows made(model_, 1, 0, 16, 1, false);
  ASSERT_TRUE(writer.Add(made.rows, codec::FrameParts::kKey, workspace_));
  const std::string open = Text(bytes);
  writer.Finish();
  const auto [code, text] = Run(Write("stream", Text(bytes)), false);
  EXPECT_EQ(code, 0);
  EXPECT_THAT(text, HasSubstr("complete"));
  EXPECT_THAT(text, HasSubstr(codec_->pipeline().ToString()));
  const auto [open_code, open_text] = Run(Write("open", open), true);
  EXPECT_EQ(open_code, 1);
  EXPECT_EQ(Json::parse(open_text)["stream"]["complete"], false);
}

TEST_F(InspectCompressedTest, ALibraryShowsItsProfiles) {
  codec::ProfileLibrary library;
  library.model = model_;
  library.side_info = std::make_shared<codec::SideInfo>();
  library.profiles.resize(1);
  library.profiles[0].name = "four-bits";
  library.profiles[0].pipeline = kPipeline;
  library.profiles[0].ratios = {{128, 3.5}, {1024, 3.75}};
  ASSERT_TRUE(codec::CompleteProfiles(library));
  const std::string folder = kvik::testing::TempPath("library");
  ASSERT_TRUE(SaveProfileLibrary(library, folder));
  for (const std::string& path : {folder, folder + "/library.json"}) {
    EXPECT_EQ(RecogniseCompressed(path), CompressedKind::kLibrary);
    const auto [code, text] = Run(path, false);
    EXPECT_EQ(code, 0);
    EXPECT_THAT(text, HasSubstr("four-bits"));
    EXPECT_THAT(text, HasSubstr("3.75"));
    EXPECT_THAT(text, HasSubstr(codec::ProfileLibraryHash(library)));
  }
  EXPECT_EQ(Json::parse(Run(folder, true).second)["profiles"][0]["name"], "four-bits");
  // One half of it is none.
  ASSERT_TRUE(ReplaceTextFile(folder + "/side.f16", "12"));
  const auto damaged = LoadProfileLibrary(folder);
  ASSERT_FALSE(damaged);
  EXPECT_THAT(damaged.error().message, HasSubstr("library.json says that side.f16 has 0 bytes"));
}

TEST_F(InspectCompressedTest, WhatIsSomethingElseIsLeftAlone) {
  EXPECT_EQ(RecogniseCompressed("demo"), std::nullopt);
  EXPECT_EQ(RecogniseCompressed(Write("model.gguf", "GGUF....")), std::nullopt);
  EXPECT_EQ(RecogniseCompressed(Write("short", "K")), std::nullopt);
  EXPECT_EQ(RecogniseCompressed(kvik::testing::TempPath("")), std::nullopt);
}

}  // namespace
}  // namespace kvik::app
