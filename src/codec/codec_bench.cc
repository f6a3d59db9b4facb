// SPDX-License-Identifier: Apache-2.0
// Speed of whole pipelines and of their stages, a core, in GB/s of bf16 input: encode and decode,
// from the second-level cache and from memory, beside memcpy, zstd and lz4 in the same run.
//
// Verifies before it times: the fastest ISA writes the bytes and reads the values of the scalar
// one. All cases of a round run one after the other and the median of rounds is shown, so that a
// noisy machine disturbs all of them alike. A set is split into frames of kFrameTokens.
#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/isa.h"
#include "base/testing/bench_clock.h"
#include "base/testing/bench_options.h"
#include "base/testing/median.h"
#include "base/thread_pool.h"
#include "codec/frame.h"
#include "codec/registry.h"
#include "codec/stage.h"
#include "codec/testing/made_kv.h"
#include "codec/testing/made_side_info.h"

namespace kvik::codec {
namespace {

using kvik::testing::BenchClock;
using kvik::testing::BenchOptions;
using kvik::testing::Median;
using kvik::testing::OrDie;

constexpr int32_t kHeads = 4;
constexpr int32_t kDim = 128;
constexpr int32_t kFrameTokens = 256;  // what a frame of a stored chunk has (docs/connector.md)
constexpr size_t kFrameBytes =
    size_t{2} * kHeads * kDim * kFrameTokens * sizeof(Bf16);  // keys and values: 512 KiB
constexpr size_t kCachedJobs = 16;

// What a pipeline owes, on one thread from memory unless said otherwise.
struct Goal {
  enum class Of {
    kGigabytes,     // GB/s
    kMemcpy,        // the share of memcpy's speed
    kSlowestStage,  // the share of the speed of the slowest stage alone; from the cache
    kOneThread,     // how many times as fast two threads are; from the cache
  };
  const char* way = "encode";
  double least = 0;
  Of of = Of::kGigabytes;
  bool avx512 = false;  // only where the CPU has it
};

struct Pipeline {
  std::string name;
  std::string text;
  std::vector<Goal> goals;
};

std::vector<Pipeline> Pipelines() {
  using enum Goal::Of;
  const Goal encode_twice = {"encode", 1.8, kOneThread};
  const Goal decode_twice = {"decode", 1.8, kOneThread};
  return {
      {"packed 4 bits",
       "none -> uniform(levels=16,per=token,group=64) -> pack",
       {{"encode", 0.4, kMemcpy},
        {"decode", 0.6, kMemcpy},
        {"encode", 6, kGigabytes, true},
        {"decode", 12, kGigabytes, true},
        encode_twice,
        decode_twice}},
      {"kivi-2",
       "k:none|v:none -> "
       "k:uniform(levels=4,per=channel,group=32)|v:uniform(levels=4,per=token,group=32) -> pack",
       {}},
      {"hadamard ecsq rans",
       "hadamard -> ecsq(d=0.7) -> rans",
       {{"encode", 0.5, kSlowestStage},
        {"decode", 0.5, kSlowestStage},
        {"encode", 2.5, kGigabytes, true},
        {"decode", 3.5, kGigabytes, true},
        encode_twice,
        decode_twice}},
      {"prerope hadamard ecsq rans",
       "k:prerope+center+hadamard|v:center+hadamard -> ecsq(d=0.7) -> rans",
       {}},
      {"klt ecsq rans", "center+klt -> ecsq(d=0.7) -> rans", {}},
      {"hadamard 4 bits rans", "hadamard -> uniform(levels=16,per=token,group=64) -> rans", {}},
      {"cachegen",
       "delta -> uniform(levels=thirds(32,16,12),mode=symmetric,per=token) -> rans",
       {}},
      {"lossless",
       "none -> none -> rans",
       {{"decode", 2, kGigabytes},
        {"encode", 2, kGigabytes, true},
        {"decode", 3, kGigabytes, true},
        encode_twice,
        decode_twice}},
      {"packed 4 bits, zstd", "none -> uniform(levels=16,per=token,group=64) -> zstd", {}},
      {"packed 4 bits, lz4", "none -> uniform(levels=16,per=token,group=64) -> lz4", {}},
  };
}

// The raw KV of a set: its frames one after the other.
struct Set {
  std::string name;
  std::vector<std::unique_ptr<testing::MadeRows>> made;  // a few, which frames share the values of
  std::vector<Bf16> values;  // [frames][2: keys, values][heads, tokens, dim]
  size_t frames = 0;

