// SPDX-License-Identifier: Apache-2.0
#include "connector/chunk_load.h"

#include <utility>

#include "base/check.h"
#include "connector/load_choice.h"

namespace kvik::connector {

std::shared_ptr<ChunkLoad> ChunkLoad::Create(ChunkLoadSpec spec, IoPool& io, ScratchPool& scratch,
                                             const Clock& clock, Done done) {
  return std::shared_ptr<ChunkLoad>(
      new ChunkLoad(std::move(spec), io, scratch, clock, std::move(done)));
}

ChunkLoad::ChunkLoad(ChunkLoadSpec spec, IoPool& io, ScratchPool& scratch, const Clock& clock,
                     Done done)
    : spec_(std::move(spec)),
      io_(io),
      scratch_(scratch),
      clock_(clock),
      done_(std::move(done)),
      reader_(MaxFrameBytes(Pages())),
      tally_(spec_.geometry.num_layers) {}

ChunkPages ChunkLoad::Pages() const {
  return {&spec_.geometry, spec_.arena, spec_.first_block, spec_.blocks};
}

void ChunkLoad::Act::operator()(ChunkLoad& load) {
  if (cancel != nullptr) {
    cancel->Cancel();
  }
  if (report) {
    Done done;
    ChunkOutcome outcome;
    {
      MutexLock lock(load.mutex_);
      done = std::move(load.done_);
      load.done_ = nullptr;
      outcome = std::move(load.outcome_);
      load.outcome_ = {};
    }
    done(std::move(outcome));
  }
}

void ChunkLoad::Stop(Error error, bool damaged) {
  if (stopped_) {
    return;
  }
  stopped_ = true;
  outcome_.result = std::move(error);
  outcome_.damaged = damaged;
  incoming_.clear();
}

// What follows from what just happened.
ChunkLoad::Act ChunkLoad::Settle() {
  Act act;
  if (reported_) {
    return act;
  }
  if (!stopped_) {
    if (!call_over_ || cutting_ || !incoming_.empty() || queued_ != 0 || writing_ != 0) {
      return act;
    }
    if (!whole_ || !tally_.complete()) {
      Stop(Err(ErrorCode::kCorrupt, "the object ends before all of its layers came"), true);
    }
  }
  act.cancel = std::exchange(call_, nullptr);
  if (writing_ == 0) {
    reported_ = true;
    act.report = true;
    if (!stopped_) {
      outcome_.fidelity = tally_.fidelity();
      outcome_.dropped = std::move(tally_.dropped());
      outcome_.bytes = std::move(kept_);
    }
  }
  return act;
}

void ChunkLoad::SetCall(std::shared_ptr<transfer::CallHandle> call) {
  if (call == nullptr) {
    return;
  }
  {
    MutexLock lock(mutex_);
    if (!stopped_) {
      if (!call_over_) {
        call_ = std::move(call);
      }
      return;
    }
  }
  call->Cancel();
}

void ChunkLoad::Cancel() {
  Act act;
  {
    MutexLock lock(mutex_);
    if (!stopped_ && !reported_) {
      Stop(Err(ErrorCode::kUnavailable, "cancelled"), false);
      outcome_.cancelled = true;
    }
    act = Settle();
  }
  act(*this);
}

uint64_t ChunkLoad::received_bytes() const {
  MutexLock lock(mutex_);
  return outcome_.wire_bytes;
}

void ChunkLoad::OnObject(size_t /*index*/, const kv::ObjectInfo& info) {
  Act act;
  {
    MutexLock lock(mutex_);
    if (!stopped_) {
      if (!(info.key == spec_.key) ||
          info.num_blocks != static_cast<int32_t>(spec_.blocks.size())) {
        Stop(Err(ErrorCode::kCorrupt, "another object came: %d blocks instead of %zu",
                 info.num_blocks, spec_.blocks.size()),
             true);
      } else {
        announced_ = true;
        outcome_.quality = info.quality;
      }
    }
    act = Settle();
  }
  act(*this);
}

void ChunkLoad::OnBytes(size_t /*index*/, transfer::SharedBytes bytes) {
  Act act;
  {
    MutexLock lock(mutex_);
    outcome_.wire_bytes += bytes.size_bytes();
    if (!stopped_) {
      if (!announced_ || ended_ || outcome_.wire_bytes > MaxObjectBytes(Pages())) {
        Stop(Err(ErrorCode::kCorrupt, "%llu bytes came: more than such an object can have",
                 static_cast<unsigned long long>(outcome_.wire_bytes)),
             true);
      } else {
        incoming_.push_back(std::move(bytes));
        StartCutting();
      }
    }
    act = Settle();
  }
  act(*this);
}

void ChunkLoad::OnObjectTimes(size_t /*index*/, const transfer::ObjectTimes& times) {
  MutexLock lock(mutex_);
  outcome_.times = times;
}

void ChunkLoad::OnObjectEnd(size_t /*index*/, const Result<void>& outcome) {
  Act act;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    if (!outcome.has_value()) {
      // A link that damages says nothing of the object, and a source that found it damaged has
      // seen to it: only bytes that came and are not the object speak against it.
      Stop(outcome.error(), false);
    }
    act = Settle();
  }
  act(*this);
}

