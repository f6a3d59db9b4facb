// SPDX-License-Identifier: Apache-2.0
#include "connector/chunk_sender.h"

#include <algorithm>
#include <utility>

namespace kvik::connector {
namespace {

constexpr int32_t kLayersAhead = 4;

// With the head in it. It names the blocks that are sent, whatever somebody asked for.
std::vector<std::byte> BeginObject(const ChunkSenderSpec& spec) {
  ObjectHead head;
  head.key = {spec.blocks.back()->sealed().key, spec.profile->hash};
  head.parent = spec.parent;
  head.source = spec.source;
  for (const HeldBlockPtr& block : spec.blocks) {
    head.blocks.push_back(block->sealed().key.content.hash);
  }
  std::vector<std::byte> out;
  AppendHead(head, out);
  return out;
}

}  // namespace

std::shared_ptr<ChunkSender> ChunkSender::Create(ChunkSenderSpec spec,
                                                 std::shared_ptr<transfer::GetReply> reply,
                                                 IoPool& io, ScratchPool& scratch,
                                                 const Clock& clock, Done done) {
  return std::shared_ptr<ChunkSender>(
      new ChunkSender(std::move(spec), std::move(reply), io, scratch, clock, std::move(done)));
}

ChunkSender::ChunkSender(ChunkSenderSpec spec, std::shared_ptr<transfer::GetReply> reply,
                         IoPool& io, ScratchPool& scratch, const Clock& clock, Done done)
    : spec_(std::move(spec)),
      reply_(std::move(reply)),
      io_(io),
      scratch_(scratch),
      clock_(clock),
      done_(std::move(done)),
      blocks_(spec_.blocks),
      stream_(BeginObject(spec_)),
      writer_(*spec_.profile->codec, stream_) {
  for (const HeldBlockPtr& block : spec_.blocks) {
    ids_.push_back(block->sealed().block);
  }
}

void ChunkSender::Start() {
  reply_->Begin(spec_.index, spec_.info);
  bool report = false;
  {
    MutexLock lock(mutex_);
    PostTasks();
    report = Over();
  }
  if (report) {
    Report();
  }
}

void ChunkSender::OnRoom() {
  bool report = false;
  {
    MutexLock lock(mutex_);
    Emit();
    PostTasks();
    report = Over();
  }
  if (report) {
    Report();
  }
}

void ChunkSender::Stop() {
  bool report = false;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    report = Over();
  }
  if (report) {
    Report();
  }
}

void ChunkSender::PostTasks() {
  const int most = std::max(io_.num_threads(), 1);
  while (!stopped_ && tasks_ < most && next_encode_ + tasks_ < spec_.geometry.num_layers &&
         next_encode_ + tasks_ < next_send_ + kLayersAhead) {
    if (!io_.Post([self = shared_from_this()] { self->EncodeOne(); })) {
      stopped_ = true;
      return;
    }
    ++tasks_;
  }
}

void ChunkSender::EncodeOne() {
  int32_t layer = -1;
  {
    MutexLock lock(mutex_);
    if (!stopped_ && next_encode_ < spec_.geometry.num_layers) {
      layer = next_encode_++;
    }
  }
  bool report = false;
  if (layer >= 0) {
    const ChunkPages pages{&spec_.geometry, spec_.arena, spec_.first_block, ids_};
    std::vector<std::byte> frame;
    const int64_t begin_us = clock_.NowMicros();
    const auto encoded = [&] {
      ScratchPool::Loan scratch = scratch_.Take();
      return EncodeLayer(*spec_.profile->codec, pages, layer, *scratch, frame);
    }();
    const int64_t took_us = clock_.NowMicros() - begin_us;
    MutexLock lock(mutex_);
    --tasks_;
    sent_.encode_us += took_us;
    if (!encoded.has_value()) {
      if (!stopped_) {
        reply_->Fail(spec_.index, encoded.error());
      }
      stopped_ = true;
    } else if (!stopped_) {
      encoded_[layer] = std::move(frame);
      Emit();
      PostTasks();
    }
    report = Over();
  } else {
    MutexLock lock(mutex_);
    --tasks_;
    report = Over();
  }
  if (report) {
    Report();
  }
}

// Sends what is next in order while there is room.
void ChunkSender::Emit() {
  while (!stopped_ && !reported_) {
    if (unsent_.empty()) {
      if (finished_) {
        reply_->End(spec_.index, {spec_.waited_us, sent_.encode_us});
        sent_.ok = true;
        stopped_ = true;
        return;
      }
      const auto next = encoded_.find(next_send_);
      if (next != encoded_.end()) {
        writer_.AddEncoded(next->second);
        encoded_.erase(next);
        ++next_send_;
      } else if (next_send_ == spec_.geometry.num_layers) {
        writer_.Finish();
        finished_ = true;
      } else {
        return;
      }
      sent_.wire_bytes += stream_.size();
      unsent_ = transfer::SharedBytes::Own(std::exchange(stream_, {}));
    }
    switch (reply_->Append(spec_.index, unsent_)) {
      case transfer::SendResult::kTaken:
        unsent_ = {};
        break;
      case transfer::SendResult::kFull:
        return;
      case transfer::SendResult::kEnded:
        stopped_ = true;
        return;
    }
  }
}

bool ChunkSender::Over() {
  // Blocks are needed only as long as layers are encoded.
  if (tasks_ == 0 && (stopped_ || next_encode_ == spec_.geometry.num_layers)) {
    blocks_.clear();
  }
  return stopped_ && tasks_ == 0 && !std::exchange(reported_, true);
}

void ChunkSender::Report() {
  Done done;
  ChunkSent sent;
  {
    MutexLock lock(mutex_);
    done = std::move(done_);
    done_ = nullptr;
    sent = sent_;
  }
  done(sent);
}

}  // namespace kvik::connector
