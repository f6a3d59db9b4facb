// SPDX-License-Identifier: Apache-2.0
#include "connector/load_choice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/format.h"
#include "connector/chunk.h"

namespace kvik::connector {
namespace {

// The longest run of `missing` within `range`; the later one of equals. num_blocks 0: none.
kv::BlockRange MissingIn(const kv::BlockRange& range, std::span<const kv::BlockRange> missing) {
  kv::BlockRange best;
  for (const kv::BlockRange& run : missing) {
    const int32_t first = std::max(run.first_block, range.first_block);
    const int32_t end = std::min(run.end_block(), range.end_block());
    if (end - first >= std::max(best.num_blocks, 1)) {
      best = {first, end - first};
    }
  }
  return best;
}

// A set of blocks. Objects of a source may overlap: the last chunk of a prompt is stored again when
// the answer has made it longer, and each block counts once.
class BlockSet {
 public:
  explicit BlockSet(size_t num_blocks) : has_(num_blocks) {}
  void Add(const kv::BlockRange& range) {
    for (auto block = static_cast<size_t>(range.first_block);
         block < static_cast<size_t>(range.end_block()); ++block) {
      size_ += has_[block] ? 0 : 1;
      has_[block] = true;
    }
  }
  [[nodiscard]] int32_t size() const { return size_; }

 private:
  std::vector<bool> has_;
  int32_t size_ = 0;
};

kv::BlockRange RangeOf(const transfer::FoundObject& found) {
  const auto last = static_cast<int32_t>(found.hash_index);
  return {last - found.info.num_blocks + 1, found.info.num_blocks};
}

bool IsLive(const transfer::FoundObject& found) {
  return found.info.key.profile_hash == kAnyProfile;
}

class Chooser {
 public:
  Chooser(const LoadFacts& facts, const ProfileSet& profiles, const LoadRules& rules,
          std::span<const FoundAt> found, std::span<const kv::BlockRange> missing,
          std::span<SourceState* const> sources, int64_t now_us, Rng& rng)
      : facts_(facts),
        profiles_(profiles),
        rules_(rules),
        found_(found),
        missing_(missing),
        sources_(sources),
        now_us_(now_us),
        rng_(rng) {}

  LoadChoice Choose() {
    std::vector<LoadCandidate> candidates;
    for (size_t source = 0; source < sources_.size(); ++source) {
      FromSource(source, candidates);
    }
    Plan(std::move(candidates));
    return std::move(choice_);
  }

 private:
  // What comes into question of one source: of the profile that its controller chooses, and of
  // others where that one is not to be had.
  void FromSource(size_t index, std::vector<LoadCandidate>& out) {
    SourceState& source = *sources_[index];
    std::vector<LoadCandidate> stored;
    std::vector<const transfer::FoundObject*> live;
    for (const FoundAt& at : found_) {
      if (at.source != index) {
        continue;
      }
      if (IsLive(at.found)) {
        live.push_back(&at.found);
      } else {
        static_cast<void>(source.Controller(/*live=*/false));  // prices are its
        AddStored(index, at.found, stored);
      }
    }
    if (live.empty() && stored.empty()) {
      return;
    }
    const bool encodes = !live.empty();
    control::Controller* const controller = source.Controller(encodes);
    const CodecProfile* chosen = rules_.fixed;
    int32_t blocks = 0;          // that may come from here
    int32_t computed_there = 0;  // of these, that the peer is still computing
    double produce_us = 0;
    control::ArmMask available = 0;
    if (!live.empty()) {
      const std::vector<const transfer::FoundObject*> at = RunsAt(live);
      for (const kv::BlockRange& run : missing_) {
        for (int32_t block = run.first_block; block < run.end_block(); ++block) {
          const transfer::FoundObject* const found = at[static_cast<size_t>(block)];
          if (found == nullptr) {
            continue;
          }
          ++blocks;
          if (found->info.ready_in_us > 0) {
            ++computed_there;
            produce_us = std::max(produce_us, static_cast<double>(found->info.ready_in_us));
          }
        }
      }
      available = control::kAllArms;
    } else {
      std::map<const CodecProfile*, BlockSet> coverage;
      for (const LoadCandidate& candidate : stored) {
        BlockSet& covered =
            coverage.try_emplace(candidate.profile, facts_.keys.size()).first->second;
        covered.Add(candidate.wanted);
        blocks = std::max(blocks, covered.size());
      }
      for (const auto& [profile, covered] : coverage) {
        const auto arm = source.ArmOf(encodes, *profile);
        if (covered.size() == blocks && arm.has_value()) {
          available |= control::ArmBit(*arm);
        }
      }
    }
    if (rules_.fixed != nullptr) {
      const auto arm = source.ArmOf(encodes, *rules_.fixed);
      available = arm.has_value() ? control::ArmBit(*arm) : 0;
    }
    if (controller != nullptr && available != 0 && blocks > 0) {
      control::Question question;
      question.now_us = now_us_;
      question.request = facts_.request;
      question.workload = controller->table().Workload(facts_.workload);
      question.quality = facts_.quality;
      question.tokens = int64_t{blocks} * rules_.block_size_tokens;
      question.raw_bytes = blocks * rules_.raw_bytes_per_block;
      question.us_per_byte = source.goodput.us_per_byte();
      if (computed_there > 0) {
        question.produce_us = produce_us;
        question.produce_parts = std::ceil(static_cast<double>(computed_there) *
                                           rules_.block_size_tokens / rules_.step_tokens);
      }
      question.slo_us =
          facts_.slo_end_us == 0 ? 0 : std::max<int64_t>(facts_.slo_end_us - now_us_, 1);
      question.available = available;
      if (const auto decision = controller->Decide(question, rng_); decision.has_value()) {
        choice_.decisions.push_back({index, encodes, source.generation(encodes), *decision});
        chosen = source.ProfileOf(encodes, decision->arm);
      }
    }
    if (!live.empty()) {
      // Without a controller: what every reader can use.
      const CodecProfile& profile = chosen != nullptr ? *chosen : profiles_.lossless();
      CutLive(index, live, profile, out);
    }
    std::stable_partition(stored.begin(), stored.end(), [&](const LoadCandidate& candidate) {
      return candidate.profile == chosen;
    });
    const size_t of_chosen = static_cast<size_t>(std::count_if(
        stored.begin(), stored.end(), [&](const LoadCandidate& c) { return c.profile == chosen; }));
    // Where the chosen profile has the block, the others stand back.
    for (size_t i = 0; i < stored.size(); ++i) {
      const bool covered =
          i >= of_chosen &&
          std::any_of(stored.begin(), stored.begin() + static_cast<ptrdiff_t>(of_chosen),
                      [&](const LoadCandidate& c) {
                        return c.wanted.first_block < stored[i].wanted.end_block() &&
                               stored[i].wanted.first_block < c.wanted.end_block();
                      });
      if (!covered) {
        out.push_back(stored[i]);
      }
    }
  }

