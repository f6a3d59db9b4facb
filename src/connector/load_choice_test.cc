// SPDX-License-Identifier: Apache-2.0
// What a request is told of why its KV was loaded or computed: every amount in the text is counted
// again here, block by block and token by token.
#include "connector/load_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "codec/testing/made_kv.h"
#include "connector/testing/toy_engine.h"

namespace kvik::connector {
namespace {

using ::testing::HasSubstr;
using testing::kToyNumerics;
using testing::ToyGeometry;
using testing::ToyKeys;

constexpr int32_t kBlockTokens = 16;
constexpr int64_t kNowUs = 1'000'000;

codec::Profile LossyProfile(const std::string& name, int levels, double ratio, double q) {
  codec::Profile profile;
  profile.name = name;
  profile.pipeline =
      "hadamard -> uniform(levels=" + std::to_string(levels) + ",per=token,group=128) -> pack";
  profile.ratios = {{128, ratio}, {6144, ratio}};
  codec::QualityRecord record;
  record.workload = codec::kUnifiedWorkload;
  record.q = {q, q, q};
  profile.quality.push_back(record);
  return profile;
}

std::shared_ptr<const ProfileSet> MakeProfiles() {
  const kv::KvGeometry geometry = ToyGeometry();
  auto library = std::make_shared<codec::ProfileLibrary>();
  library->model =
      codec::testing::MadeModel(geometry.num_layers, geometry.num_kv_heads, geometry.head_dim);
  library->side_info = std::make_shared<codec::SideInfo>();
  library->profiles = {LossyProfile("coarse", 4, 6, 0.955), LossyProfile("fine", 16, 3, 0.985)};
  KVIK_CHECK(codec::CompleteProfiles(*library).has_value());
  auto profiles = ProfileSet::Create(library->model, library, 64, Isa::kScalar);
  KVIK_CHECK(profiles.has_value(), "%s", profiles.error().message.c_str());
  return std::move(profiles).value();
}

const std::shared_ptr<const ProfileSet>& Profiles() {
  static const std::shared_ptr<const ProfileSet> profiles = MakeProfiles();
  return profiles;
}

control::MachineSpeeds Speeds(const ProfileSet& profiles) {
  control::MachineSpeeds speeds;
  for (const CodecProfile& profile : profiles.all()) {
    if (&profile != &profiles.raw()) {
      speeds.Set(control::UniformSpeeds(profile.hash, 4e8, 7e8));
    }
  }
  return speeds;
}

// It has a name and speeds; what it found the tests make up.
class NamedSource final : public ObjectSource {
 public:
  NamedSource(std::string name, control::MachineSpeeds speeds)
      : name_(std::move(name)), speeds_(std::move(speeds)) {}
  std::string name() const override { return name_; }
  void Lookup(const transfer::LookupRequest& /*request*/, int64_t /*deadline_us*/,
              Found done) override {
    done(std::vector<transfer::FoundObject>());
  }
  std::shared_ptr<transfer::CallHandle> Get(const kv::ObjectKey& /*key*/, int32_t /*num_blocks*/,
                                            int64_t /*deadline_us*/,
                                            std::shared_ptr<transfer::GetSink> /*sink*/,
                                            uint8_t /*priority*/) override {
    return nullptr;
  }
  void Discard(const kv::ObjectKey& /*key*/) override {}
  std::optional<control::MachineSpeeds> sender_speeds() const override { return speeds_; }