  [[nodiscard]] KvRows Rows(size_t frame) const {
    KvRows rows;
    rows.layer = static_cast<int32_t>(frame % 4);
    rows.first_token = static_cast<int32_t>(frame / 4) * kFrameTokens % 32768;
    rows.num_tokens = kFrameTokens;
    rows.head_stride = size_t{kFrameTokens} * kDim;
    rows.keys = values.data() + frame * kFrameBytes / sizeof(Bf16);
    rows.values = rows.keys + kFrameBytes / sizeof(Bf16) / 2;
    return rows;
  }
  [[nodiscard]] double gigabytes() const {
    return static_cast<double>(frames * kFrameBytes) * 1e-9;
  }
};

Set MakeSet(const std::string& name, const ModelFacts& model, size_t frames) {
  Set set;
  set.name = name;
  set.frames = frames;
  set.values.resize(frames * kFrameBytes / sizeof(Bf16));
  constexpr size_t kDistinct = 4;
  for (size_t i = 0; i < kDistinct; ++i) {
    set.made.push_back(std::make_unique<testing::MadeRows>(model, static_cast<int32_t>(i), 0,
                                                           kFrameTokens, 10 + i, false));
  }
  for (size_t frame = 0; frame < frames; ++frame) {
    const testing::MadeRows& made = *set.made[frame % kDistinct];
    Bf16* const to = set.values.data() + frame * kFrameBytes / sizeof(Bf16);
    std::copy(made.keys.begin(), made.keys.end(), to);
    std::copy(made.values.begin(), made.values.end(), to + made.keys.size());
  }
  return set;
}

// The spreads of channels and the tables of symbols that `pipeline` has on the set's first frames,
// which stand for calibration: a static model that fits.
void Measure(const PipelineSpec& pipeline, const ModelFacts& model, const Set& set, Isa isa,
             SideInfo& side_info) {
  const auto check = [](const Result<void>& result) {
    KVIK_CHECK(result.has_value(), "%s", result.error().message.c_str());
  };
  std::vector<int32_t> heads(kHeads);
  std::vector<int32_t> positions(kFrameTokens);
  std::iota(heads.begin(), heads.end(), 0);
  std::iota(positions.begin(), positions.end(), 0);
  for (const kv::KvPart which : {kv::KvPart::kKey, kv::KvPart::kValue}) {
    const PartSpec& part = pipeline.part(which);
    StageSite site;
    site.model = &model;
    site.side_info = &side_info;
    site.part = which;
    site.channels = kDim;
    TileContext context;
    context.model = &model;
    context.isa = isa;
    context.part = which;
    context.heads = heads;
    context.positions = positions;
    std::vector<Tile> tiles(4);
    std::vector<std::byte> bytes;
    ByteWriter side(bytes);
    for (int32_t layer = 0; layer < 4; ++layer) {
      Tile& tile = tiles[static_cast<size_t>(layer)];
      const testing::MadeRows& made = *set.made[static_cast<size_t>(layer)];
      const auto& values = which == kv::KvPart::kKey ? made.keys : made.values;
      tile.Resize(kHeads, kFrameTokens, kDim);
      for (size_t i = 0; i < values.size(); ++i) {
        tile.values[i] = ToFloat(values[i]);
      }
    }
    for (size_t i = 0; i < part.transforms.size(); ++i) {
      site.side_key = SideKey(part, which, i);
      const StageSpec& stage = part.transforms[i];
      const auto transform = OrDie(stage.module->make_transform(stage.args, site));
      for (int32_t layer = 0; layer < 4; ++layer) {
        context.layer = layer;
        check(transform->Forward(context, tiles[static_cast<size_t>(layer)], side));
      }
      if (tiles[0].rows != kFrameTokens) {
        return;
      }
    }
    std::vector<float> sigmas;
    for (const Tile& tile : tiles) {
      for (int32_t head = 0; head < kHeads; ++head) {
        for (int32_t c = 0; c < kDim; ++c) {
          double squares = 0;
          for (int32_t t = 0; t < kFrameTokens; ++t) {
            const double x = tile.Head(head)[static_cast<size_t>(t * kDim + c)];
            squares += x * x;
          }
          sigmas.push_back(static_cast<float>(std::sqrt(squares / kFrameTokens)));
        }
      }
    }
    site.side_key = SideKey(part, which, part.transforms.size());
    check(side_info.Add(site.side_key + "/sigma", {4, kHeads, kDim}, sigmas));
    const auto quantizer = OrDie(part.quantizer.module->make_quantizer(part.quantizer.args, site));
    std::map<int32_t, std::vector<float>> counts;
    size_t alphabet = 0;
    for (int32_t layer = 0; layer < 4; ++layer) {
      SymbolPlanes planes;
      context.layer = layer;
      check(quantizer->Quantize(context, tiles[static_cast<size_t>(layer)], planes, side));
      for (const SymbolPlane& plane : planes.used()) {
        alphabet = std::max(alphabet, static_cast<size_t>(plane.alphabet));
        std::vector<float>& table = counts[plane.context];
        table.resize(256);
        for (const uint8_t symbol : plane.symbols) {
          table[symbol] += 1;
        }
      }
    }
    const int32_t contexts = counts.empty() ? 0 : counts.rbegin()->first + 1;
    std::vector<float> tables(static_cast<size_t>(contexts) * alphabet);
    for (const auto& [index, table] : counts) {
      for (size_t symbol = 0; symbol < alphabet; ++symbol) {
        tables[static_cast<size_t>(index) * alphabet + symbol] = std::min(table[symbol], 60000.0F);
      }
    }
    if (!tables.empty()) {
      check(side_info.Add(TablesKey(part, which), {contexts, static_cast<int32_t>(alphabet)},
                          tables));
    }
  }
}

// One case: what a round does, and the GB/s of every round.
struct Case {
  std::string name;
  std::string set;
  int threads = 1;
  double gigabytes = 0;
  std::function<void()> run;
  std::vector<double> speeds;

