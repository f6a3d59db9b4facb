// SPDX-License-Identifier: Apache-2.0
#include "app/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/mapped_file.h"

namespace kvik::app {
namespace {

Error CannotWrite(const std::string& path) {
  return Err(ErrorCode::kUnavailable, "%s: cannot write: %s", path.c_str(), std::strerror(errno));
}

int OpenPart(const std::string& part) {
  return open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return false;
    }
    text.remove_prefix(written < 0 ? 0 : static_cast<size_t>(written));
  }
  return fsync(fd) == 0;
}

}  // namespace

Result<std::string> ReadTextFile(const std::string& path) {
  KVIK_ASSIGN(const MappedFile file, MappedFile::Open(path));
  const auto bytes = file.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<void> ReplaceTextFile(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  const int fd = OpenPart(part);
  if (fd < 0) {
    return CannotWrite(part);
  }
  const bool written = WriteAll(fd, text);
  const Error failure = CannotWrite(part);
  close(fd);
  if (!written) {
    unlink(part.c_str());
    return failure;
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) {
    const Error renaming = CannotWrite(path);
    unlink(part.c_str());
    return renaming;
  }
  return {};
}

Result<void> CheckReplaceable(const std::string& path) {
  const std::string part = path + ".part";
  const int fd = OpenPart(part);
  if (fd < 0) {
    return CannotWrite(part);
  }
  close(fd);
  unlink(part.c_str());
  return {};
}

}  // namespace kvik::app
