// SPDX-License-Identifier: Apache-2.0
#include "app/default_kv_store.h"

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "app/models.h"
#include "base/byte_size.h"
#include "base/fnv.h"
#include "base/format.h"
#include "base/log.h"
#include "base/result.h"
#include "store/file_system.h"

namespace kvik::app {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kMostMemoryBytes = kGiB;
constexpr uint64_t kLeastMemoryBytes = 64 * kMiB;
constexpr uint64_t kMemoryBytesIfUnknown = 256 * kMiB;
constexpr uint64_t kMostDiskBytes = 16 * kGiB;
constexpr uint64_t kLeastDiskBytes = 256 * kMiB;
// A tier takes no object that is larger than a quarter of it.
constexpr uint64_t kLeastObjects = 8;
constexpr size_t kLongestName = 64;

struct Folder {
  std::string path;
  uint64_t bytes = 0;
  fs::file_time_type written;
};

// Only what a store itself makes counts, and is ever removed.
bool IsSegment(const fs::path& file) {
  return file.extension() == ".kvik" && file.filename().string().starts_with("segment-");
}

Folder Measure(const fs::path& path) {
  Folder folder;
  folder.path = path.string();
  std::error_code ignored;  // what vanishes meanwhile takes nothing
  folder.written = fs::last_write_time(path, ignored);
  for (fs::directory_iterator it(path, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    std::error_code gone;
    if (IsSegment(it->path())) {
      const uint64_t bytes = it->file_size(gone);
      folder.bytes += gone ? 0 : bytes;
    }
  }
  return folder;
}

// Of other models, the one that was written to longest ago first.
std::vector<Folder> OtherFolders(const std::string& root, const std::string& own) {
  std::vector<Folder> folders;
  std::error_code ignored;
  for (fs::directory_iterator it(root, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    std::error_code gone;
    if (it->is_directory(gone) && it->path() != own) {
      folders.push_back(Measure(it->path()));
    }
  }
  std::sort(folders.begin(), folders.end(),
            [](const Folder& a, const Folder& b) { return a.written < b.written; });
  return folders;
}

// What went. A folder that a server uses stays as it is.
uint64_t Empty(const Folder& folder) {
  const auto lock = store::PosixFileSystem().LockFolder(folder.path);
  if (!lock) {
    return 0;
  }
  std::error_code ignored;
  for (fs::directory_iterator it(folder.path, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    std::error_code kept;
    if (IsSegment(it->path())) {
      fs::remove(it->path(), kept);
    }
  }
  const uint64_t left = Measure(folder.path).bytes;
  return folder.bytes - std::min(folder.bytes, left);
}

// The budget of the store in this folder, which exists; kExhausted: the disk is too full.
Result<uint64_t> DiskBudget(const std::string& root, const std::string& own, uint64_t chunk_bytes) {
  std::vector<Folder> others = OtherFolders(root, own);
  const uint64_t own_bytes = Measure(own).bytes;
  uint64_t others_bytes = 0;
  for (const Folder& folder : others) {
    others_bytes += folder.bytes;
  }
  std::error_code error;
  const fs::space_info space = fs::space(root, error);
  if (error) {
    return Err(ErrorCode::kUnavailable, "%s: %s", root.c_str(), error.message().c_str());
  }
  const uint64_t limit = DefaultStoreDiskLimit(space.available, own_bytes + others_bytes);
  const uint64_t least = std::max(kLeastDiskBytes, kLeastObjects * chunk_bytes);
  if (limit < least) {
    return Err(ErrorCode::kExhausted, "%s has only %s free", root.c_str(),
               FormatByteSize(space.available).c_str());
  }
  for (const Folder& folder : others) {
    if (others_bytes <= limit / 2) {
      break;
    }
    if (const uint64_t freed = Empty(folder); freed > 0) {
      LogInfo("KV of another model makes room: %s in %s", FormatByteSize(freed).c_str(),
              folder.path.c_str());
      others_bytes -= freed;
    }
  }
  const uint64_t budget = limit - std::min(limit, others_bytes);
  if (budget < least) {
    return Err(ErrorCode::kExhausted, "servers of other models use what there may be in %s",
               root.c_str());
  }
  return budget;
}

// With the folder and its budget.
Result<KvStoreOptions> WithDisk(KvStoreOptions options, const DefaultKvStoreOptions& wanted) {
  if (wanted.root.empty()) {
    return Err(ErrorCode::kNotFound, "neither XDG_CACHE_HOME nor HOME is set");
  }
  options.disk_folder =
      wanted.root + "/" + DefaultStoreFolderName(wanted.model_path, wanted.weights);
  store::FileSystem& files = store::PosixFileSystem();
  KVIK_TRY(files.MakeFolder(options.disk_folder));
  // Nothing is emptied for a store that cannot be opened.
  KVIK_ASSIGN(const std::unique_ptr<store::FolderLock> lock, files.LockFolder(options.disk_folder));
  KVIK_ASSIGN(options.disk_bytes, DiskBudget(wanted.root, options.disk_folder, wanted.chunk_bytes));
  return options;
}

}  // namespace

std::string DefaultKvStoreRoot() { return HasCacheFolder() ? CacheFolder() + "/kv-store" : ""; }

uint64_t DefaultStoreMemoryBytes(const std::optional<uint64_t>& spare_bytes, uint64_t chunk_bytes) {
  const uint64_t least = std::max(kLeastMemoryBytes, kLeastObjects * chunk_bytes);
  if (!spare_bytes) {
    return std::max(kMemoryBytesIfUnknown, least);
  }
  if (least > *spare_bytes / 2) {
    return 0;
  }
  return std::max(least, std::min(*spare_bytes / 8, kMostMemoryBytes));
}

uint64_t DefaultStoreDiskLimit(uint64_t free_bytes, uint64_t stored_bytes) {
  return std::min(kMostDiskBytes, free_bytes / 10 + stored_bytes / 10);
}

std::string DefaultStoreFolderName(const std::string& model_path, const std::string& weights) {
  fs::path path(model_path);
  if (!path.has_filename()) {
    path = path.parent_path();
  }
  std::string name = path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
  name.resize(std::min(name.size(), kLongestName));
  for (char& c : name) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
    c = plain ? c : '_';
  }
  return Format("%s-%016" PRIx64, name.c_str(), Fnv1a(weights));
}

std::unique_ptr<store::Store> OpenDefaultKvStore(const DefaultKvStoreOptions& options,
                                                 const Clock& clock,
                                                 std::shared_ptr<store::EventSink> events) {
  KvStoreOptions memory_only;
  memory_only.by_default = true;
  memory_only.max_encodings = options.max_encodings;
  memory_only.memory_bytes = DefaultStoreMemoryBytes(options.spare_bytes, options.chunk_bytes);
  if (memory_only.memory_bytes == 0) {
    LogWarning("KV is kept in the cache alone: too little memory is left for a store");
    return nullptr;
  }
  Result<KvStoreOptions> whole = WithDisk(memory_only, options);
  Result<std::unique_ptr<store::Store>> opened =
      whole ? OpenKvStore(*whole, clock, events)
            : Result<std::unique_ptr<store::Store>>(whole.error());
  if (!opened) {
    LogWarning("no KV is kept on disk: %s; --kv-store-disk PATH names another folder",
               opened.error().message.c_str());
    opened = OpenKvStore(memory_only, clock, std::move(events));
  }
  if (!opened) {
    LogWarning("KV is kept in the cache alone: %s", opened.error().message.c_str());
    return nullptr;
  }
  return *std::move(opened);
}

}  // namespace kvik::app
