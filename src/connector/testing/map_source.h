// SPDX-License-Identifier: Apache-2.0
// connector/testing/map_source.h: a store that lives in a map and does everything wrong that stores
// and networks do wrong, by chance and by the clock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/rng.h"
#include "connector/source.h"

namespace kvik::connector::testing {

// Chances of each fault, for one call.
struct MapFaults {
  double lookup_error = 0;
  double lookup_silence = 0;  // answers at the deadline
  double lookup_lies = 0;     // an object that is not what is said of it
  double get_error = 0;
  double get_damaged_link = 0;  // part of it comes, then the connection ends as corrupt
  double get_silence = 0;
  double get_truncated = 0;
  double get_flipped = 0;
  double get_swapped = 0;  // another object under the same name
  double put_error = 0;
  int64_t longest_delay_us = 0;
};

class MapSource final : public ObjectSource, public ObjectTarget {
 public:
  MapSource(std::string name, const Clock& clock, uint64_t seed)
      : name_(std::move(name)), clock_(clock), rng_(seed, 5) {}

  MapFaults faults;

  [[nodiscard]] std::string name() const override { return name_; }

  void Lookup(const transfer::LookupRequest& request, int64_t deadline_us, Found done) override {
    ++lookups;
    if (Chance(faults.lookup_error)) {
      Later(0, [done] { done(Err(ErrorCode::kUnavailable, "made to fail")); });
      return;
    }
    if (Chance(faults.lookup_silence)) {
      At(deadline_us, [done] { done(Err(ErrorCode::kTimeout, "made to be silent")); });
      return;
    }
    std::vector<transfer::FoundObject> found;
    for (uint32_t i = 0; i < request.hashes.size(); ++i) {
      const kv::ContentKey key{request.hashes[i], request.domain};
      for (const auto& [object_key, object] : objects_) {
        if (object_key.last_block.content == key &&
            object_key.last_block.numerics == request.numerics) {
          found.push_back({i, object.info});
        }
      }
    }
    if (!found.empty() && Chance(faults.lookup_lies)) {
      transfer::FoundObject& lie = found[rng_.Below(found.size())];
      switch (rng_.Below(5)) {
        case 0:
          lie.hash_index += 1000;
          break;
        case 1:
          lie.info.num_blocks = static_cast<int32_t>(rng_.Below(100)) - 20;
          break;
        case 2:
          lie.info.key.last_block.numerics.value ^= 1;
          break;
        case 3:
          lie.info.quality = {kv::Fidelity::kExact, 1.0F};
          break;
        default:
          lie.info.size_bytes = uint64_t{1} << 60;
      }
    }
    Later(Delay(), [done, found] { done(found); });
  }

  std::shared_ptr<transfer::CallHandle> Get(const kv::ObjectKey& key, int32_t /*num_blocks*/,
                                            int64_t deadline_us,
                                            std::shared_ptr<transfer::GetSink> sink,
                                            uint8_t /*priority*/) override {
    ++gets;
    auto call = std::make_shared<Call>(std::move(sink));
    if (Chance(faults.get_silence)) {
      At(deadline_us, [call] { call->End(Err(ErrorCode::kTimeout, "made to be silent")); });
      return call;
    }
    auto found = objects_.find(key);
    if (found == objects_.end() || Chance(faults.get_error)) {
      Later(Delay(), [call] { call->End(Err(ErrorCode::kNotFound, "gone")); });
      return call;
    }
    if (Chance(faults.get_swapped)) {
      found = std::next(objects_.begin(), static_cast<ptrdiff_t>(rng_.Below(objects_.size())));
    }
    kv::ObjectInfo info = objects_.at(key).info;
    std::vector<std::byte> bytes = found->second.bytes;
    const bool damaged_link = Chance(faults.get_damaged_link);
    if (damaged_link || Chance(faults.get_truncated)) {
      bytes.resize(rng_.Below(bytes.size()));
    }
    if (Chance(faults.get_flipped) && !bytes.empty()) {
      bytes[rng_.Below(bytes.size())] ^= std::byte{static_cast<uint8_t>(1 + rng_.Below(255))};
    }
    // In pieces of any size, with pauses.
    int64_t time = clock_.NowMicros() + Delay();
    At(time, [call, info] { call->Begin(info); });
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min<size_t>(bytes.size() - at, 1 + rng_.Below(9000));
      std::vector<std::byte> piece(bytes.begin() + static_cast<ptrdiff_t>(at),
                                   bytes.begin() + static_cast<ptrdiff_t>(at + size));
      time += faults.longest_delay_us > 0
                  ? static_cast<int64_t>(
                        rng_.Below(static_cast<uint64_t>(faults.longest_delay_us) / 8 + 1))
                  : 0;
      At(time, [call, piece] { call->Bytes(piece); });
      at += size;
    }
    if (damaged_link) {
      At(std::min(time, deadline_us),
         [call] { call->End(Err(ErrorCode::kCorrupt, "the payload of a frame is damaged")); });
    } else if (time < deadline_us) {
      At(time, [call] { call->End({}); });
    } else {
      At(deadline_us, [call] { call->End(Err(ErrorCode::kTimeout, "too late")); });
    }
    return call;
  }

