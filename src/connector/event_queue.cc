// SPDX-License-Identifier: Apache-2.0
#include "connector/event_queue.h"

namespace kvik::connector {

void EventQueue::Open(std::function<void()> wake) {
  MutexLock lock(mutex_);
  open_ = true;
  wake_ = std::move(wake);
}

void EventQueue::Close() {
  MutexLock lock(mutex_);
  open_ = false;
  wake_ = nullptr;
  events_.clear();
}

void EventQueue::Push(kv::ConnectorEvent event) {
  MutexLock lock(mutex_);
  if (!open_) {
    return;
  }
  events_.push_back(std::move(event));
  // Under the lock, so that Close ends all calls. It is cheap and takes no lock of ours.
  if (wake_) {
    wake_();
  }
}

void EventQueue::PushReleased(BlockId block) {
  MutexLock lock(mutex_);
  ++released_;
  if (!open_) {
    return;
  }
  if (!events_.empty()) {
    if (auto* const last = std::get_if<kv::Released>(&events_.back())) {
      last->blocks.push_back(block);
      return;
    }
  }
  events_.emplace_back(kv::Released{{block}});
  if (wake_) {
    wake_();
  }
}

void EventQueue::Forget(kv::TicketId ticket) {
  MutexLock lock(mutex_);
  std::erase_if(events_, [ticket](const kv::ConnectorEvent& event) {
    const auto* const answered = std::get_if<kv::Answered>(&event);
    const auto* const failed = std::get_if<kv::Failed>(&event);
    return (answered != nullptr && answered->ticket == ticket) ||
           (failed != nullptr && failed->ticket == ticket);
  });
}

std::vector<kv::ConnectorEvent> EventQueue::Take() {
  MutexLock lock(mutex_);
  return std::exchange(events_, {});
}

int64_t EventQueue::released() const {
  MutexLock lock(mutex_);
  return released_;
}

}  // namespace kvik::connector