 private:
  const std::string name_;
  const control::MachineSpeeds speeds_;
};

// A request, what sources said of it, and the choice.
struct Scene {
  explicit Scene(int num_sources) {
    profiles = Profiles();
    for (int i = 0; i < num_sources; ++i) {
      SourceState::Setup setup;
      setup.source = std::make_shared<NamedSource>("source" + std::to_string(i), Speeds(*profiles));
      setup.controller.raw_bytes_per_token = raw_bytes_per_block() / kBlockTokens;
      setup.controller.frames_per_chunk = ToyGeometry().num_layers;
      setup.controller.chunk_tokens = profiles->raw().chunk_tokens;
      states.push_back(std::make_unique<SourceState>(setup, profiles, Speeds(*profiles)));
      sources.push_back(states.back().get());
    }
    rules.block_size_tokens = kBlockTokens;
    rules.raw_bytes_per_block = raw_bytes_per_block();
    rules.compute = {.token_us = 100};
    rules.frames_per_chunk = ToyGeometry().num_layers;
    facts.request = 7;
    facts.numerics = kToyNumerics;
  }
  static double raw_bytes_per_block() {
    return static_cast<double>(ToyGeometry().bytes_per_block());
  }
  void Ask(int32_t blocks, int32_t tail_tokens) {
    std::vector<uint64_t> choices(static_cast<size_t>(blocks));
    for (size_t i = 0; i < choices.size(); ++i) {
      choices[i] = i;
    }
    facts.keys = ToyKeys(choices);
    facts.num_tokens = blocks * kBlockTokens + tail_tokens;
    facts.num_loadable = tail_tokens > 0 ? blocks : blocks - 1;
  }
  // Of which nothing is here.
  void AskForAll(int32_t blocks, int32_t tail_tokens) {
    Ask(blocks, tail_tokens);
    missing = {{0, blocks}};
  }
  void SetSpeed(size_t source, double bytes_per_s) const {
    control::Goodput& goodput = sources[source]->goodput;
    for (int64_t i = 0; i < 20; ++i) {
      goodput.Add(static_cast<uint64_t>(bytes_per_s / 10), 1e5, kNowUs);
    }
  }
  void Find(size_t source, const kv::BlockRange& range, const CodecProfile* profile,
            uint64_t size_bytes, int64_t ready_in_us = 0) {
    transfer::FoundObject object;
    object.hash_index = static_cast<uint32_t>(range.end_block() - 1);
    object.info.key = {{facts.keys[object.hash_index], kToyNumerics},
                       profile == nullptr ? kAnyProfile : profile->hash};
    object.info.num_blocks = range.num_blocks;
    object.info.size_bytes = size_bytes;
    object.info.ready_in_us = ready_in_us;
    object.info.tier = profile == nullptr ? kv::ObjectTier::kLive : kv::ObjectTier::kRemote;
    object.info.quality = profile == nullptr || !profile->lossy
                              ? kv::BlockQuality{}
                              : kv::BlockQuality{kv::Fidelity::kLossy, profile->q};
    KVIK_CHECK(Plausible(facts, *profiles, rules, object));
    found.push_back({source, object});
  }
  LoadChoice Choose() {
    Rng rng(3);
    return ChooseLoads(facts, *profiles, rules, found, missing, sources, kNowUs, rng);
  }

