// SPDX-License-Identifier: Apache-2.0
#include "kv/hazard_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace kvik::kv {
namespace {

// Contents to know: enough ghosts that the hazard sees what returns after it was evicted, within
// some ten megabytes.
size_t MaxContents(int32_t num_blocks) {
  constexpr size_t kPerBlock = 32;
  constexpr size_t kMany = 262144;
  // Resident blocks and the contents before them must fit, and some.
  const size_t least = static_cast<size_t>(num_blocks) * 2 + 1024;
  return std::max(least, std::min(static_cast<size_t>(num_blocks) * kPerBlock, kMany));
}

constexpr int32_t kChunkTokens = 128;  // gaps are no smaller than this if the run is not
constexpr double kFirstHorizonS = 120;
constexpr double kMinHorizonS = 1;
constexpr double kHorizonPerEvictionAge = 2;
constexpr int64_t kRebuildAfterUs = 5'000'000;  // when there is time
constexpr int64_t kRebuildLatestUs = 4 * kRebuildAfterUs;
constexpr size_t kCountedPerTick = 256;
constexpr size_t kRebuiltPerTick = 24;

}  // namespace

HazardPolicy::HazardPolicy(const PolicyOptions& options, HitScope scope)
    : scope_(scope),
      block_size_tokens_(options.block_size_tokens),
      chunk_blocks_(std::max(1, kChunkTokens / options.block_size_tokens)),
      cost_(options.cost),
      tier_(options.tier),
      blocks_(options.num_blocks),
      history_(static_cast<size_t>(options.num_blocks), MaxContents(options.num_blocks)),
      contents_(history_.capacity()),
      ends_(history_.capacity(), SessionTurn{.turn = 0}),
      hazard_(ReuseClassNodes()) {}

std::string_view HazardPolicy::name() const {
  return scope_ == HitScope::kPrefix ? "hazard-prefix" : "hazard";
}

std::vector<PolicyReading> HazardPolicy::Readings() const {
  return {{"lru_guard", "1 while victims come in LRU's order.", "", guard_.use_lru() ? 1.0 : 0.0},
          {"lru_guard_hand_overs_total", "Times that LRU took over.", "",
           static_cast<double>(guard_.hand_overs()), true},
          {"turnover_seconds", "Age at eviction, smoothed; 0: nothing was evicted.", "",
           eviction_age_s_},
          {"ghosts", "Contents remembered beyond the blocks there are.", "",
           static_cast<double>(num_contents()) - static_cast<double>(stats().tracked)},
          {"runs", "Runs of blocks known.", "", static_cast<double>(num_runs())}};
}

// --- Contents -----------------------------------------------------------------------------------

// The slot of a content, known or new. Makes room by dropping the ghost used longest ago.
int32_t HazardPolicy::SlotOf(uint64_t content) {
  if (const int32_t known = history_.Find(content); known != kNone) {
    return known;
  }
  while (history_.full()) {
    const int32_t oldest = history_.Oldest();
    history_.Unlist(oldest);
    ContentAt(oldest).unlisted = true;
    DropUnneeded(oldest);
  }
  const int32_t slot = history_.Add(content);
  ContentAt(slot) = Content{};
  ends_[static_cast<size_t>(slot)] = SessionTurn{.turn = 0};
  return slot;
}

void HazardPolicy::UseContent(int32_t slot) {
  history_.Use(slot);
  ContentAt(slot).unlisted = false;
}

// Forgets a content that is out of the history's order, unless a block still refers to it.
void HazardPolicy::DropUnneeded(int32_t slot) {
  const Content& content = ContentAt(slot);
  if (content.residents == 0 && content.children == 0 && content.unlisted) {
    SetRun(slot, kNone);
    history_.Forget(slot);
  }
}

// The block leaves the cache; its content becomes a ghost.
void HazardPolicy::Leave(BlockId id) {
  blocks_.Leave(id);
  const Block& block = blocks_[id];
  Content& content = ContentAt(block.slot);
  --content.residents;
  if (content.block == id) {
    content.block = kNoBlock;
  }
  DropUnneeded(block.slot);
  if (block.parent != kNone) {
    --ContentAt(block.parent).children;
    DropUnneeded(block.parent);
  }
}

void HazardPolicy::SetRun(int32_t slot, int32_t run) {
  const int32_t before = std::exchange(ContentAt(slot).run, run);
  if (run != kNone) {
    ++RunAt(run).waiting;
  }
  if (before != kNone) {
    --RunAt(before).waiting;
    FreeIfDone(before);
  }
}

