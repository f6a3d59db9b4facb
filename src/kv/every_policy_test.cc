// SPDX-License-Identifier: Apache-2.0
// What holds for every eviction policy there is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kv/eviction_policy.h"
#include "kv/testing/toy_cache.h"

namespace kvik::kv {
namespace {

// Every policy alone, and under overlays.
struct Candidate {
  std::string name;
  bool obey_clients = false;

  [[nodiscard]] PolicyOptions options(uint64_t seed = 0) const {
    return {.name = name,
            .obey_clients = obey_clients,
            .num_blocks = 60,
            .block_size_tokens = 16,
            .seed = seed};
  }
};

void PrintTo(const Candidate& candidate, std::ostream* out) {
  *out << candidate.name << (candidate.obey_clients ? " obeying clients" : "");
}

std::vector<Candidate> Candidates() {
  std::vector<Candidate> candidates;
  for (const std::string_view policy : EvictionPolicyNames()) {
    candidates.push_back({std::string(policy), false});
    candidates.push_back({std::string(policy), true});
    for (const std::string_view overlay : EvictionOverlayNames()) {
      candidates.push_back({std::string(policy) + "+" + std::string(overlay), true});
    }
  }
  return candidates;
}

class EveryPolicy : public testing::TestWithParam<Candidate> {};

// Replaces numbers, or cuts, repeats and overwrites bytes.
void Damage(std::string& text, Rng& rng) {
  static constexpr std::string_view kNumbers[] = {
      "0", "-1", "1e-300", "1e300", "1e15", "0.5", "999999999999999999999", "null", "[]", "\"7\""};
  const auto is_number = [](char c) {
    return std::strchr("0123456789.e+-", c) != nullptr && c != 0;
  };
  for (uint64_t i = 0; i <= rng.Below(3); ++i) {
    const size_t at = rng.Below(text.size());
    if (const uint64_t what = rng.Below(8); what == 0) {
      text.resize(at + 1);
    } else if (what == 1) {
      text[at] = static_cast<char>(rng.Below(256));
    } else if (what == 2) {
      text.insert(at, text.substr(rng.Below(text.size()), rng.Below(100)));
    } else {
      size_t begin = std::min(text.find_first_of("0123456789", at), text.size());
      size_t end = begin;
      while (begin > 0 && is_number(text[begin - 1])) {
        --begin;
      }
      while (end < text.size() && is_number(text[end])) {
        ++end;
      }
      text.replace(begin, end - begin, kNumbers[rng.Below(std::size(kNumbers))]);
    }
  }
}

// The toy cache checks the accounting after every step, that no held block is chosen and none
// twice, and that both copies choose the same.
TEST_P(EveryPolicy, IsDeterministicCountsExactlyAndNeverTakesAHeldBlock) {
  int64_t victims = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto policy = MakeEvictionPolicy(GetParam().options(seed)).value();
    const auto copy = MakeEvictionPolicy(GetParam().options(seed)).value();
    ToyCache cache({.seed = seed, .outspoken = seed % 2 == 1}, {policy.get(), copy.get()});
    for (int step = 0; step < 2000; ++step) {
      ASSERT_NO_FATAL_FAILURE(cache.Step()) << "step " << step;
    }
    victims += cache.num_victims();
  }
  EXPECT_GT(victims, 1000);
}

TEST_P(EveryPolicy, StartsFromWhatAnotherInstanceSaved) {
  const PolicyOptions options = GetParam().options();
  const auto teacher = MakeEvictionPolicy(options).value();
  ToyCache lessons({.seed = 1, .outspoken = true}, {teacher.get()});
  for (int step = 0; step < 3000; ++step) {
    ASSERT_NO_FATAL_FAILURE(lessons.Step());
  }
  const std::string state = teacher->SaveState();
  const auto policy = MakeEvictionPolicy(options).value();
  ASSERT_TRUE(policy->RestoreState(state));
  EXPECT_EQ(policy->SaveState(), state);
  EXPECT_FALSE(policy->RestoreState("no state of any policy").has_value());
  ToyCache cache({.seed = 2, .outspoken = true}, {policy.get()});
  for (int step = 0; step < 1000; ++step) {
    ASSERT_NO_FATAL_FAILURE(cache.Step());
  }
}

// A file on a disk may hold anything. What is refused changes nothing; what happens to be accepted
// must be something that a policy can live with.
TEST_P(EveryPolicy, SurvivesWhateverItsSavedStateHasBecome) {
  const PolicyOptions options = GetParam().options();
  const auto teacher = MakeEvictionPolicy(options).value();
  ToyCache lessons({.seed = 3, .outspoken = true}, {teacher.get()});
  for (int step = 0; step < 1000; ++step) {
    ASSERT_NO_FATAL_FAILURE(lessons.Step());
  }
  const std::string good = teacher->SaveState();
  EXPECT_EQ(PolicyLearns(GetParam().name), !good.empty());
  const bool as_alone =
      GetParam().obey_clients && WithoutOverlays(GetParam().name) == GetParam().name;
  if (good.empty() || as_alone) {
    return;
  }
  const std::string nothing = MakeEvictionPolicy(options).value()->SaveState();
  int accepted = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::string text = good;
    Rng rng(seed);
    Damage(text, rng);
    const auto policy = MakeEvictionPolicy(options).value();
    if (const auto result = policy->RestoreState(text); !result.has_value()) {
      EXPECT_EQ(result.error().code, ErrorCode::kInvalidInput);
      EXPECT_EQ(policy->SaveState(), nothing);
      continue;
    }
    ++accepted;
    ToyCache cache({.seed = seed}, {policy.get()});
    for (int step = 0; step < 150; ++step) {
      ASSERT_NO_FATAL_FAILURE(cache.Step()) << text;
    }
  }
  EXPECT_GT(accepted, 5);
  EXPECT_LT(accepted, 380);
}

// Overlays wait for somebody to say something.
TEST_P(EveryPolicy, ChoosesAsAloneWhenRequestsSayNothing) {
  PolicyOptions alone = GetParam().options();
  alone.name = WithoutOverlays(alone.name);
  alone.obey_clients = false;
  const auto policy = MakeEvictionPolicy(GetParam().options()).value();
  const auto without = MakeEvictionPolicy(alone).value();
  ToyCache cache({.seed = 3, .tool_calls = false}, {policy.get(), without.get()});
  for (int step = 0; step < 2000; ++step) {
    ASSERT_NO_FATAL_FAILURE(cache.Step()) << "step " << step;
  }
  EXPECT_GT(cache.num_victims(), 200);
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, testing::ValuesIn(Candidates()),
                         [](const auto& param) {
                           std::string name = param.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           std::replace(name.begin(), name.end(), '+', '_');
                           return name + (param.param.obey_clients ? "_clients" : "");
                         });

}  // namespace
}  // namespace kvik::kv