  [[nodiscard]] double speed() const { return Median(speeds); }
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options),
        clock_(options.cpu_time),
        isa_(OrDie(SelectIsa())),
        model_(testing::MadeModel(4, kHeads, kDim)),
        pool_(options.threads) {}

  int Run() {
    std::printf("%s, bf16 GB/s of input; frames of %d tokens, %d heads of %d channels\n",
                IsaName(isa_), kFrameTokens, kHeads, kDim);
    sets_.push_back(std::make_unique<Set>(MakeSet("L2", model_, 1)));
    sets_.push_back(std::make_unique<Set>(MakeSet("DRAM", model_, options_.quick ? 256 : 1024)));
    AddLibraries();
    for (const Pipeline& pipeline : Pipelines()) {
      if (options_.only.empty() || pipeline.name.find(options_.only) != std::string::npos) {
        AddPipeline(pipeline);
      }
    }
    const int rounds = options_.quick ? 3 : 9;
    for (int round = 0; round < rounds; ++round) {
      for (Case& c : cases_) {
        Time(c);
      }
    }
    return Report();
  }

 private:
  void Time(Case& c) {
    // Long enough for the clock: the small set many times over. Threads sleep between cases.
    const auto repeats = static_cast<size_t>(std::max(1.0, 0.05 / c.gigabytes));
    if (c.threads > 1) {
      c.run();
    }
    const double start = clock_.NowSeconds();
    for (size_t i = 0; i < repeats; ++i) {
      c.run();
    }
    c.speeds.push_back(c.gigabytes * static_cast<double>(repeats) / (clock_.NowSeconds() - start));
  }

  void Add(const std::string& name, const Set& set, int threads, double gigabytes,
           std::function<void()> run) {
    cases_.push_back({name, set.name, threads, gigabytes, std::move(run), {}});
  }

