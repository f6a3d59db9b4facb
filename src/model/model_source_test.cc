// SPDX-License-Identifier: Apache-2.0
#include "model/model_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/mapped_file.h"
#include "base/testing/temp_path.h"
#include "model/gguf_writer.h"
#include "model/safetensors.h"
#include "model/testing/tiny_model.h"

namespace kvik::model {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string ErrorOf(const std::string& path) {
  const auto source = ModelSource::Open(path);
  if (source) {
    return "opened";
  }
  EXPECT_EQ(source.error().message.find('\n'), std::string::npos);
  return source.error().message;
}

TEST(GgufSource, ReadsATinyLlama) {
  const std::string path = kvik::testing::TempPath("llama.gguf");
  ASSERT_TRUE(testing::WriteTinyGguf({}, path));
  const auto source = ModelSource::Open(path);
  ASSERT_TRUE(source) << source.error().message;
  const ModelConfig& config = (*source)->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.vocab_size, testing::kTinyVocabSize);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_EQ(config.eos_tokens,
            (std::vector<TokenId>{testing::kTinyEndOfText, testing::kTinyImEnd}));
  EXPECT_EQ((*source)->Weight("blk.1.attn_k.weight").interleaved_head_dim, 64);
  EXPECT_EQ((*source)->Weight("blk.1.attn_v.weight").interleaved_head_dim, 0);
  EXPECT_EQ((*source)->container(), "GGUF v3");
  EXPECT_THAT((*source)->chat_template(), HasSubstr("<|im_start|>"));
}

TEST(GgufSource, ReadsTheOptionalPartsOfAnArchitecture) {
  testing::TinyModelOptions options;
  options.architecture = "qwen3";
  options.tied_embeddings = false;
  options.rope_scaling = "yarn";
  options.rope_factor = 4.0F;
  options.sliding_window_tokens = 100;
  const std::string path = kvik::testing::TempPath("qwen3.gguf");
  ASSERT_TRUE(testing::WriteTinyGguf(options, path));
  const auto source = ModelSource::Open(path);
  ASSERT_TRUE(source) << source.error().message;
  const ModelConfig& config = (*source)->config();
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(config.rope.original_context_tokens, 256);
  EXPECT_EQ(config.sliding_window_tokens, 100);
  EXPECT_EQ((*source)->Weight("blk.0.attn_q.weight").interleaved_head_dim, 0);

  testing::TinyModelOptions llama3;
  llama3.rope_divisors.assign(32, 2.0F);
  const std::string llama3_path = kvik::testing::TempPath("llama3.gguf");
  ASSERT_TRUE(testing::WriteTinyGguf(llama3, llama3_path));
  const auto divided = ModelSource::Open(llama3_path);
  ASSERT_TRUE(divided) << divided.error().message;
  EXPECT_EQ((*divided)->config().rope.frequency_divisors, std::vector<float>(32, 2.0F));
}

void CopyMetadata(const GgufFile& file, GgufWriter& writer) {
  for (const std::string_view key : file.Keys()) {
    writer.CopyPair(file, key);
  }
}

// Rewrites a tiny model with one change.
class Edited {
 public:
  explicit Edited(const testing::TinyModelOptions& options = {})
      : bytes_(testing::MakeTinyGguf(options)), file_(*GgufFile::Parse("tiny", bytes_)) {}

  // Tensors for which keep() is false are left out; `extra` is added.
  template <typename Keep>
  void Write(const std::string& path, Keep keep, const char* extra = nullptr) const {
    GgufWriter writer;
    CopyMetadata(file_, writer);
    for (const GgufTensor& tensor : file_.tensors()) {
      if (keep(tensor.name)) {
        writer.AddTensor(tensor.name, tensor.type, tensor.dims, tensor.data);
      }
    }
    const Bytes data(16);
    if (extra != nullptr) {
      writer.AddTensor(extra, GgmlType::kF32, {4}, data);
    }
    ASSERT_TRUE(writer.WriteTo(path));
  }

  [[nodiscard]] const GgufFile& file() const { return file_; }

 private:
  Bytes bytes_;
  GgufFile file_;
};

TEST(GgufSource, NamesMissingAndUnknownTensors) {
  const Edited tiny;
  const std::string path = kvik::testing::TempPath("edited.gguf");
  tiny.Write(path, [](std::string_view) { return true; });
  EXPECT_EQ(ErrorOf(path), "opened");
  tiny.Write(path, [](std::string_view name) { return name != "blk.1.ffn_up.weight"; });
  EXPECT_THAT(ErrorOf(path), HasSubstr("tensor 'blk.1.ffn_up.weight' is missing"));
  tiny.Write(path, [](std::string_view name) { return name != "token_embd.weight"; });
  EXPECT_THAT(ErrorOf(path), HasSubstr("tensor 'token_embd.weight' is missing"));
  tiny.Write(
      path, [](std::string_view) { return true; }, "blk.0.ffn_gate_inp.weight");
  EXPECT_THAT(ErrorOf(path), HasSubstr("'blk.0.ffn_gate_inp.weight' belongs to no llama model"));
  tiny.Write(
      path, [](std::string_view name) { return name != "blk.0.ffn_norm.weight"; },
      "blk.0.ffn_norm.weight");
  EXPECT_THAT(ErrorOf(path), HasSubstr("has shape [1, 4], the configuration says [1, 64]"));
}

