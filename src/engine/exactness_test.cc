// SPDX-License-Identifier: Apache-2.0
// The engine over real (tiny, random) models: what a request says never depends on the state of
// the cache, on what runs beside it, on chunks, threads, block size, policy or preemptions. Tokens
// and log-probabilities are compared bit for bit with a run alone on an engine without a cache.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <unordered_map>

#include "base/clock.h"
#include "base/isa.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "engine/testing/fake_connector.h"
#include "model/model.h"
#include "model/model_source.h"
#include "model/testing/tiny_model.h"

namespace kvik::engine {
namespace {

using model::testing::kTinyVocabSize;
using model::testing::TinyModelOptions;

// A loaded model with its threads.
struct LoadedModel {
  LoadedModel(const std::string& path, const model::ModelOptions& options, int num_threads)
      : pool(num_threads) {
    const auto source = model::ModelSource::Open(path).value();
    model = model::Model::Load(*source, options, pool).value();
  }
  ThreadPool pool;
  std::unique_ptr<model::Model> model;
};

// Everything a request said, floats as bits.
struct Said {
  std::vector<TokenId> tokens;
  std::vector<uint32_t> logprobs;  // of the sampled tokens and the top ones, in order
  std::optional<FinishReason> finish;
  Usage usage;

  void Add(const RequestOutput& output) {
    for (const TokenOutput& token : output.tokens) {
      tokens.push_back(token.token);
      logprobs.push_back(std::bit_cast<uint32_t>(token.logprob));
      for (const TokenLogprob& top : token.top) {
        logprobs.push_back(static_cast<uint32_t>(top.token));
        logprobs.push_back(std::bit_cast<uint32_t>(top.logprob));
      }
    }
    finish = output.finish;
    usage = output.usage;
  }
};

struct Case {
  std::string name;
  TinyModelOptions tiny;
  ComputeType compute = ComputeType::kF32;
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;
  friend void PrintTo(const Case& test_case, std::ostream* out) { *out << test_case.name; }
};

std::vector<Case> Cases() {
  std::vector<Case> cases(5);
  cases[0].name = "llama_q8_f32";
  cases[1].name = "qwen2_f32_kv_f32";
  cases[1].tiny.architecture = "qwen2";
  cases[1].tiny.num_kv_heads = 2;
  cases[1].kv_dtype = kv::KvDtype::kF32;
  cases[2].name = "qwen3_window_f32";
  cases[2].tiny.architecture = "qwen3";
  cases[2].tiny.format = model::GgmlType::kQ4_0;
  cases[2].tiny.sliding_window_tokens = 48;
  cases[3].name = "llama_bf16";
  cases[3].compute = ComputeType::kBf16;
  cases[4].name = "llama_six_heads_f32";
  cases[4].tiny.num_heads = 6;
  cases[4].tiny.num_kv_heads = 2;
  cases[4].tiny.head_dim = 32;
  cases[4].tiny.format = model::GgmlType::kF32;
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].tiny.seed = i + 1;
  }
  return cases;
}

class Exactness : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() /
             ("kvik_exactness_" + std::to_string(getpid()) + "_" + GetParam().name + ".gguf"))
                .string();
    ASSERT_TRUE(model::testing::WriteTinyGguf(GetParam().tiny, path_).has_value());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // The model under these conditions; loaded once each.
  model::Model& Load(Isa isa, int num_threads, int32_t block_size_tokens) {
    auto& loaded = models_[{isa, num_threads, block_size_tokens}];
    if (loaded == nullptr) {
      model::ModelOptions options;
      options.isa = isa;
      options.compute = GetParam().compute;
      options.kv_dtype = GetParam().kv_dtype;
      options.block_size_tokens = block_size_tokens;
      options.max_batch_rows = 1024;
      options.max_logit_rows = 16;
      loaded = std::make_unique<LoadedModel>(path_, options, num_threads);
    }
    return *loaded->model;
  }

  std::string path_;
  std::map<std::tuple<Isa, int, int32_t>, std::unique_ptr<LoadedModel>> models_;
};

INSTANTIATE_TEST_SUITE_P(Models, Exactness, testing::ValuesIn(Cases()),
                         [](const auto& param_info) { return param_info.param.name; });

EngineOptions MakeOptions(model::Model& model, int32_t num_blocks) {
  EngineOptions options;
  options.cache.num_blocks = num_blocks;
  options.cache.block_size_tokens = model.kv_geometry().block_size_tokens;
  options.cache.numerics = model.numerics_tag();
  options.scheduler.max_num_seqs = 8;
  options.scheduler.max_num_batched_tokens = 1024;
  options.scheduler.chunk_max = 1024;
  options.verify_sealed_blocks = true;
  return options;
}

