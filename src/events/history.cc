// SPDX-License-Identifier: Apache-2.0
#include "events/history.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvik::events {
namespace {

using kv::BlockEvent;
using kv::BlockEventKind;
using kv::BlockHash;
using kv::BlockMedium;

// Of what is told when starting over: a follower gets through one event at once.
constexpr size_t kMaxRunBlocks = 1024;

BlockEvent Cleared() {
  BlockEvent event;
  event.kind = BlockEventKind::kCleared;
  return event;
}

}  // namespace

size_t EventHistory::PlaceHash::operator()(const Place& place) const {
  uint64_t part = 0;
  std::memcpy(&part, place.hash.bytes.data(), sizeof part);
  return part ^ static_cast<uint64_t>(place.medium);
}

void EventHistory::TakeStored(const BlockEvent& event, std::vector<BlockEvent>& news) {
  const size_t block_tokens = event.blocks.empty() ? 0 : event.tokens.size() / event.blocks.size();
  const bool has_extra = !event.extra.adapter.empty() || !event.extra.cache_salt.empty();
  const auto extra = has_extra ? std::make_shared<const kv::ExtraKeys>(event.extra) : nullptr;
  bool goes_on = false;  // the last of the news ends where the next block begins
  for (size_t i = 0; i < event.blocks.size(); ++i) {
    Held& held = held_[Place{event.medium, event.blocks[i]}];
    if (++held.sources > 1) {
      goes_on = false;
      continue;
    }
    held.parent = i == 0 ? event.parent : std::optional(event.blocks[i - 1]);
    const auto tokens = std::span(event.tokens).subspan(i * block_tokens, block_tokens);
    held.tokens.assign(tokens.begin(), tokens.end());
    held.extra = extra;
    if (!goes_on) {
      BlockEvent run;
      run.medium = event.medium;
      run.parent = held.parent;
      run.extra = event.extra;
      news.push_back(std::move(run));
      goes_on = true;
    }
    news.back().blocks.push_back(event.blocks[i]);
    news.back().tokens.insert(news.back().tokens.end(), tokens.begin(), tokens.end());
  }
}

void EventHistory::TakeRemoved(const BlockEvent& event, std::vector<BlockEvent>& news) {
  BlockEvent removed;
  removed.kind = BlockEventKind::kRemoved;
  removed.medium = event.medium;
  for (const BlockHash& hash : event.blocks) {
    const auto it = held_.find(Place{event.medium, hash});
    if (it == held_.end()) {
      continue;  // of before a loss
    }
    if (--it->second.sources == 0) {
      held_.erase(it);
      removed.blocks.push_back(hash);
    }
  }
  if (!removed.blocks.empty()) {
    news.push_back(std::move(removed));
  }
}

void EventHistory::TakeCleared(BlockMedium medium, std::vector<BlockEvent>& news) {
  BlockEvent removed;
  removed.kind = BlockEventKind::kRemoved;
  removed.medium = medium;
  for (auto it = held_.begin(); it != held_.end();) {
    if (it->first.medium != medium) {
      ++it;
      continue;
    }
    removed.blocks.push_back(it->first.hash);
    it = held_.erase(it);
  }
  if (removed.blocks.empty()) {
    return;
  }
  // On the wire clearing knows no medium.
  news.push_back(held_.empty() ? Cleared() : std::move(removed));
}

void EventHistory::Take(BlockEvent event, std::vector<BlockEvent>& news) {
  switch (event.kind) {
    case BlockEventKind::kStored:
      return TakeStored(event, news);
    case BlockEventKind::kRemoved:
      return TakeRemoved(event, news);
    case BlockEventKind::kCleared:
      return TakeCleared(event.medium, news);
  }
}

EventHistory::Message EventHistory::Keep(double unix_seconds, const std::vector<BlockEvent>& news,
                                         int32_t block_size_tokens) {
  const WireForm form{block_size_tokens, options_.int_block_hashes};
  Message message{next_++,
                  std::make_shared<const std::string>(EncodeBatch(unix_seconds, news, form))};
  start_over_.reset();
  batch_bytes_ += message.payload->size();
  batches_.push_back(message);
  while (batches_.size() > 1 &&
         (batches_.size() > options_.max_batches || batch_bytes_ > options_.max_bytes)) {
    batch_bytes_ -= batches_.front().payload->size();
    batches_.pop_front();
  }
  return message;
}

std::optional<EventHistory::Message> EventHistory::Append(double unix_seconds,
                                                          std::vector<BlockEvent> events,
                                                          int32_t block_size_tokens) {
  std::vector<BlockEvent> news;
  for (BlockEvent& event : events) {
    Take(std::move(event), news);
  }
  if (news.empty()) {
    return std::nullopt;
  }
  return Keep(unix_seconds, news, block_size_tokens);
}

EventHistory::Message EventHistory::AppendAfterLoss(double unix_seconds,
                                                    std::vector<BlockEvent> events,
                                                    int32_t block_size_tokens) {
  held_.clear();
  batches_.clear();  // what was before is no way to what is now
  batch_bytes_ = 0;
  ++next_;
  std::vector<BlockEvent> news = {Cleared()};
  for (BlockEvent& event : events) {
    Take(std::move(event), news);
  }
  return Keep(unix_seconds, news, block_size_tokens);
}

std::vector<EventHistory::Message> EventHistory::From(uint64_t sequence, double unix_seconds,
                                                      int32_t block_size_tokens) {
  if (sequence >= next_) {
    return {};
  }
  if (sequence >= batches_.front().sequence) {
    return {batches_.begin() + static_cast<std::ptrdiff_t>(sequence - batches_.front().sequence),
            batches_.end()};
  }
  if (!start_over_) {
    const WireForm form{block_size_tokens, options_.int_block_hashes};
    start_over_ =
        Message{next_ - 1,
                std::make_shared<const std::string>(EncodeBatch(unix_seconds, Everything(), form))};
  }
  return {*start_over_};
}

// Parents before their children, as whoever builds a tree of it needs them.
std::vector<BlockEvent> EventHistory::Everything() const {
  using Entry = std::pair<const Place, Held>;
  std::unordered_map<Place, std::vector<const Entry*>, PlaceHash> children;
  std::vector<const Entry*> next;
  for (const Entry& entry : held_) {
    const auto& [place, held] = entry;
    const auto parent = held.parent ? Place{place.medium, *held.parent} : Place{};
    if (held.parent && held_.contains(parent)) {
      children[parent].push_back(&entry);
    } else {
      next.push_back(&entry);
    }
  }
  std::vector<BlockEvent> events = {Cleared()};
  while (!next.empty()) {
    const Entry* entry = next.back();
    next.pop_back();
    BlockEvent run;
    run.medium = entry->first.medium;
    run.parent = entry->second.parent;
    if (entry->second.extra != nullptr) {
      run.extra = *entry->second.extra;
    }
    const bool has_tokens = !entry->second.tokens.empty();
    while (entry != nullptr) {
      const auto& [place, held] = *entry;
      run.blocks.push_back(place.hash);
      run.tokens.insert(run.tokens.end(), held.tokens.begin(), held.tokens.end());
      entry = nullptr;
      const auto it = children.find(place);
      if (it == children.end()) {
        break;
      }
      for (const Entry* child : it->second) {
        if (entry == nullptr && child->second.tokens.empty() != has_tokens &&
            run.blocks.size() < kMaxRunBlocks) {
          entry = child;
        } else {
          next.push_back(child);
        }
      }
    }
    events.push_back(std::move(run));
  }
  return events;
}

}  // namespace kvik::events