TEST(GgufSource, RefusesWhatItCannotCompute) {
  const std::string path = kvik::testing::TempPath("unsupported.gguf");
  const auto refuse = [&](const auto& edit, const char* message) {
    GgufWriter writer;
    edit(writer);
    ASSERT_TRUE(writer.WriteTo(path));
    EXPECT_THAT(ErrorOf(path), HasSubstr(message));
  };
  refuse([](GgufWriter&) {}, "'general.architecture': is missing");
  refuse([](GgufWriter& w) { w.AddString("general.architecture", "mamba\n"); },
         "'mamba?' is not supported");
  refuse([](GgufWriter& w) { w.AddUint32("general.architecture", 1); }, "is uint32, not a string");
  refuse([](GgufWriter& w) { w.AddString("general.architecture", "llama"); },
         "'llama.block_count': is missing");
  refuse(
      [](GgufWriter& w) {
        w.AddString("general.architecture", "llama");
        w.AddUint32("llama.expert_count", 8);
      },
      "mixtures of experts");
  refuse(
      [](GgufWriter& w) {
        w.AddString("general.architecture", "llama");
        w.AddUint32("llama.block_count", 0xFFFFFFFF);
      },
      "4294967295 is outside");
}

TEST(GgufSource, ReadsASplitSetAndChecksItsParts) {
  const Edited tiny;
  const auto write_part = [&](int number, int says, int total, bool lie_in_sum) {
    GgufWriter writer;
    if (number == 0) {
      CopyMetadata(tiny.file(), writer);
    }
    writer.AddUint32("split.no", static_cast<uint32_t>(says));
    writer.AddUint32("split.count", static_cast<uint32_t>(total));
    const size_t count = tiny.file().tensors().size();
    writer.AddInt32("split.tensors.count", static_cast<int32_t>(count) + (lie_in_sum ? 1 : 0));
    for (size_t i = 0; i < count; ++i) {
      const GgufTensor& tensor = tiny.file().tensors()[i];
      if (static_cast<int>(i % 3) == number) {
        writer.AddTensor(tensor.name, tensor.type, tensor.dims, tensor.data);
      }
    }
    const std::string path =
        kvik::testing::TempPath("split-0000" + std::to_string(number + 1) + "-of-00003.gguf");
    ASSERT_TRUE(writer.WriteTo(path));
  };
  const std::string first = kvik::testing::TempPath("split-00001-of-00003.gguf");
  const std::string second = kvik::testing::TempPath("split-00002-of-00003.gguf");
  for (int i = 0; i < 3; ++i) {
    write_part(i, i, 3, false);
  }
  const auto source = ModelSource::Open(first);
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ((*source)->container(), "GGUF v3 in 3 parts");
  EXPECT_THAT(ErrorOf(second), HasSubstr("part 2 of a split model; name its first part"));

  write_part(1, 2, 3, false);
  EXPECT_THAT(ErrorOf(first), HasSubstr("is not part 2 of 3"));
  write_part(1, 1, 3, false);
  write_part(0, 0, 3, true);
  EXPECT_THAT(ErrorOf(first), HasSubstr("'split.tensors.count'"));
  write_part(0, 0, 3, false);
  std::filesystem::remove(second);
  EXPECT_THAT(ErrorOf(first), HasSubstr("split-00002-of-00003.gguf: cannot open"));
  std::filesystem::copy_file(first, kvik::testing::TempPath("renamed.gguf"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(ErrorOf(kvik::testing::TempPath("renamed.gguf")), HasSubstr("the name must end in"));
}

TEST(ModelSource, SaysWhatIsMissing) {
  EXPECT_THAT(ErrorOf("/nonexistent/m.gguf"), HasSubstr("/nonexistent/m.gguf: no such model"));
  const std::string folder = kvik::testing::TempPath("empty");
  std::filesystem::create_directories(folder);
  EXPECT_THAT(ErrorOf(folder), HasSubstr("the folder has no config.json"));
}

// A Hugging Face folder with one layer, written field by field.
class HfFolder {
 public:
  explicit HfFolder(const std::string& name) : folder_(kvik::testing::TempPath(name)) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void Config(const std::string& extra) const {
    WriteText(folder_ + "/config.json",
              R"({"model_type":"qwen2","vocab_size":16,"hidden_size":8,"intermediate_size":12,)"
              R"("num_hidden_layers":1,"num_attention_heads":2,"max_position_embeddings":64)" +
                  extra + "}");
  }
  // Tensors [begin, end) of the model in one file.
  void Weights(const std::string& file, size_t begin, size_t end) const {
    const std::pair<const char*, std::vector<uint64_t>> all[] = {
        {"model.embed_tokens.weight", {16, 8}},
        {"model.layers.0.input_layernorm.weight", {8}},
        {"model.layers.0.self_attn.q_proj.weight", {8, 8}},
        {"model.layers.0.self_attn.k_proj.weight", {8, 8}},
        {"model.layers.0.self_attn.v_proj.weight", {8, 8}},
        {"model.layers.0.self_attn.q_proj.bias", {8}},
        {"model.layers.0.self_attn.k_proj.bias", {8}},
        {"model.layers.0.self_attn.v_proj.bias", {8}},
        {"model.layers.0.self_attn.o_proj.weight", {8, 8}},
        {"model.layers.0.post_attention_layernorm.weight", {8}},
        {"model.layers.0.mlp.gate_proj.weight", {12, 8}},
        {"model.layers.0.mlp.up_proj.weight", {12, 8}},
        {"model.layers.0.mlp.down_proj.weight", {8, 12}},
        {"model.norm.weight", {8}},
        {"lm_head.weight", {16, 8}}};
    std::vector<SafetensorsOutput> out;
    const Bytes zeros(4096);
    for (size_t i = begin; i < end && i < std::size(all); ++i) {
      uint64_t values = 1;
      for (const uint64_t dim : all[i].second) {
        values *= dim;
      }
      out.push_back({all[i].first, SafetensorsDtype::kBf16, all[i].second,
                     std::span(zeros).first(values * 2), nullptr});
    }
    ASSERT_TRUE(WriteSafetensors(folder_ + "/" + file, out));
  }
  [[nodiscard]] const std::string& path() const { return folder_; }

 private:
  std::string folder_;
};

TEST(HfSource, ReadsASingleFile) {
  const HfFolder hf("hf_single");
  hf.Config(R"(,"eos_token_id":3,"bos_token_id":null,"rope_theta":1000000.0,)"
            R"("use_sliding_window":false,"sliding_window":32)");
  hf.Weights("model.safetensors", 0, 15);
  WriteText(hf.path() + "/generation_config.json", R"({"eos_token_id":[5,3]})");
  WriteText(hf.path() + "/tokenizer_config.json",
            R"({"chat_template":[{"name":"tool","template":"no"},)"
            R"({"name":"default","template":"yes"}]})");
  const auto source = ModelSource::Open(hf.path());
  ASSERT_TRUE(source) << source.error().message;
  const ModelConfig& config = (*source)->config();
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.sliding_window_tokens, 0);
  EXPECT_EQ(config.bos_token, -1);
  EXPECT_EQ(config.eos_tokens, (std::vector<TokenId>{3, 5}));
  EXPECT_EQ((*source)->Weight("blk.0.ffn_down.weight").type, GgmlType::kBf16);
  EXPECT_EQ((*source)->chat_template(), "yes");
  WriteText(hf.path() + "/chat_template.jinja", "file");
  EXPECT_EQ((*ModelSource::Open(hf.path()))->chat_template(), "file");
}

TEST(HfSource, ReadsShardsAndChecksTheIndex) {
  const HfFolder hf("hf_shards");
  hf.Config(R"(,"tie_word_embeddings":true)");
  const std::string a = "model-00001-of-00002.safetensors";
  const std::string b = "model-00002-of-00002.safetensors";
  hf.Weights(a, 0, 2);
  hf.Weights(b, 2, 14);
  const auto index = [&](const std::string& norm_file, const std::string& extra) {
    std::string map = R"("model.embed_tokens.weight":")" + a +
                      R"(","model.layers.0.input_layernorm.weight":")" + a + "\"";
    for (const char* name :
         {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
          "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
          "self_attn.o_proj.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight",
          "mlp.up_proj.weight", "mlp.down_proj.weight"}) {
      map += std::string(R"(,"model.layers.0.)") + name + R"(":")" + b + "\"";
    }
    map += R"(,"model.norm.weight":")" + norm_file + "\"" + extra;
    WriteText(hf.path() + "/model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");
  };
  index(b, "");
  const auto source = ModelSource::Open(hf.path());
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ((*source)->container(), "safetensors in 2 shards");
  index(a, "");
  EXPECT_THAT(ErrorOf(hf.path()), HasSubstr("'model.norm.weight' is not where"));
  index(b, R"(,"model.extra":")" + b + "\"");
  EXPECT_THAT(ErrorOf(hf.path()), HasSubstr("lists 15 tensors, the shards hold 14"));
  index(b, R"(,"model.extra":"../../etc/passwd")");
  EXPECT_THAT(ErrorOf(hf.path()), HasSubstr("is not a file name"));
  index(b, R"(,"model.extra":7)");
  EXPECT_THAT(ErrorOf(hf.path()), HasSubstr("weight_map"));
}