  void AddLibraries() {
    for (const auto& set_owner : sets_) {
      const Set* const set = set_owner.get();
      auto copy = std::make_shared<std::vector<Bf16>>(set->values.size());
      for (int threads = 1; threads <= options_.threads; ++threads) {
        Add("memcpy", *set, threads, set->gigabytes(), [this, set, copy, threads] {
          const auto jobs = static_cast<size_t>(threads);
          const size_t share = set->values.size() / jobs;
          ForEach(jobs, threads, [&](size_t job, size_t /*thread*/) {
            std::memcpy(copy->data() + job * share, set->values.data() + job * share,
                        share * sizeof(Bf16));
          });
        });
      }
      // Libraries on raw bf16, one call a frame; at most 16 MB, they are slow.
      const size_t frames = std::min<size_t>(set->frames, 64);
      auto zstd = std::make_shared<std::vector<std::vector<char>>>(frames);
      auto lz4 = std::make_shared<std::vector<std::vector<char>>>(frames);
      const auto compress = [set, zstd, lz4, frames](bool use_zstd) {
        for (size_t i = 0; i < frames; ++i) {
          std::vector<char>& out = use_zstd ? (*zstd)[i] : (*lz4)[i];
          out.resize(use_zstd ? ZSTD_compressBound(kFrameBytes)
                              : static_cast<size_t>(LZ4_compressBound(kFrameBytes)));
          const size_t n =
              use_zstd ? ZSTD_compress(out.data(), out.size(), set->Rows(i).keys, kFrameBytes, 1)
                       : static_cast<size_t>(LZ4_compress_default(
                             reinterpret_cast<const char*>(set->Rows(i).keys), out.data(),
                             kFrameBytes, static_cast<int>(out.size())));
          out.resize(n);
        }
      };
      compress(true);
      compress(false);
      const double share = static_cast<double>(frames) / static_cast<double>(set->frames);
      for (const bool use_zstd : {true, false}) {
        const std::string name = use_zstd ? "zstd -1 on bf16" : "lz4 on bf16";
        Add(name + ": encode", *set, 1, share * set->gigabytes(),
            [compress, use_zstd] { compress(use_zstd); });
        Add(name + ": decode", *set, 1, share * set->gigabytes(),
            [zstd, lz4, frames, copy, use_zstd] {
              for (size_t i = 0; i < frames; ++i) {
                char* const to = reinterpret_cast<char*>(copy->data()) + i * kFrameBytes;
                if (use_zstd) {
                  ZSTD_decompress(to, kFrameBytes, (*zstd)[i].data(), (*zstd)[i].size());
                } else {
                  LZ4_decompress_safe((*lz4)[i].data(), to, static_cast<int>((*lz4)[i].size()),
                                      kFrameBytes);
                }
              }
            });
        size_t bytes = 0;
        for (const std::vector<char>& out : use_zstd ? *zstd : *lz4) {
          bytes += out.size();
        }
        bits_[name] = 16.0 * static_cast<double>(bytes) / static_cast<double>(frames * kFrameBytes);
      }
    }
  }

  void AddPipeline(const Pipeline& pipeline) {
    const PipelineSpec spec = OrDie(PipelineSpec::Parse(pipeline.text));
    const auto side = testing::MadeSideInfo(spec, model_, 3);
    Measure(spec, model_, *sets_[0], isa_, *side);
    const std::shared_ptr<FrameCodec> codec = OrDie(FrameCodec::Create(spec, model_, side, isa_));
    const auto scalar = OrDie(FrameCodec::Create(spec, model_, side, Isa::kScalar));
    for (const auto& set_owner : sets_) {
      const Set* const set = set_owner.get();
      auto frames = std::make_shared<std::vector<std::vector<std::byte>>>(set->frames);
      Workspace workspace;
      size_t bytes = 0;
      for (size_t i = 0; i < set->frames; ++i) {
        OrDie(codec->Encode(set->Rows(i), FrameParts::kBoth, workspace, (*frames)[i]));
        bytes += (*frames)[i].size();
        if (i < 4) {
          Verify(*codec, *scalar, set->Rows(i), (*frames)[i], pipeline.name);
        }
      }
      bits_[pipeline.name] =
          16.0 * static_cast<double>(bytes) / static_cast<double>(set->frames * kFrameBytes);
      for (int threads = 1; threads <= (set->frames == 1 ? options_.threads : 1); ++threads) {
        // From the cache every thread has a frame of its own, many times: what it takes to start
        // threads is not the codec's.
        const size_t jobs =
            set->frames == 1 ? kCachedJobs * static_cast<size_t>(threads) : set->frames;
        auto scratch = std::make_shared<std::vector<Scratch>>(static_cast<size_t>(threads));
        const double gigabytes = static_cast<double>(jobs * kFrameBytes) * 1e-9;
        Add(pipeline.name + ": encode", *set, threads, gigabytes,
            [this, codec, set, scratch, jobs, threads] {
              ForEach(jobs, threads, [&](size_t job, size_t thread) {
                Scratch& s = (*scratch)[thread];
                s.frame.clear();
                OrDie(codec->Encode(set->Rows(job % set->frames), FrameParts::kBoth, s.workspace,
                                    s.frame));
              });
            });
        Add(pipeline.name + ": decode", *set, threads, gigabytes,
            [this, codec, frames, set, scratch, jobs, threads] {
              ForEach(jobs, threads, [&](size_t job, size_t thread) {
                Scratch& s = (*scratch)[thread];
                // To memory, when from memory.
                if (s.values.size_bytes() == 0) {
                  s.values = OrDie(AlignedBuffer::Create(set->values.size() * sizeof(Bf16)));
                }
                Bf16* const to =
                    s.values.As<Bf16>().data() + (job % set->frames) * kFrameBytes / sizeof(Bf16);
                OrDie(codec->Decode((*frames)[job % set->frames], s.workspace,
                                    {kFrameTokens, kHeads, size_t{kFrameTokens} * kDim, to,
                                     to + kFrameBytes / sizeof(Bf16) / 2, set->frames > 1}));
              });
            });
      }
    }
    AddStages(pipeline, spec, *side);
    pipelines_.push_back(pipeline);
  }

