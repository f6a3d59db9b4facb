// SPDX-License-Identifier: Apache-2.0
// Writes a tiny random model, complete with tokenizer and chat template, for the end-to-end tests.
#include <cstdio>

#include "model/testing/tiny_model.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: kvik_tiny_model FILE.gguf\n");
    return 2;
  }
  const kvik::Result<void> written =
      kvik::model::testing::WriteTinyGguf(kvik::model::testing::TinyModelOptions{}, argv[1]);
  if (!written) {
    std::fprintf(stderr, "kvik_tiny_model: %s\n", written.error().message.c_str());
    return 1;
  }
  return 0;
}