  std::shared_ptr<const ProfileSet> profiles;
  std::vector<std::unique_ptr<SourceState>> states;
  std::vector<SourceState*> sources;
  LoadRules rules;
  LoadFacts facts;
  std::vector<FoundAt> found;
  std::vector<kv::BlockRange> missing;
};

// The number behind `before`, and the rest of the text behind it.
double Number(std::string& text, const std::string& before) {
  const size_t at = text.find(before);
  if (at == std::string::npos) {
    ADD_FAILURE() << "no \"" << before << "\" in: " << text;
    return -1;
  }
  text = text.substr(at + before.size());
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  EXPECT_NE(end, text.c_str()) << "no number behind \"" << before << "\": " << text;
  text = end;
  return value;
}

// What is written with so many digits behind the point.
void ExpectPrinted(double printed, double value, int digits, const char* what) {
  const double unit = std::pow(10.0, -digits);
  EXPECT_NEAR(printed, value, 0.5001 * unit + 1e-9 * std::abs(value)) << what;
}

// Counts what the text says.
class Recount {
 public:
  Recount(const Scene& scene, const LoadChoice& choice) : scene_(scene) {
    for (const LoadCandidate& load : choice.loads) {
      for (int32_t block = load.wanted.first_block; block < load.wanted.end_block(); ++block) {
        EXPECT_TRUE(loaded_.insert(block).second) << "block " << block << " is loaded twice";
      }
      wire_bytes_ += load.wire_bytes;
      wire_us_ += load.wire_bytes * scene.sources[load.source]->goodput.us_per_byte();
      decode_us_ += load.decode_us;
      ready_us_ = std::max(ready_us_, load.ready_in_us);
    }
    if (!choice.loads.empty()) {
      const LoadCandidate& front = choice.loads.front();
      last_fill_us_ =
          std::min(front.wire_bytes * scene.sources[front.source]->goodput.us_per_byte(),
                   front.decode_us) /
          scene.rules.frames_per_chunk;
      meet_token_ = int64_t{front.wanted.first_block} * kBlockTokens;
    }
    const std::set<int32_t> missing = Blocks(scene.missing);
    for (int64_t token = 0; token < scene.facts.num_tokens; ++token) {
      const auto block = static_cast<int32_t>(token / kBlockTokens);
      const bool tail = block >= scene.facts.num_loadable;
      if (!tail && !missing.contains(block)) {
        continue;
      }
      const double us = TokenUs(token);
      all_us_ += us;
      if (tail || !loaded_.contains(block)) {
        (token < meet_token_ ? front_us_ : behind_us_) += us;
      }
    }
  }
  static std::set<int32_t> Blocks(const std::vector<kv::BlockRange>& ranges) {
    std::set<int32_t> blocks;
    for (const kv::BlockRange& range : ranges) {
      for (int32_t block = range.first_block; block < range.end_block(); ++block) {
        blocks.insert(block);
      }
    }
    return blocks;
  }
  [[nodiscard]] double tokens() const { return static_cast<double>(loaded_.size()) * kBlockTokens; }
  [[nodiscard]] double wire_bytes() const { return wire_bytes_; }
  [[nodiscard]] double all_us() const { return all_us_; }
  [[nodiscard]] double load_us() const {
    return loaded_.empty() ? 0
                           : std::max(std::max(wire_us_, decode_us_) + last_fill_us_, ready_us_);
  }
  // The engine has compute_share of its speed as long as chunks are decoded beside it.
  [[nodiscard]] double front_us() const {
    if (loaded_.empty()) {
      return all_us_;
    }
    const double share = scene_.rules.compute_share;
    const double beside = load_us() * share;
    return front_us_ <= beside ? front_us_ / share : load_us() + (front_us_ - beside);
  }
  [[nodiscard]] double expected_us() const {
    return loaded_.empty() ? all_us_ : std::max(load_us(), front_us()) + behind_us_;
  }

 private:
  [[nodiscard]] double TokenUs(int64_t token) const {
    const kv::CostModel& cost = scene_.rules.compute;
    return scene_.rules.compute_factor *
           ((cost.step_us + cost.segment_us) / scene_.rules.step_tokens + cost.token_us +
            cost.square_us * (2.0 * static_cast<double>(token) + 1));
  }

