// SPDX-License-Identifier: Apache-2.0
#include "kv/least_value_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include "base/rng.h"

namespace kvik::kv {
namespace {

constexpr VictimSelection kSelections[] = {VictimSelection::kAuto, VictimSelection::kScan,
                                           VictimSelection::kBatch};
const std::vector<ReuseCurve> kCurves = {ReuseCurve(0.5, 40, 600), ReuseCurve(0.5, 40, 60)};

// ln of the value, straight from the definition.
double LnValue(const LeastValueIndex& index, const LeastValueIndex::Item& item, int64_t now_us) {
  const ReuseCurve& curve = index.curve(item.cls);
  const double idle_s = static_cast<double>(now_us - item.uses.last_us) * 1e-6;
  const double ln_lambda = curve.LnLambda(index.lifespan_s(item.cls));
  return item.ln_weight + std::min(item.uses.ln_sum1 - curve.alpha() * idle_s,
                                   item.uses.ln_sum2 + ln_lambda + curve.ln_f2_start() -
                                       curve.steep_alpha() * idle_s);
}

// Random items come and go, lifespans move within and beyond what lambda follows, several things
// happen at one time. Whatever is popped is the least of all, found by looking at all of them.
struct RandomRun {
  explicit RandomRun(uint64_t seed) : rng(seed) {
    for (const VictimSelection selection : kSelections) {
      indexes.push_back(std::make_unique<LeastValueIndex>(kItems, selection, kCurves));
    }
  }

  void Step() {
    if (rng.Below(3) != 0) {  // else several things happen at one time
      now_us += static_cast<int64_t>(std::exp(17 * rng.Uniform()));  // up to 24 s
    }
    switch (rng.Below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        InsertSome();
        break;
      case 5:
        EraseSome();
        break;
      case 6:
        for (int32_t cls = 0; cls < 2; ++cls) {
          const double lifespan_s = std::exp(std::log(20) + 5 * rng.Uniform());  // to 50 minutes
          ForAll([&](LeastValueIndex& index) { index.SetLifespan(cls, lifespan_s); });
        }
        break;
      case 7:
        curves_before = CurrentLifespans();
        ForAll([&](LeastValueIndex& index) { index.Tick(now_us); });
        rebases += CurrentLifespans() != curves_before ? 1 : 0;
        break;
      default:
        PopSome();
    }
    for (const auto& index : indexes) {
      ASSERT_EQ(index->size(), items.size());
    }
  }

  void InsertSome() {
    const auto cls = static_cast<int32_t>(rng.Below(2));
    DecayedUses uses = DecayedUses::Once(now_us);
    for (uint64_t past = rng.Below(4); past > 0; --past) {
      uses.last_us -= static_cast<int64_t>(rng.Below(100'000'000));
      uses.Use(indexes[0]->curve(cls), now_us);
    }
    const bool equal_costs = rng.Below(2) == 0;
    for (int32_t id = 0; id < kItems; ++id) {
      if (!items.contains(id) && rng.Below(4) == 0) {
        const LeastValueIndex::Item item{.cls = cls,
                                         .ln_weight = equal_costs ? 3 : 10 * rng.Uniform(),
                                         .uses = uses,
                                         .order = next_order++};
        items[id] = item;
        ForAll([&](LeastValueIndex& index) { index.Insert(id, item); });
      }
    }
  }

  void EraseSome() {
    for (int32_t id = 0; id < kItems; ++id) {
      if (items.contains(id) && rng.Below(8) == 0) {
        items.erase(id);
        ForAll([&](LeastValueIndex& index) { index.Erase(id); });
      }
    }
  }

  void PopSome() {
    const size_t count = rng.Below(std::min<uint64_t>(items.size(), 16) + 1);
    std::vector<std::vector<int32_t>> popped;
    for (const auto& index : indexes) {
      popped.push_back(index->PopLeast(count, now_us));
    }
    ASSERT_EQ(popped[1], popped[0]) << "scan";
    ASSERT_EQ(popped[2], popped[0]) << "batch";
    for (const int32_t id : popped[0]) {
      CheckIsLeast(id);
      items.erase(id);
    }
    checks += static_cast<int64_t>(count);
  }

  // Values closer than the grid of the index count as equal, but of items with equal facts the one
  // with the smaller order goes first.
  void CheckIsLeast(int32_t id) {
    const LeastValueIndex::Item& chosen = items.at(id);
    const double value = LnValue(*indexes[0], chosen, now_us);
    for (const auto& [other_id, other] : items) {
      const double other_value = LnValue(*indexes[0], other, now_us);
      ASSERT_LE(value, other_value + 1e-9) << "item " << id << " was taken before " << other_id;
      if (other.cls == chosen.cls && other.ln_weight == chosen.ln_weight &&
          other.uses.last_us == chosen.uses.last_us && other.uses.ln_sum1 == chosen.uses.ln_sum1 &&
          other.uses.ln_sum2 == chosen.uses.ln_sum2) {
        ASSERT_LE(chosen.order, other.order);
      }
    }
  }

  std::vector<double> CurrentLifespans() {
    return {indexes[0]->curve(0).lifespan_s(), indexes[0]->curve(1).lifespan_s()};
  }
  template <typename F>
  void ForAll(F&& f) {
    for (const auto& index : indexes) {
      f(*index);
    }
  }