  void Discard(const kv::ObjectKey& key) override {
    discards += static_cast<int64_t>(objects_.erase(key));
  }
  [[nodiscard]] std::optional<control::MachineSpeeds> sender_speeds() const override {
    return std::nullopt;
  }

  void Put(NewObject object, int64_t /*deadline_us*/, Stored done) override {
    if (Chance(faults.put_error)) {
      Later(Delay(), [done] { done(Err(ErrorCode::kExhausted, "made to be full")); });
      return;
    }
    const auto bytes = object.bytes.span();
    ++puts;
    objects_[object.info.key] = {
        object.info, {bytes.begin(), bytes.end()}, object.blocks, object.parent};
    Later(Delay(), [done] { done({}); });
  }

  // Runs what is due by the clock; whether anything was.
  bool RunDue() {
    bool any = false;
    while (!timed_.empty() && timed_.begin()->first <= clock_.NowMicros()) {
      auto task = std::move(timed_.begin()->second);
      timed_.erase(timed_.begin());
      task();
      any = true;
    }
    return any;
  }

  struct Entry {
    kv::ObjectInfo info;
    std::vector<std::byte> bytes;
    std::vector<kv::BlockHash> blocks;
    kv::BlockHash parent;
  };
  [[nodiscard]] std::map<kv::ObjectKey, Entry,
                         bool (*)(const kv::ObjectKey&, const kv::ObjectKey&)>&
  objects() {
    return objects_;
  }

  int64_t lookups = 0;
  int64_t gets = 0;
  int64_t puts = 0;
  int64_t discards = 0;

 private:
  // One Get, as its sink sees it; silent once it has ended.
  class Call final : public transfer::CallHandle {
   public:
    explicit Call(std::shared_ptr<transfer::GetSink> sink) : sink_(std::move(sink)) {}
    void Begin(const kv::ObjectInfo& info) {
      if (sink_ != nullptr) {
        sink_->OnObject(0, info);
      }
    }
    void Bytes(const std::vector<std::byte>& bytes) {
      if (sink_ != nullptr) {
        sink_->OnBytes(0, transfer::SharedBytes::Own(bytes));
      }
    }
    void End(const Result<void>& outcome) {
      if (const auto sink = std::exchange(sink_, nullptr); sink != nullptr) {
        sink->OnObjectEnd(0, outcome);
        sink->OnDone(outcome, {});
      }
    }
    void Cancel() override { End(Err(ErrorCode::kUnavailable, "cancelled")); }

   private:
    std::shared_ptr<transfer::GetSink> sink_;
  };

  static bool Less(const kv::ObjectKey& a, const kv::ObjectKey& b) {
    const auto& x = a.last_block.content.hash.bytes;
    const auto& y = b.last_block.content.hash.bytes;
    return x != y ? x < y : a.profile_hash < b.profile_hash;
  }
  bool Chance(double chance) { return chance > 0 && rng_.Uniform() < chance; }
  int64_t Delay() {
    return faults.longest_delay_us == 0
               ? 0
               : static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(faults.longest_delay_us)));
  }
  void At(int64_t time_us, std::function<void()> task) { timed_.emplace(time_us, std::move(task)); }
  void Later(int64_t delay_us, std::function<void()> task) {
    At(clock_.NowMicros() + delay_us, std::move(task));
  }

  const std::string name_;
  const Clock& clock_;
  Rng rng_;
  std::map<kv::ObjectKey, Entry, bool (*)(const kv::ObjectKey&, const kv::ObjectKey&)> objects_{
      &Less};
  std::multimap<int64_t, std::function<void()>> timed_;
};

}  // namespace kvik::connector::testing
