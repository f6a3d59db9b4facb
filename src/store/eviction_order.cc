// SPDX-License-Identifier: Apache-2.0
#include "store/eviction_order.h"

#include <algorithm>
#include <array>
#include <deque>
#include <list>
#include <unordered_map>
#include <vector>

#include "base/check.h"

namespace kvik::store {
namespace {

// A list of slots that knows where each of them is.
template <typename T>
T& GrownAt(std::vector<T>& values, Slot slot) {
  if (slot >= values.size()) {
    values.resize(slot + 1);
  }
  return values[slot];
}

class LruOrder final : public EvictionOrder {
 public:
  void Insert(Slot slot, uint64_t /*digest*/, uint64_t /*charge_bytes*/) override {
    list_.push_back(slot);
    GrownAt(at_, slot) = std::prev(list_.end());
  }
  void Touch(Slot slot) override { list_.splice(list_.end(), list_, at_[slot]); }
  void Remove(Slot slot) override { list_.erase(at_[slot]); }
  std::optional<Slot> PopVictim(const std::function<bool(Slot)>& may_go) override {
    for (const Slot slot : list_) {
      if (may_go(slot)) {
        Remove(slot);
        return slot;
      }
    }
    return std::nullopt;
  }

 private:
  std::list<Slot> list_;  // next to go first
  std::vector<std::list<Slot>::iterator> at_;
};

class S3FifoOrder final : public EvictionOrder {
 public:
  void Insert(Slot slot, uint64_t digest, uint64_t charge_bytes) override {
    const auto ghost = ghosts_.find(digest);
    const bool known = ghost != ghosts_.end();
    if (known) {
      ghosts_.erase(ghost);
    }
    Item& item = GrownAt(items_, slot);
    item.digest = digest;
    item.charge_bytes = charge_bytes;
    item.uses = 0;
    Push(known ? kMain : kSmall, slot);
  }
  void Touch(Slot slot) override { items_[slot].uses = std::min(items_[slot].uses + 1, kMaxUses); }
  void Remove(Slot slot) override { Take(slot); }

  std::optional<Slot> PopVictim(const std::function<bool(Slot)>& may_go) override {
    // Every object is looked at often enough to lose all its rounds, then once more to be refused.
    size_t left = (kMaxUses + 2) * (queues_[kSmall].size() + queues_[kMain].size());
    for (; left > 0; --left) {
      const bool from_small =
          !queues_[kSmall].empty() &&
          (queues_[kMain].empty() || bytes_[kSmall] * 10 >= bytes_[kSmall] + bytes_[kMain]);
      const Slot slot = queues_[from_small ? kSmall : kMain].front();
      Item& item = items_[slot];
      Take(slot);
      if (from_small && item.uses > 0) {
        item.uses = 0;
        Push(kMain, slot);
      } else if (!from_small && item.uses > 0) {
        --item.uses;
        Push(kMain, slot);
      } else if (!may_go(slot)) {
        Push(kMain, slot);  // somebody is using it
      } else {
        if (from_small) {
          Remember(item.digest);
        }
        return slot;
      }
    }
    return std::nullopt;
  }

 private:
  enum QueueName : uint8_t { kSmall, kMain };
  static constexpr int kMaxUses = 3;
  struct Item {
    uint64_t digest = 0;
    uint64_t charge_bytes = 0;
    int uses = 0;
    QueueName queue = kSmall;
    std::list<Slot>::iterator at;
  };

  void Push(QueueName queue, Slot slot) {
    Item& item = items_[slot];
    queues_[queue].push_back(slot);
    item.queue = queue;
    item.at = std::prev(queues_[queue].end());
    bytes_[queue] += item.charge_bytes;
  }
  void Take(Slot slot) {
    const Item& item = items_[slot];
    queues_[item.queue].erase(item.at);
    bytes_[item.queue] -= item.charge_bytes;
  }
  // As many are known as the main queue holds, and a few when it holds none.
  void Remember(uint64_t digest) {
    const uint64_t turn = ++ghost_turn_;
    ghosts_[digest] = turn;
    ghost_queue_.push_back({digest, turn});
    const size_t keep = std::max<size_t>(queues_[kMain].size(), 64);
    while (ghost_queue_.size() > keep) {
      const auto found = ghosts_.find(ghost_queue_.front().digest);
      if (found != ghosts_.end() && found->second == ghost_queue_.front().turn) {
        ghosts_.erase(found);
      }
      ghost_queue_.pop_front();
    }
  }

  struct Ghost {
    uint64_t digest;
    uint64_t turn;  // of its last addition: an older mention of it in the queue is void
  };
  std::array<std::list<Slot>, 2> queues_;  // next to be looked at first
  std::array<uint64_t, 2> bytes_ = {};
  std::vector<Item> items_;  // by slot
  std::unordered_map<uint64_t, uint64_t> ghosts_;
  std::deque<Ghost> ghost_queue_;
  uint64_t ghost_turn_ = 0;
};

}  // namespace

const char* EvictionKindName(EvictionKind kind) {
  return kind == EvictionKind::kLru ? "lru" : "s3fifo";
}

std::optional<EvictionKind> ParseEvictionKind(std::string_view name) {
  for (const EvictionKind kind : {EvictionKind::kLru, EvictionKind::kS3Fifo}) {
    if (name == EvictionKindName(kind)) {
      return kind;
    }
  }
  return std::nullopt;
}

std::unique_ptr<EvictionOrder> MakeEvictionOrder(EvictionKind kind) {
  if (kind == EvictionKind::kLru) {
    return std::make_unique<LruOrder>();
  }
  return std::make_unique<S3FifoOrder>();
}

}  // namespace kvik::store
