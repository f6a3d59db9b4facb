// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvik {

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const ErrorCode code =
        errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kUnavailable;
    return Err(code, "%s: cannot open: %s", path.c_str(), std::strerror(errno));
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return Err(ErrorCode::kInvalidInput, "%s: not a regular file", path.c_str());
  }
  MappedFile file;
  file.path_ = path;
  file.size_bytes_ = static_cast<size_t>(info.st_size);
  if (file.size_bytes_ > 0) {
    void* memory = mmap(nullptr, file.size_bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (memory == MAP_FAILED) {
      const int reason = errno;
      close(fd);
      file.size_bytes_ = 0;
      return Err(ErrorCode::kUnavailable, "%s: cannot map: %s", path.c_str(),
                 std::strerror(reason));
    }
    file.data_ = static_cast<const std::byte*>(memory);
  }
  close(fd);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<std::byte*>(data_), size_bytes_);
  }
}

}  // namespace kvik