TEST(HfSource, NamesTheFieldOfEveryLie) {
  const HfFolder hf("hf_lies");
  hf.Weights("model.safetensors", 0, 15);
  const auto error = [&](const std::string& extra) {
    hf.Config(extra);
    return ErrorOf(hf.path());
  };
  EXPECT_EQ(error(""), "opened");
  EXPECT_THAT(error(R"(,"num_key_value_heads":"two")"), HasSubstr("'num_key_value_heads'"));
  EXPECT_THAT(error(R"(,"num_key_value_heads":3)"), HasSubstr("num_kv_heads = 3"));
  EXPECT_THAT(error(R"(,"head_dim":3)"), HasSubstr("head_dim = 3 is odd"));
  EXPECT_THAT(error(R"(,"rms_norm_eps":-1.0)"), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(error(R"(,"rope_scaling":{"type":"longrope","factor":2.0})"),
              HasSubstr("'rope_scaling.rope_type': 'longrope' is not supported"));
  EXPECT_THAT(error(R"(,"rope_scaling":{"type":"linear"})"), HasSubstr("'rope_scaling.factor'"));
  EXPECT_THAT(error(R"(,"rope_scaling":{"type":"linear","factor":0})"), HasSubstr("rope factor"));
  EXPECT_THAT(error(R"(,"rope_scaling":7)"), HasSubstr("'rope_scaling': 7 is not an object"));
  EXPECT_THAT(error(R"(,"eos_token_id":16)"), HasSubstr("'eos_token_id': 16"));
  EXPECT_THAT(error(R"(,"eos_token_id":[1,"x"])"), HasSubstr("'eos_token_id'"));
  EXPECT_THAT(error(R"(,"hidden_act":"gelu")"), HasSubstr("'gelu' is not supported"));
  EXPECT_THAT(error(R"(,"quantization_config":{})"), HasSubstr("quantised safetensors"));
  EXPECT_THAT(error(R"(,"tie_word_embeddings":1)"), HasSubstr("1 is not true or false"));
  EXPECT_THAT(error(R"(,"num_hidden_layers":2)"), HasSubstr("'blk.1.attn_norm.weight' is missing"));
  EXPECT_THAT(error(R"(,"vocab_size":17)"), HasSubstr("has shape [16, 8]"));
  WriteText(hf.path() + "/config.json", R"({"model_type":"gpt2"})");
  EXPECT_THAT(ErrorOf(hf.path()), HasSubstr("'gpt2' is not supported"));
  WriteText(hf.path() + "/config.json", R"({"model_type":)");
  EXPECT_THAT(ErrorOf(hf.path()), HasSubstr("not valid JSON"));
  WriteText(hf.path() + "/config.json", "[]");
  EXPECT_THAT(ErrorOf(hf.path()), HasSubstr("not a JSON object"));
  WriteText(hf.path() + "/config.json", std::string(1000, '[') + std::string(1000, ']'));
  EXPECT_THAT(ErrorOf(hf.path()), HasSubstr("nests deeper"));
  WriteText(hf.path() + "/config.json", std::string(2 << 20, ' '));
  EXPECT_THAT(ErrorOf(hf.path()), HasSubstr("bytes, more than"));
}

TEST(HfSource, ReadsEveryRopeSpelling) {
  const HfFolder hf("hf_rope");
  hf.Weights("model.safetensors", 0, 15);
  const auto rope = [&](const std::string& extra) {
    hf.Config(extra);
    const auto source = ModelSource::Open(hf.path());
    EXPECT_TRUE(source) << source.error().message;
    return source ? (*source)->config().rope : RopeConfig{};
  };
  EXPECT_EQ(rope("").scaling, RopeScaling::kNone);
  EXPECT_EQ(rope(R"(,"rope_scaling":{"type":"linear","factor":2.0})").factor, 2.0);
  const RopeConfig llama3 =
      rope(R"(,"rope_scaling":{"rope_type":"llama3","factor":32.0,"low_freq_factor":1.0,)"
           R"("high_freq_factor":4.0,"original_max_position_embeddings":8192})");
  EXPECT_EQ(llama3.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama3.original_context_tokens, 8192);
  const RopeConfig yarn =
      rope(R"(,"rope_parameters":{"rope_type":"yarn","factor":4.0,"rope_theta":5000.0})");
  EXPECT_EQ(yarn.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.theta, 5000.0);
  EXPECT_EQ(yarn.original_context_tokens, 64);
  EXPECT_NEAR(yarn.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
}

}  // namespace
}  // namespace kvik::model
