// SPDX-License-Identifier: Apache-2.0
#include "app/text_file.h"

#include <span>

#include "base/mapped_file.h"
#include "base/replace_file.h"

namespace kvik::app {

Result<std::string> ReadTextFile(const std::string& path) {
  KVIK_ASSIGN(const MappedFile file, MappedFile::Open(path));
  const auto bytes = file.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<void> ReplaceTextFile(const std::string& path, const std::string& text) {
  return ReplaceFile(path, std::as_bytes(std::span(text)));
}

}  // namespace kvik::app
