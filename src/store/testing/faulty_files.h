// SPDX-License-Identifier: Apache-2.0
// store/testing/faulty_files.h: a disk in memory that can be full, slow to take bytes, wrong or
// switched off.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "store/file_system.h"

namespace kvik::store::testing {

// Thread-safe. Outlives its files.
class FaultyFiles final : public FileSystem {
 public:
  explicit FaultyFiles(uint64_t seed) : rng_(seed) {}

  // Bytes that all files may take together.
  void SetCapacity(uint64_t bytes) {
    Locked([&] { capacity_bytes_ = bytes; });
  }
  // A write takes a random part of what it is given.
  void SetShortWrites(bool on) {
    Locked([&] { short_writes_ = on; });
  }
  // A read returns one wrong bit with this probability; the bytes themselves stay right.
  void SetReadFlips(double probability) {
    Locked([&] { read_flips_ = probability; });
  }
  // Reads, writes or syncs fail with this probability.
  void SetReadErrors(double probability) {
    Locked([&] { read_errors_ = probability; });
  }
  void SetWriteErrors(double probability) {
    Locked([&] { write_errors_ = probability; });
  }
  void SetSyncErrors(double probability) {
    Locked([&] { sync_errors_ = probability; });
  }
  void SetRemoveErrors(double probability) {
    Locked([&] { remove_errors_ = probability; });
  }
  void HealAll() {
    Locked([&] {
      capacity_bytes_ = ~uint64_t{0};
      short_writes_ = false;
      read_flips_ = read_errors_ = write_errors_ = sync_errors_ = remove_errors_ = 0;
    });
  }

  // One bit of what is stored, anywhere in the folder.
  void FlipStoredBit() {
    Locked([&] {
      uint64_t total = 0;
      for (const auto& [path, data] : data_) {
        total += data->bytes.size();
      }
      uint64_t at = total == 0 ? 0 : rng_.Below(total);
      for (const auto& [path, data] : data_) {
        if (at < data->bytes.size()) {
          data->bytes[at] ^= std::byte{1} << rng_.Below(8);
          return;
        }
        at -= data->bytes.size();
      }
    });
  }
  // Cuts the last `bytes` off the newest file.
  void TearTail(uint64_t bytes) {
    Locked([&] {
      if (!data_.empty()) {
        auto& content = data_.rbegin()->second->bytes;
        content.resize(content.size() - std::min<uint64_t>(bytes, content.size()));
      }
    });
  }
  // The power goes: of what was not synced any sector may be old, new or missing at the end.
  void PowerLoss() {
    Locked([&] {
      for (const auto& [path, data] : data_) {
        std::vector<std::byte> left = data->synced;
        const size_t keep = rng_.Below(data->bytes.size() + 1);
        for (size_t at = 0; at < data->bytes.size(); at += kSector) {
          const size_t n = std::min(kSector, data->bytes.size() - at);
          if (at < keep && rng_.Below(2) == 0) {
            left.resize(std::max(left.size(), at + n));
            std::copy_n(data->bytes.begin() + static_cast<std::ptrdiff_t>(at), n,
                        left.begin() + static_cast<std::ptrdiff_t>(at));
          }
        }
        data->bytes = left;
        data->synced = std::move(left);
      }
    });
  }
  uint64_t TotalBytes() {
    uint64_t total = 0;
    Locked([&] { total = Total(); });
    return total;
  }
  size_t FileCount() {
    size_t count = 0;
    Locked([&] { count = data_.size(); });
    return count;
  }

  Result<void> MakeFolder(const std::string& /*folder*/) override { return {}; }
  Result<std::unique_ptr<FolderLock>> LockFolder(const std::string& folder) override {
    std::unique_ptr<FolderLock> lock;
    Locked([&] {
      if (locked_.insert(folder).second) {
        lock = std::make_unique<Lock>(*this, folder);
      }
    });
    if (lock == nullptr) {
      return Err(ErrorCode::kUnavailable, "%s is in use", folder.c_str());
    }
    return lock;
  }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    std::vector<std::string> names;
    Locked([&] {
      for (const auto& [path, data] : data_) {
        if (path.rfind(folder + "/", 0) == 0) {
          names.push_back(path.substr(folder.size() + 1));
        }
      }
    });
    return names;
  }
  Result<std::unique_ptr<File>> Open(const std::string& path, bool create) override {
    std::shared_ptr<Data> data;
    Locked([&] {
      const auto found = data_.find(path);
      if (create == (found == data_.end())) {
        data = create ? (data_[path] = std::make_shared<Data>()) : found->second;
      }
    });
    if (data == nullptr) {
      return Err(create ? ErrorCode::kInvalidInput : ErrorCode::kNotFound, "cannot open %s",
                 path.c_str());
    }
    return std::unique_ptr<File>(std::make_unique<MemoryFile>(*this, std::move(data)));
  }
  Result<void> Remove(const std::string& path) override {
    bool removed = false;
    bool failed = false;
    Locked([&] {
      failed = Chance(remove_errors_);
      removed = !failed && data_.erase(path) != 0;
    });
    if (failed) {
      return Err(ErrorCode::kUnavailable, "the disk does not remove %s", path.c_str());
    }
    if (!removed) {
      return Err(ErrorCode::kNotFound, "there is no %s", path.c_str());
    }
    return {};
  }
  Result<void> SyncFolder(const std::string& /*folder*/) override { return {}; }