  // [blocks of the request] the live run that each is in; null: none. Of runs that overlap the
  // last.
  [[nodiscard]] std::vector<const transfer::FoundObject*> RunsAt(
      const std::vector<const transfer::FoundObject*>& runs) const {
    std::vector<const transfer::FoundObject*> at(facts_.keys.size());
    for (const transfer::FoundObject* run : runs) {
      const kv::BlockRange range = RangeOf(*run);
      std::fill_n(at.begin() + range.first_block, range.num_blocks, run);
    }
    return at;
  }

  void AddStored(size_t index, const transfer::FoundObject& found,
                 std::vector<LoadCandidate>& out) const {
    LoadCandidate candidate;
    candidate.source = index;
    candidate.profile = profiles_.FindHash(found.info.key.profile_hash);
    candidate.key = found.info.key;
    candidate.object = RangeOf(found);
    candidate.wanted = MissingIn(candidate.object, missing_);
    candidate.quality = QualityFor(*candidate.profile, found.info.quality, facts_.workload);
    candidate.wire_bytes = static_cast<double>(found.info.size_bytes);
    candidate.ready_in_us = static_cast<double>(found.info.ready_in_us);
    if (candidate.wanted.num_blocks == 0 || !facts_.quality.Accepts(candidate.quality)) {
      return;
    }
    Price(candidate);
    out.push_back(candidate);
  }

  // Runs of live blocks hold every chunk of `profile` that lies within them; a chunk may begin with
  // blocks that are there and end with some that are being computed. Of a chunk only what is
  // missing here is asked for.
  void CutLive(size_t index, std::vector<const transfer::FoundObject*> runs,
               const CodecProfile& profile, std::vector<LoadCandidate>& out) const {
    // What was approximated before is not approximated again.
    std::erase_if(runs, [&](const transfer::FoundObject* run) {
      return profile.lossy && run->info.quality.fidelity == kv::Fidelity::kLossy;
    });
    const std::vector<const transfer::FoundObject*> at = RunsAt(runs);
    const ChunkLayout layout = ChunkLayout::Of(profile.chunk_tokens, rules_.block_size_tokens);
    for (const kv::BlockRange& run : missing_) {
      for (int32_t first = run.first_block; first < run.end_block();) {
        const int32_t chunk_end =
            std::min(run.end_block(), layout.FirstBlockOf(first) + layout.chunk_blocks);
        int32_t end = first;
        while (end < chunk_end && at[static_cast<size_t>(end)] != nullptr) {
          ++end;
        }
        if (end > first) {
          AddLive(index, profile, {first, end - first}, at, out);
        }
        first = std::max(end, first + 1);
      }
    }
  }

