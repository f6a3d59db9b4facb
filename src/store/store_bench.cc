// SPDX-License-Identifier: Apache-2.0
// Speed of put and get of every tier, in GB/s of objects, one thread, beside what each is made of
// in the same run: memcpy, plain files, raw Redis. A goal is a share of that. All cases of a round
// run one after the other and the median of rounds is shown, so that a noisy machine disturbs all
// alike. Everything that is read is checked once before it is timed.
#include <hiredis/hiredis.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/temporary_folder.h"
#include "base/testing/bench_clock.h"
#include "base/testing/bench_options.h"
#include "base/testing/median.h"
#include "store/disk_tier.h"
#include "store/memory_tier.h"
#include "store/redis_tier.h"
#include "store/testing/made_objects.h"
#include "store/testing/redis_server.h"

namespace kvik::store {
namespace {

using kvik::testing::BenchClock;
using kvik::testing::BenchOptions;
using kvik::testing::Median;
using kvik::testing::OrDie;
using testing::GetOne;
using testing::IsIntact;
using testing::ObjectOf;
using testing::RedisServer;

constexpr size_t kSetBytes = size_t{64} << 20;
constexpr size_t kPipeline = 8;

struct Case {
  std::string name;
  std::string of;             // the case whose share is told; "": none
  double goal = 0;            // of it; 0: none
  std::function<void()> run;  // moves the whole set once
  std::vector<double> gb_per_s;
};

// The objects of a set and the cases over them.
class Bench {
 public:
  Bench(size_t object_bytes, const BenchOptions& options)
      : options_(options), clock_(false), folder_(OrDie(TemporaryFolder::Create("kvik-bench"))) {
    const size_t count = (options.quick ? kSetBytes / 4 : kSetBytes) / object_bytes;
    for (size_t i = 0; i < count; ++i) {
      objects_.push_back(ObjectOf({.chunk = static_cast<int>(i)}, object_bytes));
      keys_.push_back(objects_.back().meta->key);
    }
    set_bytes_ = count * object_bytes;
    AddMemory(object_bytes);
    AddDisk(object_bytes);
    AddRestart(object_bytes);
    AddRedis(object_bytes);
  }

  // False when a goal is missed.
  bool Run(size_t object_bytes) {
    const int rounds = options_.quick ? 3 : 7;
    for (int round = 0; round < rounds; ++round) {
      for (Case& c : cases_) {
        const double begin = clock_.NowSeconds();
        c.run();
        const double seconds = clock_.NowSeconds() - begin;
        if (c.name[0] != '-') {
          c.gb_per_s.push_back(static_cast<double>(set_bytes_) / seconds / 1e9);
        }
      }
    }
    std::printf("%zu KiB an object, %zu MiB a set\n", object_bytes >> 10, set_bytes_ >> 20);
    std::map<std::string, double> medians;
    bool reached = true;
    for (const Case& c : cases_) {
      if (c.gb_per_s.empty()) {
        continue;
      }
      const double median = Median(c.gb_per_s);
      medians[c.name] = median;
      std::printf("  %-34s %8.2f GB/s", c.name.c_str(), median);
      if (!c.of.empty()) {
        const double share = median / medians[c.of];
        std::printf("  %5.2f of %s", share, c.of.c_str());
        if (c.goal > 0) {
          const bool ok = share >= c.goal;
          std::printf(" (goal %.2f%s)", c.goal, ok ? "" : ": MISSED");
          reached = reached && ok;
        }
      }
      std::printf("\n");
    }
    return reached;
  }