// Alone, in one chunk, without a cache.
Said RunAlone(model::Model& model, const Request& request) {
  const auto executor = ModelExecutor::Create(model, 64).value();
  EngineOptions options = MakeOptions(model, 64);
  options.cache.prefix_caching = false;
  const ManualClock clock;
  const auto engine = Engine::Create(options, *executor, clock).value();
  Said said;
  EXPECT_TRUE(
      engine->Submit(request, [&](const RequestOutput& output) { said.Add(output); }).has_value());
  while (engine->HasWork()) {
    (void)engine->Step();
  }
  return said;
}

std::vector<TokenId> RandomTokens(Rng& rng, int32_t num_tokens) {
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(rng.Below(kTinyVocabSize));
  }
  return tokens;
}

// Prompts that share prefixes, of all lengths around block borders; one longer than a softmax
// span.
std::vector<Request> MakeRequests(Rng& rng) {
  std::vector<Request> requests;
  const std::vector<std::vector<TokenId>> stems = {RandomTokens(rng, 560), RandomTokens(rng, 200)};
  for (int i = 0; i < 10; ++i) {
    Request request;
    request.prompt = stems[i == 0 ? 0U : rng.Below(2)];  // the longest is alone of its length
    const size_t length = i == 0 ? 544 : 1 + rng.Below(i < 3 ? 40 : 180);
    request.prompt.resize(length / 16 * 16 + (i % 3) + 1);
    request.max_new_tokens = static_cast<int32_t>(rng.Range(1, 16));
    request.priority = static_cast<int32_t>(rng.Below(2));
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 1.0F;
    request.sampling.repetition_penalty = i % 4 == 1 ? 1.3F : 1.0F;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.num_logprobs = 3;
    requests.push_back(request);
  }
  return requests;
}

TEST_P(Exactness, OutputsNeverDependOnCacheBatchChunksThreadsOrPreemptions) {
  const Case& test_case = GetParam();
  std::vector<Isa> isas;
  for (const Isa isa : SupportedIsas()) {
    if (ComputeSupported(isa, test_case.compute)) {
      isas.push_back(isa);
    }
  }
  ASSERT_FALSE(isas.empty());
  int64_t gaps = 0;
  int64_t preemptions = 0;
  size_t policy = 0;
  for (const Isa isa : isas) {
    SCOPED_TRACE(IsaName(isa));
    Rng request_rng(test_case.tiny.seed);
    const std::vector<Request> requests = MakeRequests(request_rng);
    std::vector<Said> expected;
    for (const Request& request : requests) {
      expected.push_back(RunAlone(Load(isa, 1, 16), request));
    }
    const int trials = isa == Isa::kScalar && isas.size() > 1 ? 1 : 4;
    for (int trial = 0; trial < trials; ++trial) {
      SCOPED_TRACE(testing::Message() << "trial " << trial);
      Rng rng(static_cast<uint64_t>(trial), test_case.tiny.seed);
      const int32_t block_size = 16 << rng.Below(trial == 0 ? 1 : 3);
      model::Model& model = Load(isa, static_cast<int>(rng.Range(1, 2)), block_size);
      // Barely more than the longest request needs.
      const auto num_blocks =
          (592 + block_size - 1) / block_size + static_cast<int32_t>(rng.Below(24));
      EngineOptions options = MakeOptions(model, num_blocks);
      options.scheduler.max_num_seqs = static_cast<int32_t>(rng.Range(2, 8));
      options.scheduler.chunk_max = static_cast<int32_t>(rng.Range(1, 512) >> rng.Below(6)) + 1;
      options.scheduler.chunk_floor =
          static_cast<int32_t>(rng.Range(1, options.scheduler.chunk_max));
      options.scheduler.reserve_new_tokens =
          rng.Below(4) == 0 ? std::numeric_limits<int32_t>::max() : 0;
      // Models, ISAs and trials take them in turn.
      const auto policies = kv::EvictionPolicyNames();
      options.cache.policy.name = policies[(policy++ + 3 * test_case.tiny.seed) % policies.size()];
      options.cache.policy.seed = rng.Next();
      const auto executor = ModelExecutor::Create(model, num_blocks).value();
      ManualClock clock;
      const auto engine = Engine::Create(options, *executor, clock).value();
      std::map<RequestId, size_t> index_of;
      std::map<RequestId, Said> said;
      size_t left_to_submit = 16;
      while (left_to_submit > 0 || engine->HasWork()) {
        if (left_to_submit > 0 && rng.Below(3) == 0) {
          const size_t i = rng.Below(requests.size());
          (void)engine->cache().EvictAtRandom(rng, 0.25);
          const auto id = engine->Submit(
              requests[i], [&](const RequestOutput& output) { said[output.id].Add(output); });
          ASSERT_TRUE(id.has_value());
          index_of[*id] = i;
          --left_to_submit;
        }
        (void)engine->Step();
        clock.Advance(static_cast<int64_t>(rng.Below(2'000'000)));
        engine->cache().CheckInvariant();
      }
      for (const auto& [id, i] : index_of) {
        ASSERT_EQ(said[id].tokens, expected[i].tokens) << "request " << i;
        ASSERT_EQ(said[id].logprobs, expected[i].logprobs) << "request " << i;
        ASSERT_EQ(said[id].finish, expected[i].finish) << "request " << i;
        gaps += said[id].usage.cached_segments >= 2 ? 1 : 0;
        preemptions += said[id].usage.preemptions;
      }
      ASSERT_EQ(engine->cache().AvailableBlocks(), num_blocks);
    }
  }
  EXPECT_GT(gaps, 0);
  EXPECT_GT(preemptions, 0);
  std::printf("%s: %lld requests with gaps, %lld preemptions\n", test_case.name.c_str(),
              static_cast<long long>(gaps), static_cast<long long>(preemptions));
}