 private:
  static constexpr size_t kSector = 512;
  struct Data {
    std::vector<std::byte> bytes;
    std::vector<std::byte> synced;
  };
  class Lock final : public FolderLock {
   public:
    Lock(FaultyFiles& files, std::string folder) : files_(files), folder_(std::move(folder)) {}
    ~Lock() override {
      files_.Locked([&] { files_.locked_.erase(folder_); });
    }

   private:
    FaultyFiles& files_;
    std::string folder_;
  };
  class MemoryFile final : public File {
   public:
    MemoryFile(FaultyFiles& files, std::shared_ptr<Data> data)
        : files_(files), data_(std::move(data)) {}
    Result<size_t> ReadAt(uint64_t offset, std::span<std::byte> out) override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      if (files_.Chance(files_.read_errors_)) {
        return Err(ErrorCode::kUnavailable, "the disk does not read");
      }
      const auto& bytes = data_->bytes;
      const size_t n =
          offset >= bytes.size() ? 0 : std::min<size_t>(out.size(), bytes.size() - offset);
      if (n > 0) {
        std::memcpy(out.data(), bytes.data() + offset, n);
        if (files_.Chance(files_.read_flips_)) {
          out[files_.rng_.Below(n)] ^= std::byte{1} << files_.rng_.Below(8);
        }
      }
      return n;
    }
    Result<size_t> WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      if (files_.Chance(files_.write_errors_)) {
        return Err(ErrorCode::kUnavailable, "the disk does not write");
      }
      size_t n = bytes.size();
      if (files_.short_writes_ && n > 1) {
        n = 1 + files_.rng_.Below(n);
      }
      const size_t end = offset + n;
      const size_t grows = end > data_->bytes.size() ? end - data_->bytes.size() : 0;
      const uint64_t total = files_.Total();
      const uint64_t room = files_.capacity_bytes_ > total ? files_.capacity_bytes_ - total : 0;
      if (grows > room) {
        n -= std::min<size_t>(n, grows - static_cast<size_t>(room));
        if (n == 0) {
          return Err(ErrorCode::kExhausted, "the disk is full");
        }
      }
      if (data_->bytes.size() < offset + n) {
        data_->bytes.resize(offset + n);
      }
      std::memcpy(data_->bytes.data() + offset, bytes.data(), n);
      return n;
    }
    Result<void> Sync() override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      if (files_.Chance(files_.sync_errors_)) {
        return Err(ErrorCode::kUnavailable, "the disk does not sync");
      }
      data_->synced = data_->bytes;
      return {};
    }
    Result<uint64_t> SizeBytes() override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      return static_cast<uint64_t>(data_->bytes.size());
    }

   private:
    FaultyFiles& files_;
    std::shared_ptr<Data> data_;
  };

  template <typename Fn>
  void Locked(Fn&& fn) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fn();
  }
  bool Chance(double probability) { return probability > 0 && rng_.Uniform() < probability; }
  [[nodiscard]] uint64_t Total() const {
    uint64_t total = 0;
    for (const auto& [path, data] : data_) {
      total += data->bytes.size();
    }
    return total;
  }

  std::mutex mutex_;
  Rng rng_;
  std::map<std::string, std::shared_ptr<Data>> data_;
  std::set<std::string> locked_;
  uint64_t capacity_bytes_ = ~uint64_t{0};
  bool short_writes_ = false;
  double read_flips_ = 0;
  double read_errors_ = 0;
  double write_errors_ = 0;
  double sync_errors_ = 0;
  double remove_errors_ = 0;
};

}  // namespace kvik::store::testing