 private:
  void Add(std::string name, std::string of, double goal, std::function<void()> run) {
    if (name[0] == '-' || options_.only.empty() || name.find(options_.only) != std::string::npos ||
        of.empty()) {
      cases_.push_back({std::move(name), std::move(of), goal, std::move(run), {}});
    }
  }
  void CheckOne(Tier& tier) const {
    const Object got = OrDie(GetOne(tier, keys_[0]));
    if (!IsIntact(keys_[0], got.bytes.bytes())) {
      std::fprintf(stderr, "%s returns wrong bytes\n", TierKindName(tier.kind()));
      std::exit(1);
    }
  }
  static void Must(bool ok, const char* what) {
    if (!ok) {
      std::fprintf(stderr, "store_bench: %s failed\n", what);
      std::exit(1);
    }
  }

  void AddMemory(size_t object_bytes) {
    copy_.resize(set_bytes_);
    Add("memcpy", "", 0, [this, object_bytes] {
      for (size_t i = 0; i < objects_.size(); ++i) {
        std::memcpy(copy_.data() + i * object_bytes, objects_[i].bytes.bytes().data(),
                    object_bytes);
      }
    });
    MemoryTierOptions memory;
    memory.budget_bytes = 2 * set_bytes_ + (uint64_t{1} << 30);
    memory_ = OrDie(MemoryTier::Create(memory, system_));
    const auto clear = [this] { Must(memory_->Remove(keys_, kNoDeadline).has_value(), "remove"); };
    const auto put = [this, object_bytes] {
      for (const Object& object : objects_) {
        auto pending = OrDie(memory_->BeginPut(*object.meta, object_bytes, kNoDeadline));
        std::memcpy(pending->bytes().data(), object.bytes.bytes().data(), object_bytes);
        Must(memory_->Commit(std::move(*pending)).has_value(), "put");
      }
    };
    put();
    CheckOne(*memory_);
    Add("-clear", "", 0, clear);
    Add("memory put (copied)", "memcpy", 0.6, put);
    Add("memory get (copied out)", "memcpy", 0.9, [this, object_bytes] {
      const auto got = memory_->Get(keys_, kNoDeadline);
      for (size_t i = 0; i < got.size(); ++i) {
        std::memcpy(copy_.data() + i * object_bytes, got[i]->bytes.bytes().data(), object_bytes);
      }
    });
    Add("-clear", "", 0, clear);
    Add("memory put (shared)", "memcpy", 10, [this] {
      for (const auto& put_result : memory_->Put(objects_, kNoDeadline)) {
        Must(put_result.has_value(), "put");
      }
    });
    Add("memory get (shared)", "memcpy", 10, [this] {
      for (const auto& got : memory_->Get(keys_, kNoDeadline)) {
        Must(got.has_value(), "get");
      }
    });
    Add("crc32c", "", 0, [this] {
      uint32_t crc = 0;
      for (const Object& object : objects_) {
        crc = Crc32c(object.bytes.bytes(), crc);
      }
      Must(crc != 1, "crc");
    });
  }

  void AddDisk(size_t object_bytes) {
    const std::string plain = folder_.path() + "/plain";
    Add("-remove", "", 0, [plain] { (void)PosixFileSystem().Remove(plain); });
    Add("plain file write, sync", "", 0, [this, plain, object_bytes] {
      const auto file = OrDie(PosixFileSystem().Open(plain, true));
      for (size_t i = 0; i < objects_.size(); ++i) {
        Must(WriteAllAt(*file, i * object_bytes, objects_[i].bytes.bytes()).has_value(), "write");
      }
      Must(file->Sync().has_value(), "sync");
    });
    Add("-reopen", "", 0, [this] {
      disk_ = nullptr;
      const std::string folder = folder_.path() + "/tier";
      if (const auto names = PosixFileSystem().List(folder)) {
        for (const std::string& name : *names) {
          (void)PosixFileSystem().Remove(folder + "/" + name);
        }
      }
      OpenDisk();
    });
    Add("disk put, sync a segment", "plain file write, sync", 0.7, [this] {
      for (const auto& put : disk_->Put(objects_, kNoDeadline)) {
        Must(put.has_value(), "put");
      }
      disk_ = nullptr;  // writes the last segment down
    });
    Add("-open", "", 0, [this] {
      OpenDisk();
      Must(disk_->recovery().objects == static_cast<int64_t>(objects_.size()), "recovery");
      CheckOne(*disk_);
    });
    Add("plain file read (cached)", "", 0, [this, plain, object_bytes] {
      const auto file = OrDie(PosixFileSystem().Open(plain, false));
      for (size_t i = 0; i < objects_.size(); ++i) {
        Must(ReadAllAt(*file, i * object_bytes, {copy_.data() + i * object_bytes, object_bytes})
                 .has_value(),
             "read");
      }
    });
    Add("disk get (cached)", "plain file read (cached)", 0.5, [this] {
      for (const ObjectKey& key : keys_) {
        Must(GetOne(*disk_, key).has_value(), "get");
      }
    });
  }
  void OpenDisk() {
    DiskTierOptions options;
    options.folder = folder_.path() + "/tier";
    options.budget_bytes = 16 * kSetBytes;
    disk_ = OrDie(DiskTier::Open(options, system_, PosixFileSystem()));
  }