  // Every stage of the values' part alone, on the tile that reaches it, from the cache.
  void AddStages(const Pipeline& pipeline, const PipelineSpec& spec, const SideInfo& side_info) {
    const PartSpec& part = spec.value;
    const KvRows rows = sets_[0]->Rows(0);
    auto tile = std::make_shared<Tile>();
    tile->Resize(kHeads, kFrameTokens, kDim);
    for (size_t i = 0; i < tile->size(); ++i) {
      tile->values[i] = ToFloat(rows.values[i]);
    }
    auto owner = std::make_shared<StageOwner>();
    for (int32_t t = 0; t < kFrameTokens; ++t) {
      owner->positions.push_back(t);
    }
    for (int32_t head = 0; head < kHeads; ++head) {
      owner->heads.push_back(head);
    }
    owner->side_info = std::make_shared<SideInfo>(side_info);
    StageSite site;
    site.model = &model_;
    site.side_info = owner->side_info.get();
    site.part = kv::KvPart::kValue;
    site.channels = kDim;
    TileContext context;
    context.model = &model_;
    context.isa = isa_;
    context.part = kv::KvPart::kValue;
    context.heads = owner->heads;
    context.positions = owner->positions;
    const double gigabytes = static_cast<double>(kFrameBytes) * 0.5e-9;
    const auto add = [&](const std::string& stage, const char* way, std::function<void()> run) {
      cases_.push_back({pipeline.name + ": " + stage + " alone, " + way,
                        "L2",
                        1,
                        gigabytes,
                        std::move(run),
                        {}});
      stages_[pipeline.name + ": " + way].push_back(cases_.size() - 1);
    };
    for (size_t i = 0; i < part.transforms.size(); ++i) {
      site.side_key = SideKey(part, kv::KvPart::kValue, i);
      std::shared_ptr<Transform> stage =
          OrDie(part.transforms[i].module->make_transform(part.transforms[i].args, site));
      auto work = std::make_shared<Tile>();
      const auto input = std::make_shared<Tile>(*tile);
      const std::string name = part.transforms[i].module->name;
      add(name, "encode", [owner, context, stage, input, work, this] {
        CopyTile(*input, *work);
        owner->bytes.clear();
        ByteWriter side(owner->bytes);
        Check(stage->Forward(context, *work, side));
      });
      owner->bytes.clear();
      ByteWriter side(owner->bytes);
      Check(stage->Forward(context, *tile, side));
      if (tile->rows != kFrameTokens) {
        return;  // what follows has other positions: whole pipelines say enough
      }
      const auto output = std::make_shared<Tile>(*tile);
      const auto side_bytes = std::make_shared<std::vector<std::byte>>(owner->bytes);
      add(name, "decode", [owner, context, stage, output, work, side_bytes, this] {
        CopyTile(*output, *work);
        ByteReader reader(*side_bytes);
        Check(stage->Inverse(context, *work, reader));
      });
    }
    site.channels = tile->channels;
    site.side_key = SideKey(part, kv::KvPart::kValue, part.transforms.size());
    std::shared_ptr<Quantizer> quantizer =
        OrDie(part.quantizer.module->make_quantizer(part.quantizer.args, site));
    auto planes = std::make_shared<SymbolPlanes>();
    add(part.quantizer.module->name, "encode", [owner, context, quantizer, tile, planes] {
      owner->bytes.clear();
      ByteWriter side(owner->bytes);
      planes->Clear();
      Check(quantizer->Quantize(context, *tile, *planes, side));
    });
    cases_.back().run();
    const auto side_bytes = std::make_shared<std::vector<std::byte>>(owner->bytes);
    auto output = std::make_shared<Tile>(*tile);
    auto symbols = std::make_shared<SymbolPlanes>(*planes);
    add(part.quantizer.module->name, "decode", [context, quantizer, symbols, output, side_bytes] {
      ByteReader reader(*side_bytes);
      SymbolPlanes layout;
      Check(quantizer->Layout(context, *output, reader, layout));
      Check(quantizer->Dequantize(context, *symbols, reader, *output));
    });
    site.side_key = TablesKey(part, kv::KvPart::kValue);
    std::shared_ptr<EntropyCoder> coder =
        OrDie(part.coder.module->make_coder(part.coder.args, site));
    auto coded = std::make_shared<std::vector<std::byte>>();
    add(part.coder.module->name, "encode", [context, coder, symbols, coded] {
      coded->clear();
      ByteWriter out(*coded);
      Check(coder->Encode(context, *symbols, out));
    });
    cases_.back().run();
    const auto bytes = std::make_shared<std::vector<std::byte>>(*coded);
    add(part.coder.module->name, "decode",
        [context, coder, symbols, bytes] { Check(coder->Decode(context, *bytes, *symbols)); });
  }