// What a request says when slots of its full blocks are dropped after its first token, or are not.
Said RunOne(Engine& engine, const Request& request, bool drop) {
  Said said;
  EXPECT_TRUE(
      engine.Submit(request, [&](const RequestOutput& output) { said.Add(output); }).has_value());
  while (said.tokens.empty()) {
    (void)engine.Step();
  }
  kv::BlockMasks& masks = *engine.cache().masks();
  const kv::KvGeometry& geometry = masks.geometry();
  for (BlockId block = 0; block < masks.num_blocks() && drop; ++block) {
    if (engine.cache().pool().state(block) == kv::BlockState::kReferenced) {
      for (int32_t slot = 0; slot < geometry.block_size_tokens; slot += 16) {
        masks.Drop(block, 0, geometry.num_kv_heads - 1, slot + 3, slot + 14);
        masks.Drop(block, 1, 0, slot, slot + 16);
      }
    }
  }
  while (engine.HasWork()) {
    (void)engine.Step();
    engine.cache().CheckInvariant();
  }
  return said;
}

TEST_P(Exactness, DroppedSlotsStayDroppedUntilTheirBlocksAreFreed) {
  Rng rng(GetParam().tiny.seed);
  Request request;
  request.prompt = RandomTokens(rng, 133);
  request.max_new_tokens = 12;
  request.sampling.temperature = 0;
  request.sampling.num_logprobs = 3;
  const std::vector<Isa> isas = SupportedIsas();
  const Isa isa = *std::find_if(isas.rbegin(), isas.rend(), [&](Isa candidate) {
    return ComputeSupported(candidate, GetParam().compute);
  });
  const Said whole = RunAlone(Load(isa, 1, 16), request);
  std::optional<Said> expected;
  for (const int32_t block_size : {16, 32, 64}) {
    for (const int32_t chunk : {1024, 7}) {
      model::Model& model = Load(isa, chunk == 7 ? 2 : 1, block_size);
      const auto executor = ModelExecutor::Create(model, 10).value();
      EngineOptions options = MakeOptions(model, 10);
      options.cache.prefix_caching = false;  // what reads dropped slots must not become exact
      options.scheduler.chunk_max = chunk;
      options.scheduler.chunk_floor = 1;
      const ManualClock clock;
      const auto engine = Engine::Create(options, *executor, clock).value();
      const Said dropped = RunOne(*engine, request, true);
      EXPECT_TRUE(engine->cache().masks()->empty());
      expected = expected.value_or(dropped);
      EXPECT_NE(dropped.logprobs, whole.logprobs);
      EXPECT_EQ(dropped.logprobs, expected->logprobs) << "block size " << block_size;
      EXPECT_EQ(RunOne(*engine, request, false).logprobs, whole.logprobs);
    }
  }
}

