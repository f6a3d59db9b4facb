// SPDX-License-Identifier: Apache-2.0
// Any two files are a profile library that prints as itself, or an error of one line. The input is
// the JSON, a zero byte, and the tensors; @sha256 and @halves in the JSON stand for what is true of
// these, so that mutations get past the checksum.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/sha256.h"
#include "codec/profile_library.h"

namespace {

void Substitute(std::string& text, std::string_view from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const uint8_t* const zero = std::find(data, data + size_bytes, uint8_t{0});
  std::string json(reinterpret_cast<const char*>(data), static_cast<size_t>(zero - data));
  const size_t side_bytes = static_cast<size_t>(data + size_bytes - zero);
  const std::span<const std::byte> side = side_bytes > 1
                                              ? std::as_bytes(std::span(zero + 1, side_bytes - 1))
                                              : std::span<const std::byte>();
  Substitute(json, "@sha256", kvik::ToHex(kvik::Sha256Of(side)));
  Substitute(json, "@halves", std::to_string(side.size() / 2));
  const auto name = kvik::codec::ProfileLibrarySideFile(json);
  const auto library = kvik::codec::ParseProfileLibrary(json, side);
  if (!library) {
    KVIK_CHECK(!library.error().message.empty());
    return 0;
  }
  KVIK_CHECK(name.has_value());
  const auto printed = kvik::codec::PrintProfileLibrary(*library, *name);
  KVIK_CHECK(printed.has_value());
  const auto again = kvik::codec::ParseProfileLibrary(printed->json, printed->side);
  KVIK_CHECK(again.has_value() && again->profiles == library->profiles &&
             again->model == library->model);
  return 0;
}