void HazardPolicy::CountWaiting(Run& run, int64_t now_us) {
  const double age_s = AgeS(run, now_us);
  if (age_s > run.counted_age_s) {
    hazard_.AddWaiting(run.node, run.counted_age_s, age_s, run.waiting * run.block_weight);
    run.counted_age_s = age_s;
  }
}

// Somebody wants a content: the run it waited in has seen a return.
void HazardPolicy::CountReturn(int32_t slot, const Access& access) {
  const int32_t id = ContentAt(slot).run;
  if (id != kNone) {
    Run& run = RunAt(id);
    CountWaiting(run, access.now_us);
    hazard_.AddReturn(run.node, AgeS(run, access.now_us), run.block_weight);
    SetRun(slot, kNone);
  }
}

void HazardPolicy::Track(const TrackedBlock& tracked) {
  Block& block = blocks_.Track(tracked.block,
                               {.first_pos = tracked.first_pos, .slot = SlotOf(tracked.content)});
  Content& content = ContentAt(block.slot);
  ++content.residents;
  content.block = tracked.block;
  if (scope_ == HitScope::kPrefix && tracked.parent != 0) {
    block.parent = SlotOf(tracked.parent);
    ++ContentAt(block.parent).children;
  }
}

void HazardPolicy::Hit(std::span<const BlockId> blocks, const Access& access) {
  hazard_.AdvanceTime(access.now_us);
  uses_.clear();
  for (const BlockId id : blocks) {
    const Block& block = blocks_.At(id);
    CountReturn(block.slot, access);
    uses_.push_back({.slot = block.slot, .position = block.first_pos / block_size_tokens_});
  }
}

// With Hit before it, all that is to know of a request's prompt.
void HazardPolicy::Missed(std::span<const uint64_t> missed, const Access& access) {
  hazard_.AdvanceTime(access.now_us);
  // Hits know their positions; misses lie, in order, where no hit does.
  const std::vector<Use> hits = std::exchange(uses_, {});
  double policy_us = 0;
  double lru_us = 0;
  bool lru_hits = true;
  size_t next_hit = 0;
  size_t next_miss = 0;
  while (next_hit < hits.size() || next_miss < missed.size()) {
    Use use{.position = static_cast<int32_t>(uses_.size())};
    if (next_miss == missed.size() ||
        (next_hit < hits.size() && hits[next_hit].position <= use.position)) {
      use.slot = hits[next_hit++].slot;
    } else {
      use.slot = history_.Find(missed[next_miss]);
      use.miss = static_cast<int32_t>(next_miss++);
    }
    const int64_t first_pos = int64_t{use.position} * block_size_tokens_;
    const double cost_us = use.slot == kNone ? CostUs(first_pos)  // new, so nowhere below
                                             : CostUs(first_pos, history_.digest(use.slot));
    policy_us += use.miss != kNone ? cost_us : 0;
    lru_hits = lru_hits && use.slot != kNone && history_.InShadow(use.slot);
    lru_us += lru_hits ? 0 : cost_us;
    if (use.miss != kNone && use.slot != kNone) {
      CountReturn(use.slot, access);
    }
    uses_.push_back(use);
  }
  guard_.Add(access.now_us, policy_us, lru_us);
  uint64_t session = access.request.session;
  SessionTurn inferred{.turn = 0};
  if ((session == 0 || access.request.turn == 0) && access.request.request != 0) {
    inferred = InferSession();
    in_flight_[access.request.request] = {inferred, uses_.size()};
    session = session != 0 ? session : inferred.session + 1;
  }
  // In the order in which LRU frees a sequence: the deepest is the first to go.
  for (auto use = uses_.rbegin(); use != uses_.rend(); ++use) {
    // Making room for one miss may have dropped the ghost of another.
    const int32_t slot =
        use->miss == kNone ? use->slot : SlotOf(missed[static_cast<size_t>(use->miss)]);
    UseContent(slot);
    Content& content = ContentAt(slot);
    content.shared = content.shared || (content.session != 0 && content.session != session);
    content.session = session;
    if (inferred.turn > 0 && use == uses_.rbegin() && uses_.size() >= 2) {
      ends_[static_cast<size_t>(slot)] = inferred;
    }
  }
  uses_.clear();
}