  struct Scratch {
    Workspace workspace;
    std::vector<std::byte> frame;
    AlignedBuffer values;
  };
  struct StageOwner {
    std::shared_ptr<SideInfo> side_info;
    std::vector<int32_t> heads;
    std::vector<int32_t> positions;
    std::vector<std::byte> bytes;
  };

  static void Check(const Result<void>& result) {
    KVIK_CHECK(result.has_value(), "%s", result.error().message.c_str());
  }

  void CopyTile(const Tile& from, Tile& to) const {
    to.Resize(from.heads, from.rows, from.channels);
    std::memcpy(to.values.data(), from.values.data(), from.size() * sizeof(float));
  }

  template <typename Fn>
  void ForEach(size_t jobs, int threads, Fn&& fn) {
    if (threads == 1) {
      for (size_t job = 0; job < jobs; ++job) {
        fn(job, size_t{0});
      }
      return;
    }
    pool_.ParallelFor(jobs, [&](size_t job, int thread) { fn(job, static_cast<size_t>(thread)); });
  }

  void Verify(const FrameCodec& codec, const FrameCodec& scalar, const KvRows& rows,
              const std::vector<std::byte>& frame, const std::string& name) const {
    Workspace workspace;
    std::vector<std::byte> expected;
    OrDie(scalar.Encode(rows, FrameParts::kBoth, workspace, expected));
    KVIK_CHECK(frame == expected, "%s: %s writes other bytes than scalar", name.c_str(),
               IsaName(isa_));
    testing::DecodedRows one(model_, rows);
    testing::DecodedRows other(model_, rows);
    OrDie(codec.Decode(frame, workspace, one.out));
    OrDie(scalar.Decode(frame, workspace, other.out));
    KVIK_CHECK(one.keys == other.keys && one.values == other.values,
               "%s: %s reads other values than scalar", name.c_str(), IsaName(isa_));
  }

  [[nodiscard]] double Speed(const std::string& name, const std::string& set, int threads) const {
    for (const Case& c : cases_) {
      if (c.name == name && c.set == set && c.threads == threads) {
        return c.speed();
      }
    }
    return 0;
  }

