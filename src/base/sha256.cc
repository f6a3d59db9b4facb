// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace kvik {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();

  State() {
    KVIK_CHECK(context != nullptr, "out of memory");
    Restart();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }

  void Restart() const { KVIK_CHECK(EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  KVIK_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest{};
  unsigned int length = 0;
  KVIK_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &length) == 1 &&
             length == digest.size());
  state_->Restart();
  return digest;
}

Sha256Digest Sha256Of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

uint64_t ShortHash(const Sha256Digest& digest) {
  uint64_t hash = 0;
  for (size_t i = 8; i-- > 0;) {
    hash = hash << 8 | digest[i];
  }
  return hash;
}

std::string ToHex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * digest.size());
  for (const uint8_t byte : digest) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

}  // namespace kvik
