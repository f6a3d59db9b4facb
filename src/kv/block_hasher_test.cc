// SPDX-License-Identifier: Apache-2.0
#include "kv/block_hasher.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kv/testing/sha256_cbor_vectors.h"

namespace kvik::kv {
namespace {

std::string Hex(const BlockHash& hash) {
  std::string text;
  for (const uint8_t byte : hash.bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::vector<ContentKey> Keys(const HashOptions& options, const ExtraKeys& extra,
                             const std::vector<TokenId>& tokens, int32_t block_size_tokens = 4) {
  HashChain chain(extra, block_size_tokens);
  chain.Extend(BlockHasher(options), tokens);
  return {chain.keys().begin(), chain.keys().end()};
}

class BothAlgorithms : public testing::TestWithParam<HashAlgorithm> {
 protected:
  [[nodiscard]] HashOptions options(const std::string& model = "m") const {
    return HashOptions{GetParam(), "0", model};
  }
};
INSTANTIATE_TEST_SUITE_P(All, BothAlgorithms,
                         testing::Values(HashAlgorithm::kXxh3, HashAlgorithm::kSha256Cbor),
                         [](const auto& param_info) {
                           return HashAlgorithmName(param_info.param);
                         });

TEST(BlockHasher, Sha256CborEqualsPythonsCbor2AndHashlib) {
  ASSERT_GE(Sha256CborVectors().size(), 20U);
  for (const auto& v : Sha256CborVectors()) {
    const auto keys =
        Keys({HashAlgorithm::kSha256Cbor, std::string(v.seed), "any model"},
             {std::string(v.adapter), std::string(v.salt)}, v.tokens, v.block_size_tokens);
    ASSERT_EQ(keys.size(), v.tokens.size() / static_cast<size_t>(v.block_size_tokens));
    EXPECT_EQ(Hex(keys.back().hash), v.last_block_hash)
        << "seed " << v.seed << " adapter " << v.adapter << " salt " << v.salt;
  }
}

// The default algorithm is what processes agree on: a change of these bytes is a new cache format.
TEST(BlockHasher, Xxh3HashesAreStable) {
  const auto keys = Keys({HashAlgorithm::kXxh3, "0", "m"}, {"a", "s"}, {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(Hex(keys[0].hash), "b77b39a6a53d68ed6dd42b4caa58c4d800000000000000000000000000000000");
  EXPECT_EQ(Hex(keys[1].hash), "874db4ab4aa0684a0952519d4f13b31d00000000000000000000000000000000");
}

TEST(BlockHasher, AlgorithmNamesRoundTrip) {
  for (const auto algorithm : {HashAlgorithm::kXxh3, HashAlgorithm::kSha256Cbor}) {
    EXPECT_EQ(ParseHashAlgorithm(HashAlgorithmName(algorithm)), algorithm);
  }
  EXPECT_FALSE(ParseHashAlgorithm("md5").has_value());
}

TEST_P(BothAlgorithms, AdapterAndSaltOfTheSameNameNeverCollide) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto adapter = Keys(options(), {"X", ""}, tokens);
  const auto salt = Keys(options(), {"", "X"}, tokens);
  const auto plain = Keys(options(), {"", ""}, tokens);
  for (size_t i = 0; i < adapter.size(); ++i) {
    EXPECT_FALSE(adapter[i] == salt[i]);
    EXPECT_FALSE(adapter[i] == plain[i]);
    EXPECT_FALSE(salt[i] == plain[i]);
  }
}

TEST_P(BothAlgorithms, MovingTheBorderBetweenAdapterAndSaltChangesTheKey) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  EXPECT_FALSE(Keys(options(), {"ab", "c"}, tokens)[0] == Keys(options(), {"a", "bc"}, tokens)[0]);
  EXPECT_FALSE(Keys(options(), {"abc", ""}, tokens)[0] == Keys(options(), {"", "abc"}, tokens)[0]);
}

TEST_P(BothAlgorithms, ModelsNeverShareBlocks) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  EXPECT_FALSE(Keys(options("m"), {}, tokens)[0] == Keys(options("n"), {}, tokens)[0]);
}

TEST_P(BothAlgorithms, SeedChangesEveryHash) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  HashOptions other = options();
  other.seed = "1";
  const auto a = Keys(options(), {}, tokens);
  const auto b = Keys(other, {}, tokens);
  EXPECT_FALSE(a[0].hash == b[0].hash);
  EXPECT_FALSE(a[1].hash == b[1].hash);
}

TEST_P(BothAlgorithms, ABlockIsIdentifiedByItsWholePrefix) {
  const auto a = Keys(options(), {}, {1, 2, 3, 4, 5, 6, 7, 8});
  const auto b = Keys(options(), {}, {9, 2, 3, 4, 5, 6, 7, 8});
  const auto c = Keys(options(), {}, {5, 6, 7, 8});
  EXPECT_FALSE(a[1] == b[1]);
  EXPECT_FALSE(a[1] == c[0]);
}

TEST_P(BothAlgorithms, ExtendingInPiecesEqualsHashingAtOnce) {
  std::vector<TokenId> tokens(103);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<TokenId>(i * 37 % 1000);
  }
  const BlockHasher hasher(options());
  HashChain grown(ExtraKeys{"a", "s"}, 16);
  for (size_t n = 0; n <= tokens.size(); n += 7) {
    grown.Extend(hasher, std::span(tokens).first(n));
    EXPECT_EQ(grown.keys().size(), n / 16);
  }
  grown.Extend(hasher, tokens);
  const auto at_once = Keys(options(), {"a", "s"}, tokens, 16);
  ASSERT_EQ(grown.keys().size(), at_once.size());
  for (size_t i = 0; i < at_once.size(); ++i) {
    EXPECT_TRUE(grown.keys()[i] == at_once[i]);
  }
}

TEST(NumericsTag, DiffersWhereverTheDescriptionDiffers) {
  std::set<uint64_t> tags;
  for (const char* text :
       {"avx2 f32 kv=bf16 w=1 v=1", "scalar f32 kv=bf16 w=1 v=1", "avx2 bf16 kv=bf16 w=1 v=1",
        "avx2 f32 kv=f32 w=1 v=1", "avx2 f32 kv=bf16 w=2 v=1", "avx2 f32 kv=bf16 w=1 v=2"}) {
    EXPECT_TRUE(tags.insert(NumericsTag::FromDescription(text).value).second);
    EXPECT_EQ(NumericsTag::FromDescription(text), NumericsTag::FromDescription(text));
  }
}

}  // namespace
}  // namespace kvik::kv
