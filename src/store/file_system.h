// SPDX-License-Identifier: Apache-2.0
// store/file_system.h: the few file operations that the disk tier needs, as a seam: tests put a
// disk behind it that is full, tears writes, flips bits or fails to sync.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvik::store {

// One open file. Thread-safe for reads at any time and writes of disjoint ranges. Closed by its
// destruction; a file that was removed stays readable until then.
class File {
 public:
  virtual ~File() = default;
  // How many bytes were read: fewer than asked only at the end of the file. kUnavailable.
  virtual Result<size_t> ReadAt(uint64_t offset, std::span<std::byte> out) = 0;
  // How many were written, at least one, possibly fewer than given. kExhausted: the disk is full;
  // kUnavailable.
  virtual Result<size_t> WriteAt(uint64_t offset, std::span<const std::byte> bytes) = 0;
  // Everything written is on the device. After an error nobody knows what is. kUnavailable.
  virtual Result<void> Sync() = 0;
  virtual Result<uint64_t> SizeBytes() = 0;
};

// Holds a folder for this process until it is destroyed (or the process ends, however).
class FolderLock {
 public:
  virtual ~FolderLock() = default;
};

// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // With its parents, for the user alone as everything that is made here: KV tells what people
  // wrote. One that exists is fine.
  virtual Result<void> MakeFolder(const std::string& folder) = 0;
  // kUnavailable when another process holds it.
  virtual Result<std::unique_ptr<FolderLock>> LockFolder(const std::string& folder) = 0;
  // Names of the regular files in it, in any order.
  virtual Result<std::vector<std::string>> List(const std::string& folder) = 0;
  // For reading and writing. `create`: a new, empty file, kInvalidInput when there is one.
  virtual Result<std::unique_ptr<File>> Open(const std::string& path, bool create) = 0;
  // kNotFound when there is none.
  virtual Result<void> Remove(const std::string& path) = 0;
  // Creations and removals in the folder are on the device.
  virtual Result<void> SyncFolder(const std::string& folder) = 0;
};

// The operating system's. Lives as long as the process.
FileSystem& PosixFileSystem();

// All of them, or the error.
Result<void> WriteAllAt(File& file, uint64_t offset, std::span<const std::byte> bytes);
// Exactly out.size() of them; kCorrupt when the file ends before.
Result<void> ReadAllAt(File& file, uint64_t offset, std::span<std::byte> out);

}  // namespace kvik::store
