// SPDX-License-Identifier: Apache-2.0
#include "model/output_file.h"

#include <cerrno>
#include <cstring>

namespace kvik::model {

Error OutputFile::Failure(const char* action) const {
  const int reason = errno;
  return Err(reason == ENOSPC || reason == EDQUOT ? ErrorCode::kExhausted : ErrorCode::kUnavailable,
             "%s: cannot %s: %s", path_.c_str(), action, std::strerror(reason));
}

Result<OutputFile> OutputFile::Create(const std::string& path) {
  OutputFile file;
  file.path_ = path;
  file.file_.reset(std::fopen(path.c_str(), "wb"));
  if (file.file_ == nullptr) {
    return file.Failure("create");
  }
  return file;
}

Result<void> OutputFile::Write(std::span<const std::byte> bytes) {
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
    return Failure("write");
  }
  return {};
}

Result<void> OutputFile::Close() {
  if (std::fclose(file_.release()) != 0) {
    return Failure("write");
  }
  return {};
}

}  // namespace kvik::model