// SessionTracker's rule, on what is remembered here anyway.
SessionTurn HazardPolicy::InferSession() {
  auto known = uses_.rbegin();
  while (known != uses_.rend() && known->slot == kNone) {
    ++known;
  }
  for (int back = 0; back < SessionTracker::kEndWithinBlocks && known != uses_.rend();
       ++back, ++known) {
    if (known->slot != kNone && ends_[static_cast<size_t>(known->slot)].turn > 0) {
      const SessionTurn& end = ends_[static_cast<size_t>(known->slot)];
      return {.session = end.session, .turn = end.turn + 1};
    }
  }
  return {.session = num_inferred_sessions_++, .turn = 1};
}

// The turn that the request said, else the one inferred; its answer now belongs to it.
int32_t HazardPolicy::EndInFlight(std::span<const BlockId> blocks, const Access& access) {
  const auto found = in_flight_.find(access.request.request);
  if (found == in_flight_.end()) {
    return access.request.turn;
  }
  const InFlight request = found->second;
  in_flight_.erase(found);
  if (!blocks.empty()) {
    const Block& deepest = blocks_.At(blocks.front());
    const auto length = static_cast<size_t>(deepest.first_pos / block_size_tokens_) + 1;
    if (length > request.blocks && length >= SessionTracker::kMinBlocksToContinue) {
      ends_[static_cast<size_t>(deepest.slot)] = request.turn;
    }
  }
  return access.request.turn != 0 ? access.request.turn : request.turn.turn;
}

// --- Runs ---------------------------------------------------------------------------------------

void HazardPolicy::Touch(std::span<const BlockId> blocks, const Access& /*access*/) {
  for (const BlockId id : blocks) {
    const Block& block = blocks_.Hold(id);
    if (ContentAt(block.slot).run == block.run) {
      SetRun(block.slot, kNone);
    }
    TakeFromRun(id);
  }
}

void HazardPolicy::Release(std::span<const BlockId> blocks, const Access& access) {
  hazard_.AdvanceTime(access.now_us);
  hazard_.CountRequest();
  for (const BlockId id : blocks) {
    blocks_.Free(id);
  }
  const int32_t turn = EndInFlight(blocks, access);
  const double weight = 1.0 / static_cast<double>(std::max<size_t>(blocks.size(), 1));
  std::vector<BlockId> run;  // deepest first
  BlockKind run_kind = BlockKind::kTail;
  for (const BlockId id : blocks) {
    const Block& block = blocks_.At(id);
    UseContent(block.slot);
    const BlockKind kind = ContentAt(block.slot).shared ? BlockKind::kHead : BlockKind::kTail;
    if (!run.empty() && (kind != run_kind || blocks_.At(run.back()).first_pos - block.first_pos !=
                                                 block_size_tokens_)) {
      OpenRun(run, run_kind, weight, access, turn);
    }
    run_kind = kind;
    run.push_back(id);
  }
  if (!run.empty()) {
    OpenRun(run, run_kind, weight, access, turn);
  }
}

// Takes the blocks out of the vector.
void HazardPolicy::OpenRun(std::vector<BlockId>& deepest_first, BlockKind kind, double weight,
                           const Access& access, int32_t turn) {
  auto id = static_cast<int32_t>(runs_.size());
  if (free_runs_.empty()) {
    runs_.emplace_back();
  } else {
    id = free_runs_.back();
    free_runs_.pop_back();
  }
  const auto size = static_cast<int32_t>(deepest_first.size());
  Run& run = RunAt(id);
  run = Run{.node = ReuseClassNode(access.request, turn, kind),
            .released_us = access.now_us,
            .block_weight = weight,
            .order = next_order_++,
            .evictable = size,
            .active = static_cast<int32_t>(active_.size()),
            .first_pos = blocks_.At(deepest_first.back()).first_pos,
            .end = size,
            .blocks = std::vector<BlockId>(deepest_first.rbegin(), deepest_first.rend())};
  active_.push_back(id);
  for (int32_t i = 0; i < size; ++i) {
    Block& block = blocks_.At(run.blocks[static_cast<size_t>(i)]);
    block.run = id;
    block.index = i;
    SetRun(block.slot, id);
  }
  deepest_first.clear();
}

void HazardPolicy::FreeIfDone(int32_t id) {
  Run& run = RunAt(id);
  if (run.waiting == 0 && run.evictable == 0) {
    run.blocks = {};
    free_runs_.push_back(id);
  }
}