  void AddLive(size_t index, const CodecProfile& profile, const kv::BlockRange& range,
               const std::vector<const transfer::FoundObject*>& at,
               std::vector<LoadCandidate>& out) const {
    LoadCandidate candidate;
    candidate.source = index;
    candidate.profile = &profile;
    candidate.live = true;
    candidate.object = candidate.wanted = range;
    candidate.quality = profile.QualityFor(facts_.workload);
    for (int32_t block = range.first_block; block < range.end_block(); ++block) {
      const kv::ObjectInfo& info = at[static_cast<size_t>(block)]->info;
      candidate.quality = WorseOf(candidate.quality, info.quality);
      candidate.ready_in_us =
          std::max(candidate.ready_in_us, static_cast<double>(info.ready_in_us));
    }
    if (!facts_.quality.Accepts(candidate.quality)) {
      return;
    }
    const auto last = static_cast<size_t>(range.end_block() - 1);
    candidate.key = {{facts_.keys[last], facts_.numerics}, profile.hash};
    Price(candidate);
    out.push_back(candidate);
  }

  // Time to decode, and bytes on the wire of what is not encoded yet.
  void Price(LoadCandidate& candidate) const {
    const double raw = candidate.object.num_blocks * rules_.raw_bytes_per_block;
    const int64_t tokens = int64_t{candidate.object.num_blocks} * rules_.block_size_tokens;
    const ArmPrice price =
        sources_[candidate.source]->Price(candidate.live, *candidate.profile, tokens, raw);
    candidate.decode_us = price.decode_us;
    if (candidate.wire_bytes == 0) {
      candidate.wire_bytes = raw * price.wire_ratio;
    }
  }

  void Plan(std::vector<LoadCandidate> candidates) {
    // Ranges that are alike are one chunk with several encodings; of those that overlap otherwise
    // the larger one stays.
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const LoadCandidate& a, const LoadCandidate& b) {
                       return a.wanted.num_blocks > b.wanted.num_blocks;
                     });
    std::map<int32_t, std::vector<LoadCandidate>> chunks;  // by first wanted block
    for (LoadCandidate& candidate : candidates) {
      const kv::BlockRange& range = candidate.wanted;
      const auto next = chunks.lower_bound(range.first_block);
      if (next != chunks.end() && next->second[0].wanted == range) {
        next->second.push_back(std::move(candidate));
        continue;
      }
      const bool hits_next =
          next != chunks.end() && next->second[0].wanted.first_block < range.end_block();
      const bool hits_previous = next != chunks.begin() &&
                                 std::prev(next)->second[0].wanted.end_block() > range.first_block;
      if (!hits_next && !hits_previous) {
        chunks[range.first_block].push_back(std::move(candidate));
      }
    }

    double us_per_byte = 0;  // the quickest source's
    for (const auto& [first, encodings] : chunks) {
      for (const LoadCandidate& candidate : encodings) {
        const double own = sources_[candidate.source]->goodput.us_per_byte();
        us_per_byte = us_per_byte == 0 ? own : std::min(us_per_byte, own);
      }
    }
    const auto tokens_of = [&](const kv::BlockRange& range) {
      return control::TokenRange{int64_t{range.first_block} * rules_.block_size_tokens,
                                 int64_t{range.end_block()} * rules_.block_size_tokens};
    };
    std::vector<std::vector<control::LoadEncoding>> encodings;
    std::vector<control::LoadChunk> problem_chunks;
    for (auto& [first, of_chunk] : chunks) {
      std::vector<control::LoadEncoding>& list = encodings.emplace_back();
      for (const LoadCandidate& c : of_chunk) {
        list.push_back({c.wire_bytes, c.decode_us, c.ready_in_us, c.quality,
                        sources_[c.source]->goodput.us_per_byte() / us_per_byte});
      }
      const bool promised =
          std::any_of(of_chunk.begin(), of_chunk.end(),
                      [&](const LoadCandidate& c) { return c.source == rules_.promised_by; });
      const double weight = promised ? rules_.promised_compute_weight : 1;
      for (LoadCandidate& c : of_chunk) {
        c.compute_weight = weight;
      }
      problem_chunks.push_back({tokens_of(of_chunk[0].wanted), {}, weight});
    }
    for (size_t i = 0; i < encodings.size(); ++i) {
      problem_chunks[i].encodings = encodings[i];
    }
    std::vector<control::TokenRange> missing;
    for (const kv::BlockRange& range : missing_) {
      missing.push_back(tokens_of(range));
    }
    // What cannot be loaded is computed in any case.
    const control::TokenRange tail{int64_t{facts_.num_loadable} * rules_.block_size_tokens,
                                   facts_.num_tokens};
    if (tail.size() > 0) {
      if (!missing.empty() && missing.back().end >= tail.first) {
        missing.back().end = tail.end;
      } else {
        missing.push_back(tail);
      }
    }

