// SPDX-License-Identifier: Apache-2.0
#include "store/file_system.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace kvik::store {
namespace {

Error ErrorOf(const std::string& what, const std::string& path, int error) {
  const ErrorCode code = error == ENOSPC || error == EDQUOT || error == EFBIG
                             ? ErrorCode::kExhausted
                             : (error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnavailable);
  return Err(code, "%s %s: %s", what.c_str(), path.c_str(), std::strerror(error));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

class PosixFile final : public File {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  Result<size_t> ReadAt(uint64_t offset, std::span<std::byte> out) override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = ::pread(fd_.get(), out.data() + done, out.size() - done,
                                static_cast<off_t>(offset + done));
      if (n < 0 && errno != EINTR) {
        return Err(ErrorCode::kUnavailable, "cannot read %s: %s", path_.c_str(),
                   std::strerror(errno));
      }
      if (n == 0) {
        break;
      }
      done += n > 0 ? static_cast<size_t>(n) : 0;
    }
    return done;
  }
  Result<size_t> WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
    for (;;) {
      const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n >= 0) {
        return static_cast<size_t>(n);
      }
      if (errno != EINTR) {
        return ErrorOf("cannot write", path_, errno);
      }
    }
  }
  Result<void> Sync() override {
    if (::fdatasync(fd_.get()) != 0) {
      return Err(ErrorCode::kUnavailable, "cannot sync %s: %s", path_.c_str(),
                 std::strerror(errno));
    }
    return {};
  }
  Result<uint64_t> SizeBytes() override {
    struct stat status = {};
    if (::fstat(fd_.get(), &status) != 0) {
      return ErrorOf("cannot stat", path_, errno);
    }
    return static_cast<uint64_t>(status.st_size);
  }

 private:
  Descriptor fd_;
  std::string path_;
};

class PosixLock final : public FolderLock {
 public:
  explicit PosixLock(int fd) : fd_(fd) {}

 private:
  Descriptor fd_;  // closing it unlocks
};

class Posix final : public FileSystem {
 public:
  Result<void> MakeFolder(const std::string& folder) override {
    for (size_t end = folder.find('/', 1);; end = folder.find('/', end + 1)) {
      const std::string part = folder.substr(0, end);
      if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
        return ErrorOf("cannot make folder", part, errno);
      }
      if (end == std::string::npos) {
        break;
      }
    }
    struct stat status = {};
    if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      return Err(ErrorCode::kInvalidInput, "%s is not a folder", folder.c_str());
    }
    return {};
  }

  Result<std::unique_ptr<FolderLock>> LockFolder(const std::string& folder) override {
    const std::string path = folder + "/lock";
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
      return ErrorOf("cannot open", path, errno);
    }
    auto lock = std::make_unique<PosixLock>(fd);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      return Err(ErrorCode::kUnavailable, "%s is in use by another process", folder.c_str());
    }
    return std::unique_ptr<FolderLock>(std::move(lock));
  }

  Result<std::vector<std::string>> List(const std::string& folder) override {
    DIR* dir = ::opendir(folder.c_str());
    if (dir == nullptr) {
      return ErrorOf("cannot list", folder, errno);
    }
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(dir)) {
      struct stat status = {};
      if (::fstatat(::dirfd(dir), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
          S_ISREG(status.st_mode)) {
        names.emplace_back(entry->d_name);
      }
    }
    ::closedir(dir);
    return names;
  }

  Result<std::unique_ptr<File>> Open(const std::string& path, bool create) override {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600);
    if (fd < 0) {
      if (create && errno == EEXIST) {
        return Err(ErrorCode::kInvalidInput, "%s exists already", path.c_str());
      }
      return ErrorOf("cannot open", path, errno);
    }
    return std::unique_ptr<File>(std::make_unique<PosixFile>(fd, path));
  }

  Result<void> Remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) {
      return ErrorOf("cannot remove", path, errno);
    }
    return {};
  }

  Result<void> SyncFolder(const std::string& folder) override {
    const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0 || ::fsync(fd.get()) != 0) {
      return ErrorOf("cannot sync folder", folder, errno);
    }
    return {};
  }
};

}  // namespace

FileSystem& PosixFileSystem() {
  static Posix posix;
  return posix;
}

Result<void> WriteAllAt(File& file, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    KVIK_ASSIGN(const size_t n, file.WriteAt(offset, bytes));
    if (n == 0) {
      return Err(ErrorCode::kUnavailable, "a write took no bytes");
    }
    offset += n;
    bytes = bytes.subspan(n);
  }
  return {};
}

Result<void> ReadAllAt(File& file, uint64_t offset, std::span<std::byte> out) {
  KVIK_ASSIGN(const size_t n, file.ReadAt(offset, out));
  if (n != out.size()) {
    return Err(ErrorCode::kCorrupt, "a file ends %zu bytes early", out.size() - n);
  }
  return {};
}

}  // namespace kvik::store