// The block is not evictable any more; whether its content still waits is another matter.
void HazardPolicy::TakeFromRun(BlockId id) {
  Block& block = blocks_.At(id);
  RemoveFromRun(std::exchange(block.run, kNone), block.index);
}

void HazardPolicy::RemoveFromRun(int32_t run_id, int32_t index) {
  Run& run = RunAt(run_id);
  run.blocks[static_cast<size_t>(index)] = kNoBlock;
  if (--run.evictable > 0) {
    while (run.blocks[static_cast<size_t>(run.first)] == kNoBlock) {
      ++run.first;
    }
    while (run.blocks[static_cast<size_t>(run.end) - 1] == kNoBlock) {
      --run.end;
    }
    return;
  }
  const int32_t last = active_.back();
  active_[static_cast<size_t>(run.active)] = last;
  RunAt(last).active = run.active;
  active_.pop_back();
  run.active = kNone;
  FreeIfDone(run_id);
}

void HazardPolicy::Forget(BlockId id) {
  const Block& block = blocks_.At(id);
  if (block.use == BlockUse::kEvictable) {
    TakeFromRun(id);
  }
  // Dropped from outside: LRU would not hold it either.
  Content& content = ContentAt(block.slot);
  if (!content.unlisted && content.residents == 1) {
    history_.Unlist(block.slot);
    content.unlisted = true;
  }
  Leave(id);
}

// --- Selection ----------------------------------------------------------------------------------

double HazardPolicy::HorizonS() const {
  return eviction_age_s_ > 0 ? std::max(kMinHorizonS, kHorizonPerEvictionAge * eviction_age_s_)
                             : kFirstHorizonS;
}

// Where prefixes are all that counts, and where LRU chooses, the deepest block of a run goes first.
// Else the shallowest: all blocks of a run are equally likely to be wanted, and it costs least.
double HazardPolicy::NextCostUs(const Run& run, bool from_deep_end) const {
  const int64_t index = from_deep_end ? run.end - 1 : run.first;
  const int64_t first_pos = run.first_pos + index * block_size_tokens_;
  if (tier_ == nullptr) {
    return CostUs(first_pos);
  }
  const BlockId id = run.blocks[static_cast<size_t>(index)];
  return CostUs(first_pos, history_.digest(blocks_[static_cast<size_t>(id)].slot));
}

double HazardPolicy::Gain(Run& run, int64_t now_us) {
  const int64_t rebuilt_us = hazard_.rebuilt_us(run.node);
  if (rebuilt_us < 0 || now_us - rebuilt_us > kRebuildLatestUs) {
    hazard_.Rebuild(run.node, HorizonS());
  }
  const double age_s = AgeS(run, now_us);
  run.bin = ReuseHazard::BinOf(age_s, run.bin);
  return hazard_.Gain(run.node, age_s, run.bin);
}

HazardPolicy::Candidate HazardPolicy::MakeCandidate(int32_t id, bool by_gain, int64_t now_us) {
  Run& run = RunAt(id);
  Candidate candidate{.order = run.order, .run = id};
  if (by_gain) {
    candidate.gain = Gain(run, now_us);
    candidate.score = candidate.gain * NextCostUs(run, scope_ == HitScope::kPrefix);
  }
  return candidate;
}

// Whether the deepest block of the run has no resident child.
bool HazardPolicy::LeafIsNext(int32_t id) {
  const Run& run = RunAt(id);
  const BlockId deepest = run.blocks[static_cast<size_t>(run.end) - 1];
  return ContentAt(blocks_.At(deepest).slot).children == 0;
}

void HazardPolicy::NoteEvictions(double age_s, size_t count) {
  if (eviction_age_s_ <= 0) {
    eviction_age_s_ = age_s;
  }
  const double turnovers = static_cast<double>(count) / static_cast<double>(blocks_.size());
  eviction_age_s_ += (age_s - eviction_age_s_) * -std::expm1(-turnovers);
}