    control::LoadProblem problem;
    problem.missing = missing;
    problem.chunks = problem_chunks;
    problem.quality = facts_.quality;
    problem.us_per_byte = us_per_byte > 0 ? us_per_byte : 1;
    problem.frames_per_chunk = rules_.frames_per_chunk;
    problem.compute = rules_.compute;
    problem.compute_factor = rules_.compute_factor;
    problem.compute_share = rules_.compute_share;
    problem.step_tokens = rules_.step_tokens;
    problem.slo_us = facts_.slo_end_us == 0 ? 0 : std::max<int64_t>(facts_.slo_end_us - now_us_, 1);
    choice_.plan = control::PlanLoad(problem);
    size_t i = 0;
    for (auto& [first, of_chunk] : chunks) {
      const int32_t encoding = choice_.plan.encoding[i++];
      if (encoding != control::LoadPlan::kCompute) {
        choice_.loads.push_back(std::move(of_chunk[static_cast<size_t>(encoding)]));
      }
    }
  }

  const LoadFacts& facts_;
  const ProfileSet& profiles_;
  const LoadRules& rules_;
  const std::span<const FoundAt> found_;
  const std::span<const kv::BlockRange> missing_;
  const std::span<SourceState* const> sources_;
  const int64_t now_us_;
  Rng& rng_;
  LoadChoice choice_;
};

}  // namespace

bool Plausible(const LoadFacts& facts, const ProfileSet& profiles, const LoadRules& rules,
               const transfer::FoundObject& found) {
  const kv::ObjectInfo& info = found.info;
  if (found.hash_index >= facts.keys.size() || info.num_blocks < 1 ||
      static_cast<uint32_t>(info.num_blocks) > found.hash_index + 1) {
    return false;
  }
  if (!(info.key.last_block.content == facts.keys[found.hash_index]) ||
      !(info.key.last_block.numerics == facts.numerics)) {
    return false;  // another block, or KV whose bits another kind of machine made
  }
  if (!(info.quality.q >= 0.0F && info.quality.q <= 1.0F) || info.ready_in_us < 0) {
    return false;
  }
  if (IsLive(found)) {
    return info.tier == kv::ObjectTier::kLive;
  }
  const CodecProfile* const profile = profiles.FindHash(info.key.profile_hash);
  if (profile == nullptr || (rules.fixed != nullptr && profile != rules.fixed)) {
    return false;
  }
  if (profile->lossy && info.quality.fidelity == kv::Fidelity::kExact) {
    return false;  // its approximation is not exact, whatever is said of it
  }
  return info.size_bytes > 0 && static_cast<double>(info.size_bytes) <=
                                    2.0 * info.num_blocks * rules.raw_bytes_per_block + 1e6;
}

kv::BlockQuality QualityFor(const CodecProfile& profile, const kv::BlockQuality& label,
                            const kv::BlockQuality& measured) {
  if (profile.lossy && label.q >= profile.q) {
    kv::BlockQuality quality = measured;
    quality.fidelity = kv::Fidelity::kLossy;
    return quality;
  }
  return WorseOf(label, measured);
}

LoadChoice ChooseLoads(const LoadFacts& facts, const ProfileSet& profiles, const LoadRules& rules,
                       std::span<const FoundAt> found, std::span<const kv::BlockRange> missing,
                       std::span<SourceState* const> sources, int64_t now_us, Rng& rng) {
  return Chooser(facts, profiles, rules, found, missing, sources, now_us, rng).Choose();
}

std::string WhyText(const LoadChoice& choice, const LoadRules& rules,
                    std::span<SourceState* const> sources) {
  int64_t blocks = 0;
  for (const LoadCandidate& load : choice.loads) {
    blocks += load.wanted.num_blocks;
  }
  std::string why =
      Format("loads %lld tokens; ", static_cast<long long>(blocks * rules.block_size_tokens)) +
      control::WhyText(choice.plan);
  if (rules.promised_by.has_value()) {
    why += Format(" (computing what a peer has counts %g times)", rules.promised_compute_weight);
  }
  for (const SourceDecision& decided : choice.decisions) {
    const SourceState& source = *sources[decided.source];
    const control::Controller* const controller = source.Existing(decided.live, decided.generation);
    const control::DecisionRecord* const record =
        controller == nullptr ? nullptr : controller->ring().Find(decided.decision.id);
    if (record != nullptr) {
      why += "; " + source.report.name + ": " + control::WhyText(*record, controller->table());
    }
  }
  return why;
}

}  // namespace kvik::connector