  static constexpr int32_t kItems = 64;
  Rng rng;
  std::vector<std::unique_ptr<LeastValueIndex>> indexes;  // one a selection
  std::map<int32_t, LeastValueIndex::Item> items;
  std::vector<double> curves_before;
  int64_t now_us = 1'000'000;
  uint64_t next_order = 0;
  int64_t checks = 0;
  int64_t rebases = 0;
};

TEST(LeastValueIndex, EveryPopIsTheLeastOfAllItemsWhateverHappensInBetween) {
  int64_t checks = 0;
  int64_t rebases = 0;
  for (uint64_t seed = 0; checks < 1'000'000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomRun run(seed);
    for (int step = 0; step < 20'000; ++step) {
      ASSERT_NO_FATAL_FAILURE(run.Step()) << "step " << step;
    }
    EXPECT_GT(run.rebases, 100);
    checks += run.checks;
    rebases += run.rebases;
  }
  std::printf("%lld victims were the least of all, through %lld changes of curves\n",
              static_cast<long long>(checks), static_cast<long long>(rebases));
}

LeastValueIndex::Item Single(int64_t used_us, double ln_weight, uint64_t order) {
  return {.cls = 0, .ln_weight = ln_weight, .uses = DecayedUses::Once(used_us), .order = order};
}

constexpr int64_t kSecond = 1'000'000;

TEST(LeastValueIndex, TheDearerGoesFirstOnceItIsPastItsLifespan) {
  for (const VictimSelection selection : kSelections) {
    // 0 is older and dearer. Within the lifespan the curve is flat and the price decides.
    const auto least = [&](int64_t now_us, double lifespan_s) {
      LeastValueIndex index(2, selection, kCurves);
      index.Insert(0, Single(0, std::log(2), 0));
      index.Insert(1, Single(100 * kSecond, 0, 1));
      index.SetLifespan(0, lifespan_s);
      return index.PopLeast(1, now_us).front();
    };
    EXPECT_EQ(least(200 * kSecond, 600), 1);
    EXPECT_EQ(least(650 * kSecond, 600), 0);
    EXPECT_EQ(least(650 * kSecond, 900), 1) << "lambda moved the end of the lifespan";
    EXPECT_EQ(least(400 * kSecond, 300), 0);
  }
}

TEST(LeastValueIndex, LambdaFollowsALifespanWithinHalfAndTwiceAndANewCurveTakesOverBeyond) {
  LeastValueIndex index(4, VictimSelection::kAuto, kCurves);
  index.Insert(0, Single(0, 0, 0));
  for (const double lifespan_s : {300.0, 1200.0, 700.0}) {
    index.SetLifespan(0, lifespan_s);
    index.Tick(kSecond);
    EXPECT_EQ(index.curve(0).lifespan_s(), 600);
    EXPECT_EQ(index.lifespan_s(0), lifespan_s);
  }
  for (const double lifespan_s : {1300.0, 200.0}) {
    index.SetLifespan(0, lifespan_s);
    index.Tick(kSecond);
    EXPECT_EQ(index.curve(0).lifespan_s(), lifespan_s);
  }
  EXPECT_EQ(index.curve(1).lifespan_s(), 60) << "the other class";
}

// While a new curve's heaps fill up, the old curve alone decides: with equal weights the order is
// that of the last use throughout.
TEST(LeastValueIndex, ANewCurveTakesOverAtOnceHoweverManyTicksItsPreparationTakes) {
  constexpr int32_t kItems = 5000;
  LeastValueIndex index(kItems, VictimSelection::kAuto, kCurves);
  for (int32_t id = 0; id < kItems; ++id) {
    const int32_t shuffled = (id * 1237) % kItems;
    index.Insert(shuffled, Single(id * kSecond / 10, 0, static_cast<uint64_t>(id)));
  }
  index.SetLifespan(0, 5000);
  int32_t next = 0;
  int ticks = 0;
  for (; index.curve(0).lifespan_s() == 600; ++ticks) {
    const int64_t now_us = 500 * kSecond + ticks;
    index.Tick(now_us);
    for (const int32_t id : index.PopLeast(7, now_us)) {
      ASSERT_EQ(id, (next++ * 1237) % kItems);
    }
    // The last one is used again, and so is least recently used no more.
    const int32_t last = ((kItems - 1) * 1237) % kItems;
    index.Erase(last);
    index.Insert(last, Single(now_us, 0, static_cast<uint64_t>(kItems + ticks)));
  }
  EXPECT_GT(ticks, 10);
  while (index.size() > 1) {
    ASSERT_EQ(index.PopLeast(1, 600 * kSecond).front(), (next++ * 1237) % kItems);
  }
  EXPECT_EQ(next, kItems - 1);
}

TEST(LeastValueIndex, NumbersStaySmallOverYears) {
  for (const VictimSelection selection : kSelections) {
    LeastValueIndex index(3, selection, kCurves);
    const int64_t start_us = 1'700'000'000 * kSecond;
    uint64_t order = 0;
    index.Insert(0,
                 {.cls = 1, .ln_weight = 5, .uses = DecayedUses::Once(start_us), .order = order++});
    for (int64_t day = 0; day < 3000; ++day) {
      const int64_t now_us = start_us + day * 86'400 * kSecond;
      index.Tick(now_us);
      index.Insert(1,
                   {.cls = 1, .ln_weight = 1, .uses = DecayedUses::Once(now_us), .order = order++});
      index.Insert(
          2,
          {.cls = 1, .ln_weight = 1 + 1e-6, .uses = DecayedUses::Once(now_us), .order = order++});
      ASSERT_THAT(index.PopLeast(3, now_us + 1),
                  testing::ElementsAre(day == 0 ? 1 : 0, day == 0 ? 2 : 1, day == 0 ? 0 : 2));
      index.Insert(0,
                   {.cls = 1, .ln_weight = 5, .uses = DecayedUses::Once(now_us), .order = order++});
    }
  }
}

}  // namespace
}  // namespace kvik::kv