std::vector<BlockId> HazardPolicy::SelectVictims(size_t count, int64_t now_us) {
  KVIK_CHECK(count <= static_cast<size_t>(stats().evictable));
  hazard_.AdvanceTime(now_us);
  const bool by_gain = !guard_.use_lru();
  const bool from_deep_end = scope_ == HitScope::kPrefix || !by_gain;
  // A block whose child stays must stay: in prefix form only runs that end in a leaf are offered.
  // Children that are held cannot go; if nothing else is left, their parents go before them.
  bool leaves_only = scope_ == HitScope::kPrefix;
  heap_.clear();
  const auto fill = [&] {
    for (const int32_t id : active_) {
      if (!leaves_only || LeafIsNext(id)) {
        heap_.push_back(MakeCandidate(id, by_gain, now_us));
      }
    }
    std::make_heap(heap_.begin(), heap_.end());
  };
  const auto offer = [&](const Candidate& candidate) {
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end());
  };
  fill();
  std::vector<BlockId> victims;
  victims.reserve(count);
  while (victims.size() < count) {
    if (heap_.empty()) {
      leaves_only = false;
      fill();
    }
    std::pop_heap(heap_.begin(), heap_.end());
    Candidate top = heap_.back();
    heap_.pop_back();
    const Run& run = RunAt(top.run);
    const double age_s = AgeS(run, now_us);
    const size_t before = victims.size();
    int32_t left = run.evictable;
    bool blocked = false;
    while (left > 0 && victims.size() < count) {
      blocked = leaves_only && !LeafIsNext(top.run);
      if (blocked) {
        break;
      }
      const auto taken = static_cast<int32_t>(victims.size() - before);
      if (taken % chunk_blocks_ == 0 && taken > 0 && !heap_.empty()) {
        top.score = by_gain ? top.gain * NextCostUs(run, from_deep_end) : 0;
        if (top < heap_.front()) {
          break;
        }
      }
      const int32_t index = from_deep_end ? run.end - 1 : run.first;
      const BlockId id = run.blocks[static_cast<size_t>(index)];
      RemoveFromRun(top.run, index);
      victims.push_back(id);
      --left;
      if (scope_ != HitScope::kPrefix) {
        continue;
      }
      // Who is a leaf depends on who has left. The parent may be the next of another run now.
      const int32_t parent = blocks_.At(id).parent;
      LeaveAll(std::span(&id, 1));
      if (leaves_only && parent != kNone && ContentAt(parent).children == 0) {
        const BlockId leaf = ContentAt(parent).block;
        const int32_t other = leaf == kNoBlock ? kNone : blocks_.At(leaf).run;
        if (other != kNone && other != top.run && RunAt(other).end - 1 == blocks_.At(leaf).index) {
          offer(MakeCandidate(other, by_gain, now_us));
        }
      }
    }
    NoteEvictions(age_s, victims.size() - before);
    if (left > 0 && !blocked) {
      top.score = by_gain ? top.gain * NextCostUs(run, from_deep_end) : 0;
      offer(top);
    }
  }
  if (scope_ != HitScope::kPrefix) {
    LeaveAll(victims);
  }
  blocks_.CountVictims(count);
  return victims;
}

// Bookkeeping of blocks that are out of their runs. Blocks and contents lie anywhere in memory, so
// they are asked for ahead.
void HazardPolicy::LeaveAll(std::span<const BlockId> victims) {
  constexpr size_t kAhead = 32;
  for (size_t i = 0; i < victims.size(); ++i) {
    if (i + 2 * kAhead < victims.size()) {
      __builtin_prefetch(&blocks_[victims[i + 2 * kAhead]]);
    }
    if (i + kAhead < victims.size()) {
      __builtin_prefetch(&ContentAt(blocks_.At(victims[i + kAhead]).slot));
    }
    blocks_.At(victims[i]).run = kNone;
    Leave(victims[i]);
  }
}

void HazardPolicy::Tick(int64_t now_us) {
  hazard_.AdvanceTime(now_us);
  for (size_t i = 0; i < std::min(kCountedPerTick, runs_.size()); ++i) {
    next_counted_ = next_counted_ + 1 < runs_.size() ? next_counted_ + 1 : 0;
    if (runs_[next_counted_].waiting > 0) {
      CountWaiting(runs_[next_counted_], now_us);
    }
  }
  for (size_t i = 0; i < std::min(kRebuiltPerTick, active_.size()); ++i) {
    next_rebuilt_ = next_rebuilt_ + 1 < active_.size() ? next_rebuilt_ + 1 : 0;
    const int node = RunAt(active_[next_rebuilt_]).node;
    if (now_us - hazard_.rebuilt_us(node) > kRebuildAfterUs) {
      hazard_.Rebuild(node, HorizonS());
    }
  }
}

}  // namespace kvik::kv