void ChunkLoad::OnDone(const Result<void>& outcome, const transfer::StreamStats& stats) {
  Act act;
  {
    MutexLock lock(mutex_);
    call_ = nullptr;
    call_over_ = true;
    outcome_.stats = stats;
    if (!outcome.has_value() && !ended_) {
      Stop(outcome.error(), false);
    } else if (!ended_) {
      Stop(Err(ErrorCode::kInternal, "the source said nothing of the object"), false);
    }
    act = Settle();
  }
  act(*this);
}

void ChunkLoad::StartCutting() {
  if (cutting_) {
    return;
  }
  cutting_ = true;
  if (!io_.Post([self = shared_from_this()] { self->Cut(); })) {
    cutting_ = false;
    Stop(Err(ErrorCode::kUnavailable, "shutting down"), false);
  }
}

// Takes the head from the first bytes; `rest` is what follows of them, and nothing until the head
// is whole. The head, once: when it became whole and is the one that was asked for.
Result<std::optional<ObjectHead>> ChunkLoad::Identify(std::span<const std::byte>& rest) {
  front_.insert(front_.end(), rest.begin(), rest.end());
  KVIK_ASSIGN(std::optional<ReadHead> read, ReadObjectHead(front_));
  if (!read.has_value()) {
    rest = {};
    return std::optional<ObjectHead>();
  }
  KVIK_TRY(read->head.CheckIs(spec_.key, spec_.hashes));
  if (spec_.profile->lossy && read->head.source.fidelity == kv::Fidelity::kLossy) {
    return Err(ErrorCode::kCorrupt, "an approximation of an approximation");
  }
  identified_ = true;
  rest = std::span<const std::byte>(front_).subspan(read->size_bytes);
  return std::optional(std::move(read->head));
}

// One task at a time: frames are cut in order.
void ChunkLoad::Cut() {
  for (;;) {
    std::vector<transfer::SharedBytes> pieces;
    Act act;
    bool over = false;
    {
      MutexLock lock(mutex_);
      pieces.swap(incoming_);
      if (pieces.empty() || stopped_) {
        cutting_ = false;
        over = true;
        act = Settle();
      }
    }
    if (over) {
      act(*this);
      return;
    }
    for (transfer::SharedBytes& piece : pieces) {
      std::span<const std::byte> rest = piece.span();
      if (spec_.keep_bytes) {
        kept_.insert(kept_.end(), rest.begin(), rest.end());
      }
      if (!identified_) {
        const auto head = Identify(rest);
        MutexLock lock(mutex_);
        if (!head.has_value()) {
          Stop(head.error(), true);
          break;
        }
        if (head->has_value()) {
          outcome_.quality = WorseOf(outcome_.quality, (*head)->source);
          outcome_.parent = (*head)->parent;
        }
      }
      reader_.Feed(rest);
      piece = {};  // the sender may go on
      for (;;) {
        auto next = reader_.Next();
        MutexLock lock(mutex_);
        if (!next.has_value()) {
          Stop(next.error(), true);
        } else if (reader_.header().has_value() &&
                   (reader_.header()->profile_hash != spec_.profile->hash ||
                    reader_.header()->model_fingerprint !=
                        spec_.profile->codec->model().fingerprint)) {
          Stop(Err(ErrorCode::kCorrupt, "an object of another model or profile"), true);
        }
        if (stopped_) {
          break;
        }
        if (!next->has_value()) {
          whole_ = reader_.complete();
          break;
        }
        ++queued_;
        const auto frame = **next;
        if (!io_.Post([self = shared_from_this(),
                       bytes = std::vector<std::byte>(frame.begin(), frame.end())] {
              self->Decode(bytes);
            })) {
          --queued_;
          Stop(Err(ErrorCode::kUnavailable, "shutting down"), false);
        }
      }
    }
  }
}

void ChunkLoad::Decode(const std::vector<std::byte>& frame) {
  {
    MutexLock lock(mutex_);
    --queued_;
    if (stopped_) {
      return;  // whoever stopped it has settled it
    }
    ++writing_;
  }
  const int64_t begin_us = clock_.NowMicros();
  auto layer = [&] {
    ScratchPool::Loan scratch = scratch_.Take();
    return DecodeLayer(*spec_.profile->codec, frame, Pages(), *scratch);
  }();
  const int64_t took_us = clock_.NowMicros() - begin_us;
  Act act;
  {
    MutexLock lock(mutex_);
    --writing_;
    outcome_.decode_us += took_us;
    if (!stopped_) {
      const Result<void> added =
          layer.has_value() ? tally_.Add(std::move(layer).value()) : Result<void>(layer.error());
      if (!added.has_value()) {
        Stop(added.error(), true);
      }
    }
    act = Settle();
  }
  act(*this);
}

}  // namespace kvik::connector
