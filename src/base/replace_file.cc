// SPDX-License-Identifier: Apache-2.0
#include "base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kvik {
namespace {

Error CannotWrite(const std::string& path, int error) {
  const ErrorCode code =
      error == ENOSPC || error == EDQUOT ? ErrorCode::kExhausted : ErrorCode::kUnavailable;
  return Err(code, "%s: cannot write: %s", path.c_str(), std::strerror(error));
}

std::string PartOf(const std::string& path) {
  return path + "." + std::to_string(getpid()) + ".part";
}

int OpenPart(const std::string& part) {
  return open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

// Down to the disk. 0, or errno.
int WriteAll(int fd, std::span<const std::byte> bytes) {
  constexpr size_t kMaxWrite = size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (written < 0 && errno != EINTR) {
      return errno;
    }
    bytes = bytes.subspan(written < 0 ? 0 : static_cast<size_t>(written));
  }
  return fsync(fd) == 0 ? 0 : errno;
}

}  // namespace

Result<void> ReplaceFile(const std::string& path, std::span<const std::byte> bytes) {
  const std::string part = PartOf(path);
  const int fd = OpenPart(part);
  if (fd < 0) {
    return CannotWrite(path, errno);
  }
  int error = WriteAll(fd, bytes);
  if (close(fd) != 0 && error == 0) {
    error = errno;
  }
  if (error == 0 && std::rename(part.c_str(), path.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    unlink(part.c_str());
    return CannotWrite(path, error);
  }
  return {};
}

Result<void> CheckReplaceable(const std::string& path) {
  const std::string part = PartOf(path);
  const int fd = OpenPart(part);
  if (fd < 0) {
    return CannotWrite(path, errno);
  }
  close(fd);
  unlink(part.c_str());
  return {};
}

}  // namespace kvik
