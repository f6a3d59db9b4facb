// SPDX-License-Identifier: Apache-2.0
// The program: flags to options, the rest is in app. Exit codes: 0 done, 1 failed, 2 usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "app/version.h"
#include "cli/commands.h"

namespace {

int Run(int argc, char** argv) {
  CLI::App root("kvik: an LLM serving engine built around its KV cache");
  root.set_version_flag("--version", std::string("kvik ") + kvik::app::kVersion);
  root.require_subcommand(1);
  kvik::cli::Action action;
  kvik::cli::AddServe(root, action);
  kvik::cli::AddGenerate(root, action);
  kvik::cli::AddInspect(root, action);
  kvik::cli::AddBench(root, action);
  kvik::cli::AddCalibrate(root, action);
  kvik::cli::AddEval(root, action);
  kvik::cli::AddPull(root, action);
  kvik::cli::AddReplay(root, action);
  kvik::cli::AddSelftest(root, action);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return root.exit(error) == 0 ? 0 : 2;
  }
  const kvik::Result<int> result = action();
  if (!result) {
    std::fprintf(stderr, "kvik: %s\n", result.error().message.c_str());
    return 1;
  }
  return *result;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvik: %s\n", error.what());
    return 1;
  }
}