  // Prints whether a goal is met; 1 when it is not.
  [[nodiscard]] int Judge(const Pipeline& pipeline, const Goal& goal) const {
    if (goal.avx512 && isa_ != Isa::kAvx512 && isa_ != Isa::kAvx512Bf16) {
      return 0;
    }
    const std::string name = pipeline.name + ": " + goal.way;
    const bool cached = goal.of == Goal::Of::kSlowestStage || goal.of == Goal::Of::kOneThread;
    const double speed = Speed(name, cached ? "L2" : "DRAM", 1);
    double reached = speed;
    std::string of;
    switch (goal.of) {
      case Goal::Of::kGigabytes:
        of = " GB/s";
        break;
      case Goal::Of::kMemcpy:
        reached = speed / Speed("memcpy", "DRAM", 1);
        of = " of memcpy's speed";
        break;
      case Goal::Of::kSlowestStage: {
        const auto stages = stages_.find(name);
        if (stages == stages_.end()) {
          return 0;
        }
        double slowest = std::numeric_limits<double>::infinity();
        for (const size_t stage : stages->second) {
          slowest = std::min(slowest, cases_[stage].speed());
        }
        reached = speed / slowest;
        of = " of the slowest stage's speed";
        break;
      }
      case Goal::Of::kOneThread:
        reached = Speed(name, "L2", 2) / speed;
        of = " times one thread's speed";
        break;
    }
    if (reached == 0) {
      return 0;  // not measured: one thread was asked for
    }
    const bool met = reached >= goal.least;
    std::printf("%-20s %s: %5.2f%s, goal %.2f: %s\n", pipeline.name.c_str(), goal.way, reached,
                of.c_str(), goal.least, met ? "met" : "SHORT");
    return met ? 0 : 1;
  }

  int Report() const {
    std::printf("\n%-34s %6s %14s %14s %16s\n", "", "bits", "encode L2/DRAM", "decode L2/DRAM",
                "2 threads from L2");
    std::printf("%-34s %6s %6.2f /%6.2f", "memcpy", "", Speed("memcpy", "L2", 1),
                Speed("memcpy", "DRAM", 1));
    if (const double two = Speed("memcpy", "DRAM", 2); two > 0) {
      std::printf("%17s x%.2f from DRAM", "", two / Speed("memcpy", "DRAM", 1));
    }
    std::printf("\n");
    const auto line = [&](const std::string& name) {
      std::printf("%-34s %6.2f %6.2f /%6.2f %6.2f /%6.2f", name.c_str(), bits_.at(name),
                  Speed(name + ": encode", "L2", 1), Speed(name + ": encode", "DRAM", 1),
                  Speed(name + ": decode", "L2", 1), Speed(name + ": decode", "DRAM", 1));
      if (const double two = Speed(name + ": encode", "L2", 2); two > 0) {
        std::printf("  x%.2f  x%.2f", two / Speed(name + ": encode", "L2", 1),
                    Speed(name + ": decode", "L2", 2) / Speed(name + ": decode", "L2", 1));
      }
      std::printf("\n");
    };
    line("zstd -1 on bf16");
    line("lz4 on bf16");
    for (const Pipeline& pipeline : pipelines_) {
      line(pipeline.name);
      for (const char* way : {"encode", "decode"}) {
        std::printf("    %s, stages alone:", way);
        const auto stages = stages_.find(pipeline.name + ": " + way);
        for (size_t i = 0; stages != stages_.end() && i < stages->second.size(); ++i) {
          const Case& c = cases_[stages->second[i]];
          const std::string stage = c.name.substr(pipeline.name.size() + 2,
                                                  c.name.find(" alone") - pipeline.name.size() - 2);
          std::printf(" %s %.2f", stage.c_str(), c.speed());
        }
        std::printf("\n");
      }
    }
    std::printf("\n");
    int missed = 0;
    for (const Pipeline& pipeline : pipelines_) {
      for (const Goal& goal : pipeline.goals) {
        missed += Judge(pipeline, goal);
      }
    }
    std::printf("%s\n", missed == 0 ? "all goals met" : "some goals are SHORT");
    return missed == 0 ? 0 : 1;
  }

  BenchOptions options_;
  BenchClock clock_;
  Isa isa_;
  ModelFacts model_;
  ThreadPool pool_;
  std::vector<std::unique_ptr<Set>> sets_;
  std::vector<Case> cases_;
  std::vector<Pipeline> pipelines_;
  std::map<std::string, double> bits_;
  std::map<std::string, std::vector<size_t>> stages_;
};

}  // namespace
}  // namespace kvik::codec

int main(int argc, char** argv) {
  const auto options = kvik::testing::ParseBenchOptions(argc, argv, false);
  if (!options) {
    return 2;
  }
  return kvik::codec::Bench(*options).Run();
}