  // One segment holds the whole set, so that after a kill all of it is verified.
  void AddRestart(size_t object_bytes) {
    const std::string folder = folder_.path() + "/restarted";
    const auto open = [this, folder] {
      DiskTierOptions options;
      options.folder = folder;
      options.budget_bytes = 32 * kSetBytes;
      options.segment_bytes = 2 * kSetBytes;
      restarted_ = OrDie(DiskTier::Open(options, system_, PosixFileSystem()));
    };
    const auto segments = [folder] {
      std::vector<std::filesystem::path> files;
      for (const auto& file : std::filesystem::directory_iterator(folder)) {
        if (file.file_size() > 0) {
          files.push_back(file.path());
        }
      }
      return files;
    };
    Add("-fill", "", 0, [this, folder, open] {
      restarted_ = nullptr;
      std::filesystem::remove_all(folder);
      open();
      for (const auto& put : restarted_->Put(objects_, kNoDeadline)) {
        Must(put.has_value(), "put");
      }
      restarted_ = nullptr;
    });
    Add("restart, all in order", "", 0, open);
    Add("-check", "", 0, [this] { CheckRestarted(objects_.size()); });
    Add("-tear", "", 0, [this, segments, object_bytes] {
      restarted_ = nullptr;
      const auto files = segments();
      Must(files.size() == 1, "one segment");
      std::filesystem::resize_file(files[0],
                                   std::filesystem::file_size(files[0]) - object_bytes / 2);
    });
    Add("restart, torn: the rest verified", "crc32c", 0.3, open);
    Add("-check", "", 0, [this] {
      const DiskRecovery& recovery = restarted_->recovery();
      Must(recovery.torn_segments == 1 && recovery.verified == recovery.objects,
           "dropping the torn tail and verifying the rest");
      CheckRestarted(objects_.size() - 1);
    });
  }
  // Exactly the first `count` objects are there, whole.
  void CheckRestarted(size_t count) const {
    Must(restarted_->recovery().objects == static_cast<int64_t>(count), "recovery");
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto got = GetOne(*restarted_, keys_[i]);
      Must(got.has_value() == (i < count), "what a restart keeps");
      Must(!got.has_value() || IsIntact(keys_[i], got->bytes.bytes()), "a byte after a restart");
    }
  }