// What one engine computed is all that another one loads, in any pieces, while it computes the
// rest.
TEST_P(Exactness, OutputsAreTheSameWithKvFromElsewhere) {
  Rng rng(GetParam().tiny.seed);
  const std::vector<Request> requests = MakeRequests(rng);
  const std::vector<Isa> isas = SupportedIsas();
  const Isa isa = *std::find_if(isas.rbegin(), isas.rend(), [&](Isa candidate) {
    return ComputeSupported(candidate, GetParam().compute);
  });
  model::Model& model = Load(isa, 1, 16);
  const size_t block_bytes = model.kv_geometry().bytes_per_block();
  std::unordered_map<kv::ContentKey, std::vector<std::byte>, kv::ContentKeyHash> elsewhere;
  const auto bytes_of = [&](FakeConnector& connector, BlockId block) {
    return connector.host.arena.subspan(static_cast<size_t>(block) * block_bytes, block_bytes);
  };
  int64_t loaded = 0;
  for (const bool loads : {false, true}) {
    FakeConnector connector;
    connector.on_offer = [&](const kv::SealedBlocks& sealed) {
      for (const kv::SealedBlock& block : sealed.blocks) {
        const auto bytes = bytes_of(connector, block.block);
        elsewhere[block.key.content].assign(bytes.begin(), bytes.end());
      }
      return false;
    };
    connector.on_claim = [&](FakeConnector::Ticket& ticket, int32_t,
                             std::span<const kv::BlockRange> missing) {
      std::vector<kv::BlockRange> claims;
      for (const kv::BlockRange& range : missing) {
        for (int32_t i = range.first_block; i < range.end_block() && loads; ++i) {
          if (elsewhere.contains(ticket.keys[static_cast<size_t>(i)]) && rng.Below(3) != 0) {
            claims.push_back({i, 1});
          }
        }
      }
      return claims;
    };
    connector.on_yield = [&](FakeConnector::Ticket& ticket, int32_t front) {
      const auto bytes = bytes_of(connector, ticket.loading.at(front));
      if (rng.Below(4) == 0) {
        std::fill(bytes.begin(), bytes.end(), std::byte{0x7F});
        connector.Fail(ticket, {front, 1});
      } else {
        std::ranges::copy(elsewhere.at(ticket.keys[static_cast<size_t>(front)]), bytes.begin());
        connector.Arrive(ticket, {front, 1});
      }
      return kv::kUntilEvent;
    };
    connector.on_close = [&](FakeConnector::Ticket& ticket) {
      while (!ticket.loading.empty()) {
        connector.Fail(ticket, {ticket.loading.begin()->first, 1});
      }
      return nullptr;
    };
    const auto executor = ModelExecutor::Create(model, 96).value();
    EngineOptions options = MakeOptions(model, 96);
    options.scheduler.chunk_max = loads ? 37 : 1024;
    options.scheduler.chunk_floor = 1;
    const ManualClock clock;
    const auto engine = Engine::Create(options, *executor, clock).value();
    ASSERT_TRUE(engine->Connect(connector, {}).has_value());
    std::map<RequestId, Said> said;
    std::vector<RequestId> ids;
    for (const Request& request : requests) {
      ids.push_back(
          engine->Submit(request, [&](const RequestOutput& output) { said[output.id].Add(output); })
              .value());
      (void)engine->cache().EvictAtRandom(rng, 0.9);
      (void)engine->Step();
    }
    while (engine->HasWork()) {
      (void)engine->Step();
      engine->cache().CheckInvariant();
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const Said expected = RunAlone(model, requests[i]);
      EXPECT_EQ(said[ids[i]].tokens, expected.tokens) << "request " << i;
      EXPECT_EQ(said[ids[i]].logprobs, expected.logprobs) << "request " << i;
      loaded += said[ids[i]].usage.external_blocks;
    }
    engine->TakeEvents();
    ASSERT_EQ(engine->cache().AvailableBlocks(), 96);
  }
  EXPECT_GT(loaded, 10);
}

// An engine whose arena was filled by other kernels finds nothing in it that it may call exact.
TEST_P(Exactness, EveryKernelSetHasItsOwnNumericsTag) {
  std::map<std::string, Isa> tags;
  for (const Isa isa : SupportedIsas()) {
    if (ComputeSupported(isa, GetParam().compute)) {
      const auto [it, inserted] = tags.emplace(Load(isa, 1, 16).numerics_tag(), isa);
      EXPECT_TRUE(inserted) << IsaName(isa) << " has the tag of " << IsaName(it->second);
    }
  }
  EXPECT_EQ(Load(Isa::kScalar, 1, 16).numerics_tag(), Load(Isa::kScalar, 2, 64).numerics_tag());
}

}  // namespace
}  // namespace kvik::engine