  const Scene& scene_;
  std::set<int32_t> loaded_;
  double wire_bytes_ = 0;
  double wire_us_ = 0;
  double decode_us_ = 0;
  double ready_us_ = 0;
  double last_fill_us_ = 0;
  int64_t meet_token_ = 0;
  double all_us_ = 0;
  double front_us_ = 0;
  double behind_us_ = 0;
};

// Blocks that may come from a source, which its controller is asked about: of live KV all that
// lack, of stored objects those of the profile that covers the most.
int32_t OfferedBlocks(const Scene& scene, size_t source) {
  const std::set<int32_t> missing = Recount::Blocks(scene.missing);
  std::set<int32_t> live;
  std::map<uint64_t, std::set<int32_t>> stored;
  for (const FoundAt& at : scene.found) {
    const kv::ObjectInfo& info = at.found.info;
    if (at.source != source) {
      continue;
    }
    const auto last = static_cast<int32_t>(at.found.hash_index);
    std::set<int32_t> run;
    std::set<int32_t> longest;  // of those that lie together
    for (int32_t block = last - info.num_blocks + 1; block <= last; ++block) {
      if (!missing.contains(block)) {
        run.clear();
        continue;
      }
      run.insert(block);
      if (info.key.profile_hash == kAnyProfile) {
        live.insert(block);
      }
      if (run.size() >= longest.size()) {
        longest = run;
      }
    }
    if (info.key.profile_hash != kAnyProfile && scene.facts.quality.Accepts(info.quality)) {
      stored[info.key.profile_hash].insert(longest.begin(), longest.end());
    }
  }
  size_t most = live.size();
  if (live.empty()) {
    for (const auto& [profile, blocks] : stored) {
      most = std::max(most, blocks.size());
    }
  }
  return static_cast<int32_t>(most);
}

void CheckDecision(const Scene& scene, const SourceDecision& decided, std::string text) {
  const SourceState& source = *scene.sources[decided.source];
  const control::Controller& controller = *source.Existing(decided.live, decided.generation);
  const control::DecisionRecord& record = *controller.ring().Find(decided.decision.id);
  const control::ArmTable& table = controller.table();
  const int32_t blocks = OfferedBlocks(scene, decided.source);
  const double raw_bytes = blocks * Scene::raw_bytes_per_block();
  control::Question question = record.question;
  EXPECT_EQ(question.tokens, int64_t{blocks} * kBlockTokens);
  question.tokens = int64_t{blocks} * kBlockTokens;
  question.raw_bytes = raw_bytes;
  question.us_per_byte = source.goodput.us_per_byte();
  ASSERT_EQ(text.find(table.arm(decided.decision.arm).name + ": "), 0U) << text;
  std::string rest = text;
  ExpectPrinted(Number(rest, ": "), controller.ExpectedUs(decided.decision.arm, question) / 1e3, 1,
                "time of the profile");
  ExpectPrinted(Number(rest, "ms expected for "), raw_bytes / 1e6, 2, "size of the KV");
  ExpectPrinted(Number(rest, "MB at "), source.goodput.bytes_per_s() / 1e6, 1, "speed of the link");
  int considered = 0;
  for (int32_t arm = 0; arm < static_cast<int32_t>(table.arms().size()); ++arm) {
    const bool may = (question.available & control::ArmBit(arm)) != 0 &&
                     scene.facts.quality.Accepts(table.Quality(arm, question.workload));
    considered += may ? 1 : 0;
    const std::string item = "; " + table.arm(arm).name + " ";
    if (text.find(item) != std::string::npos) {
      EXPECT_TRUE(may) << "what may not be used is compared with: " << text;
      std::string at = text;
      ExpectPrinted(Number(at, item), controller.ExpectedUs(arm, question) / 1e3, 1,
                    "time of another profile");
    }
  }
  if (decided.decision.choice == control::Choice::kFastest) {
    EXPECT_EQ(Number(rest, "the fastest of "), considered);
  }
  if (scene.facts.slo_end_us != 0) {
    std::string at = text;
    ExpectPrinted(Number(at, "ms of "), static_cast<double>(scene.facts.slo_end_us - kNowUs) / 1e3,
                  1, "budget");
  }
}

void CheckWhy(Scene& scene, const LoadChoice& choice) {
  const std::string why = WhyText(choice, scene.rules, scene.sources);
  SCOPED_TRACE(why);
  const Recount count(scene, choice);
  std::string rest = why;
  EXPECT_EQ(Number(rest, "loads "), count.tokens());
  EXPECT_EQ(Number(rest, "tokens; "), static_cast<double>(choice.loads.size()));
  EXPECT_EQ(Number(rest, " of "), static_cast<double>(choice.plan.encoding.size()));
  ExpectPrinted(Number(rest, "chunks loaded ("), count.wire_bytes() / 1e6, 2, "bytes");
  ExpectPrinted(Number(rest, "MB): "), count.expected_us() / 1e3, 1, "expected");
  ExpectPrinted(Number(rest, "expected, load "), count.load_us() / 1e3, 1, "load");
  ExpectPrinted(Number(rest, "beside computing "), count.front_us() / 1e3, 1, "front");
  const double all_loaded = Number(rest, "all loaded ");
  ExpectPrinted(Number(rest, "all computed "), count.all_us() / 1e3, 1, "all computed");
  EXPECT_EQ(rest.find("; not in time") != std::string::npos,
            scene.facts.slo_end_us != 0 &&
                count.expected_us() > static_cast<double>(scene.facts.slo_end_us - kNowUs));
  if (scene.rules.promised_by.has_value()) {
    EXPECT_EQ(Number(rest, "what a peer has counts "), scene.rules.promised_compute_weight);
  }
  size_t at = 0;
  for (const SourceDecision& decided : choice.decisions) {
    const std::string name = "; " + scene.sources[decided.source]->report.name + ": ";
    at = why.find(name, at);
    ASSERT_NE(at, std::string::npos);
    at += name.size();
    std::string text = why.substr(at);
    CheckDecision(scene, decided, text.substr(0, text.find("; source")));
  }

  // Were computing a million times as slow, everything would be loaded.
  const LoadRules rules = scene.rules;
  scene.rules.compute_factor *= 1e6;
  const LoadChoice all = scene.Choose();
  scene.rules = rules;
  bool same = true;  // the controllers may explore another profile for it
  for (size_t i = 0; i < std::min(all.decisions.size(), choice.decisions.size()); ++i) {
    same = same && all.decisions[i].decision.arm == choice.decisions[i].decision.arm;
  }
  if (same) {
    ExpectPrinted(all_loaded, Recount(scene, all).expected_us() / 1e3, 1, "all loaded");
  }
}

// A peer's promise makes computing what it has dear, not what is computed in any case.
TEST(LoadChoice, TheLocalTailCountsOnceWhenAPeerHasPromisedTheRest) {
  Scene scene(1);
  scene.AskForAll(16, 10);
  scene.SetSpeed(0, 1e9);
  scene.Find(0, {0, 16}, nullptr, 0);
  scene.rules.promised_by = 0;
  scene.rules.promised_compute_weight = 50;
  const LoadChoice choice = scene.Choose();
  EXPECT_EQ(choice.plan.first_loaded, 0);
  EXPECT_NEAR(choice.plan.expected_us, choice.plan.load_us + 10 * 100, 1);
  EXPECT_NEAR(choice.plan.all_compute_us, (16 * kBlockTokens + 10) * 100, 1);
  EXPECT_THAT(WhyText(choice, scene.rules, scene.sources), HasSubstr("all computed 26.6 ms"));
  CheckWhy(scene, choice);
}

TEST(LoadChoice, APromiseDecidesWhatIsLoadedAndOthersDoNot) {
  Scene scene(2);
  scene.AskForAll(16, 10);
  scene.SetSpeed(0, 2e5);  // so slow that computing is faster
  scene.SetSpeed(1, 2e5);
  scene.Find(0, {0, 16}, nullptr, 0);
  EXPECT_TRUE(scene.Choose().loads.empty());
  scene.rules.promised_compute_weight = 1000;
  scene.rules.promised_by = 1;
  EXPECT_TRUE(scene.Choose().loads.empty()) << "the peer has none of it";
  scene.rules.promised_by = 0;
  const LoadChoice promised = scene.Choose();
  EXPECT_EQ(promised.plan.first_loaded, 0);
  EXPECT_GT(promised.plan.expected_us, promised.plan.all_compute_us) << "dear, not slow";
  CheckWhy(scene, promised);
}

// The last chunk of a prompt is stored as it is, and again with the answer behind it.
TEST(LoadChoice, ObjectsThatOverlapCountOnce) {
  Scene scene(1);
  scene.AskForAll(8, 10);
  scene.SetSpeed(0, 1e9);
  const CodecProfile& lossless = scene.profiles->lossless();
  for (const kv::BlockRange& range : {kv::BlockRange{0, 4}, {4, 1}, {4, 2}, {4, 4}}) {
    scene.Find(0, range, &lossless, 1000);
  }
  const LoadChoice choice = scene.Choose();
  ASSERT_EQ(choice.decisions.size(), 1U);
  EXPECT_EQ(choice.decisions[0].decision.raw_bytes, 8 * Scene::raw_bytes_per_block());
  CheckWhy(scene, choice);
}

TEST(LoadChoice, BytesOfASlowerSourceAreBytes) {
  Scene scene(2);
  scene.AskForAll(8, 10);
  scene.SetSpeed(0, 1e9);
  scene.SetSpeed(1, 1e8);
  scene.Find(0, {0, 4}, &scene.profiles->lossless(), 100'000);
  scene.Find(1, {4, 4}, &scene.profiles->lossless(), 100'000);
  const LoadChoice choice = scene.Choose();
  EXPECT_EQ(choice.loads.size(), 2U);
  EXPECT_EQ(choice.plan.wire_bytes, 200'000);
  CheckWhy(scene, choice);
}

TEST(LoadChoice, EveryNumberOfWhyIsRight) {
  const uint64_t seed = 11;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Rng rng(seed);
  int some_loaded = 0;
  int promised = 0;
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    const auto num_sources = static_cast<int>(rng.Range(1, 3));
    Scene scene(num_sources);
    scene.Ask(static_cast<int32_t>(rng.Range(2, 40)), static_cast<int32_t>(rng.Range(0, 15)));
    scene.facts.quality = {rng.Below(3) != 0, static_cast<float>(0.94 + 0.06 * rng.Uniform())};
    scene.facts.slo_end_us = rng.Below(3) == 0 ? kNowUs + rng.Range(1, 200'000) : 0;
    scene.rules.compute = {.step_us = 500 * rng.Uniform(),
                           .token_us = 5 + 100 * rng.Uniform(),
                           .square_us = 0.01 * rng.Uniform()};
    scene.rules.compute_factor = 0.5 + rng.Uniform();
    scene.rules.compute_share = 0.4 + 0.6 * rng.Uniform();
    const int32_t loadable = scene.facts.num_loadable;
    for (int32_t at = static_cast<int32_t>(rng.Below(3)); at < loadable;) {
      const int32_t end = std::min(loadable, at + static_cast<int32_t>(rng.Range(1, 24)));
      scene.missing.push_back({at, end - at});
      at = end + static_cast<int32_t>(rng.Range(1, 4));
    }
    if (scene.missing.empty()) {
      continue;
    }
    const std::vector<const CodecProfile*> kinds = {
        &scene.profiles->raw(), &scene.profiles->lossless(), scene.profiles->Find("coarse"),
        scene.profiles->Find("fine")};
    const auto blocks = static_cast<int32_t>(scene.facts.keys.size());
    for (size_t source = 0; source < scene.sources.size(); ++source) {
      scene.SetSpeed(source, 1e6 * std::pow(1000.0, rng.Uniform()));
      const bool live = rng.Below(2) == 0;
      for (int64_t i = rng.Range(0, 3); live && i > 0; --i) {  // runs that may overlap
        const auto first = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(blocks)));
        const auto end = static_cast<int32_t>(rng.Range(first + 1, blocks));
        scene.Find(source, {first, end - first}, nullptr, 0,
                   rng.Below(2) == 0 ? rng.Range(1, 50'000) : 0);
      }
      for (const CodecProfile* profile : kinds) {
        if (live || rng.Below(3) == 0) {
          continue;
        }
        for (int32_t first = 0; first < blocks; first += 4) {
          for (int64_t i = rng.Range(0, 2); i > 0; --i) {  // tails of several lengths
            const auto size = std::min(blocks - first, static_cast<int32_t>(rng.Range(1, 4)));
            scene.Find(source, {first, size}, profile,
                       static_cast<uint64_t>(rng.Range(1000, 6000)));
          }
        }
      }
    }
    if (rng.Below(2) == 0) {
      scene.rules.promised_by = rng.Below(scene.sources.size());
      scene.rules.promised_compute_weight = 50;
    }
    const LoadChoice choice = scene.Choose();
    some_loaded += choice.plan.first_loaded > 0 && !choice.loads.empty() ? 1 : 0;
    promised += scene.rules.promised_by.has_value() && !choice.loads.empty() ? 1 : 0;
    CheckWhy(scene, choice);
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GT(some_loaded, 20);
  EXPECT_GT(promised, 50);
}

// Else a link that is slow enough for it would make the node compute what is a quarter of the
// bytes.
TEST(LoadChoice, WhatNoLibraryMeasuredIsPricedByWhatCame) {
  Scene scene(1);
  const CodecProfile* const preset = scene.profiles->Find("kivi-4");
  ASSERT_NE(preset, nullptr);
  SourceState& source = *scene.sources[0];
  ASSERT_NE(source.Controller(true), nullptr);
  ASSERT_FALSE(source.ArmOf(true, *preset).has_value());
  EXPECT_EQ(source.Price(true, *preset, 64, 1e6).wire_ratio, 1);
  source.Learn(*preset, 2000, 8000);
  source.Learn(*preset, 1000, 4000);
  EXPECT_EQ(source.Price(true, *preset, 64, 1e6).wire_ratio, 0.25);
  // Those that were measured are not moved by it.
  const CodecProfile& lossless = scene.profiles->lossless();
  const double before = source.Price(true, lossless, 64, 1e6).wire_ratio;
  source.Learn(lossless, 8000, 8000);
  EXPECT_EQ(source.Price(true, lossless, 64, 1e6).wire_ratio, before);
}

}  // namespace
}  // namespace kvik::connector