  void AddRedis(size_t object_bytes) {
    if (!RedisServer::Available()) {
      std::printf("redis-server is not installed: its cases are left out\n");
      return;
    }
    server_ = std::make_unique<RedisServer>();
    for (const bool unix_socket : {false, true}) {
      const std::string how = unix_socket ? "unix" : "tcp";
      redisContext* raw = unix_socket ? redisConnectUnix(server_->socket().c_str())
                                      : redisConnect("127.0.0.1", server_->port());
      Must(raw != nullptr && raw->err == 0, "connect");
      raw_[unix_socket].reset(raw);
      RedisTierOptions options;
      options.redis.url = unix_socket ? "unix://" + server_->socket() : server_->url();
      redis_[unix_socket] = OrDie(RedisTier::Create(options, system_));
      const auto flush = [raw] { freeReplyObject(redisCommand(raw, "FLUSHALL")); };
      const std::string write = "raw redis SET, " + how;
      const std::string read = "raw redis GET, " + how;
      Add("-flush", "", 0, flush);
      Add(write, "", 0, [this, raw, object_bytes] {
        InBatches(
            [&](size_t i) {
              redisAppendCommand(raw, "SET raw:%d %b", static_cast<int>(i),
                                 objects_[i].bytes.bytes().data(), object_bytes);
            },
            raw);
      });
      Add(read, "", 0, [this, raw, object_bytes] {
        InBatches([&](size_t i) { redisAppendCommand(raw, "GET raw:%d", static_cast<int>(i)); },
                  raw, object_bytes);
      });
      Add("-flush", "", 0, flush);
      RedisTier* tier = redis_[unix_socket].get();
      Add("redis put, " + how, write, 0.6, [this, tier] {
        for (size_t i = 0; i < objects_.size(); i += kPipeline) {
          const size_t n = std::min(kPipeline, objects_.size() - i);
          for (const auto& put : tier->Put({objects_.data() + i, n}, kNoDeadline)) {
            Must(put.has_value(), "redis put");
          }
        }
      });
      Add("-check", "", 0, [this, tier] { CheckOne(*tier); });
      // Every answer is kept until the batch is there; raw Redis frees each at once.
      Add("redis get, " + how, read, 0.5, [this, tier] {
        for (size_t i = 0; i < keys_.size(); i += kPipeline) {
          const size_t n = std::min(kPipeline, keys_.size() - i);
          for (const auto& got : tier->Get({keys_.data() + i, n}, kNoDeadline)) {
            Must(got.has_value(), "redis get");
          }
        }
      });
    }
  }
  void InBatches(const std::function<void(size_t)>& append, redisContext* raw,
                 size_t expected_bytes = 0) const {
    for (size_t i = 0; i < objects_.size(); i += kPipeline) {
      const size_t n = std::min(kPipeline, objects_.size() - i);
      for (size_t k = i; k < i + n; ++k) {
        append(k);
      }
      for (size_t k = i; k < i + n; ++k) {
        void* reply = nullptr;
        Must(redisGetReply(raw, &reply) == REDIS_OK, "raw redis");
        const auto* answer = static_cast<const redisReply*>(reply);
        Must(answer->type != REDIS_REPLY_ERROR &&
                 (expected_bytes == 0 || static_cast<size_t>(answer->len) == expected_bytes),
             "raw redis");
        freeReplyObject(reply);
      }
    }
  }

  struct Free {
    void operator()(redisContext* context) const { redisFree(context); }
  };
  const BenchOptions options_;
  const BenchClock clock_;
  const SystemClock system_;
  TemporaryFolder folder_;
  std::vector<Object> objects_;
  std::vector<ObjectKey> keys_;
  size_t set_bytes_ = 0;
  std::vector<std::byte> copy_;
  std::unique_ptr<MemoryTier> memory_;
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<DiskTier> restarted_;
  std::unique_ptr<RedisServer> server_;
  std::array<std::unique_ptr<redisContext, Free>, 2> raw_;
  std::array<std::unique_ptr<RedisTier>, 2> redis_;
  std::vector<Case> cases_;
};

}  // namespace
}  // namespace kvik::store

int main(int argc, char** argv) {
  const auto options = kvik::testing::ParseBenchOptions(argc, argv, false);
  if (!options) {
    return 2;
  }
  bool reached = true;
  for (const size_t object_bytes : {size_t{256} << 10, size_t{1} << 20, size_t{4} << 20}) {
    kvik::store::Bench bench(object_bytes, *options);
    reached = bench.Run(object_bytes) && reached;
  }
  return reached ? 0 : 1;
}
