// SPDX-License-Identifier: Apache-2.0
#include "cli/kv_flags.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

namespace kvik::cli {
namespace {

struct Parsed {
  KvFlags flags;
  bool moves = false;
  std::string error;  // of a usage error, which names the flag
};

Parsed Parse(std::vector<std::string> arguments, const app::RuntimeOptions& runtime = {}) {
  Parsed parsed;
  CLI::App command;
  // Those of `kvik serve` that are told apart here.
  std::string host = "127.0.0.1";
  std::string model;
  command.add_option("--host", host);
  command.add_option("--model", model);
  AddKvFlags(command, parsed.flags);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    command.parse(arguments);
    parsed.moves = FinishKvFlags(command, host, runtime, parsed.flags);
  } catch (const CLI::ParseError& error) {
    parsed.error = error.what();
  }
  return parsed;
}

TEST(KvFlagsTest, EveryRoleWithAnEngineHasAStoreByDefault) {
  for (const char* role : {"both", "prefill", "decode"}) {
    const Parsed parsed = Parse({"--role", role});
    EXPECT_EQ(parsed.error, "");
    EXPECT_TRUE(parsed.moves) << role;
    EXPECT_TRUE(parsed.flags.node.store.by_default) << role;
  }
  const Parsed pool = Parse({"--role", "pool"});
  EXPECT_FALSE(pool.flags.node.store.by_default);
  EXPECT_EQ(pool.flags.node.store.memory_bytes, uint64_t{4} << 30);
  EXPECT_FALSE(Parse({"--role", "router"}).flags.node.store.by_default);
}

TEST(KvFlagsTest, WhoeverNamesAStoreGetsWhatWasNamed) {
  const Parsed memory = Parse({"--kv-store-memory", "1GiB"});
  EXPECT_TRUE(memory.moves);
  EXPECT_FALSE(memory.flags.node.store.by_default);
  EXPECT_EQ(memory.flags.node.store.memory_bytes, uint64_t{1} << 30);
  EXPECT_EQ(memory.flags.node.store.disk_folder, "");

  const Parsed disk = Parse({"--kv-store-disk", "/x:2GiB"});
  EXPECT_TRUE(disk.moves);
  EXPECT_FALSE(disk.flags.node.store.by_default);
  EXPECT_EQ(disk.flags.node.store.disk_folder, "/x");
  EXPECT_EQ(disk.flags.node.store.disk_bytes, uint64_t{2} << 30);

  for (const char* url : {"kvik://h:1", "redis://h:1"}) {
    const Parsed pool = Parse({"--pool", url});
    EXPECT_TRUE(pool.moves);
    EXPECT_FALSE(pool.flags.node.store.by_default) << url;
  }
}

TEST(KvFlagsTest, OneFlagKeepsNothing) {
  const Parsed off = Parse({"--no-kv-store"});
  EXPECT_EQ(off.error, "");
  EXPECT_FALSE(off.moves);
  EXPECT_FALSE(off.flags.node.store.any());

  const Parsed decode = Parse({"--no-kv-store", "--role", "decode"});
  EXPECT_TRUE(decode.moves) << "it gets KV from others";
  EXPECT_FALSE(decode.flags.node.store.any());

  const Parsed pooled = Parse({"--no-kv-store", "--pool", "kvik://h:1"});
  EXPECT_TRUE(pooled.moves) << "what is named is somewhere else";
  EXPECT_FALSE(pooled.flags.node.store.any());
}

TEST(KvFlagsTest, WhatContradictsItselfOrDoesNothingIsRefused) {
  EXPECT_NE(Parse({"--no-kv-store", "--kv-store-memory", "1GiB"}).error, "");
  EXPECT_NE(Parse({"--no-kv-store", "--kv-store-disk", "/x"}).error, "");
  EXPECT_NE(Parse({"--kv-store-memory", "0"}).error.find("--no-kv-store"), std::string::npos);
  EXPECT_NE(Parse({"--no-kv-store", "--kv-profile", "raw"}).error.find("--kv-profile"),
            std::string::npos);
  EXPECT_EQ(Parse({"--kv-profile", "raw"}).error, "");
  for (const char* role : {"pool", "router"}) {
    EXPECT_NE(Parse({"--role", role, "--no-kv-store"}).error.find("--no-kv-store"),
              std::string::npos)
        << role;
  }
}

TEST(KvFlagsTest, KvThatCannotBeStoredIsNotByDefault) {
  app::RuntimeOptions uncached;
  uncached.prefix_caching = false;
  EXPECT_FALSE(Parse({}, uncached).moves);
  app::RuntimeOptions f32;
  f32.kv_dtype = kv::KvDtype::kF32;
  EXPECT_FALSE(Parse({}, f32).moves);
  // Who asks for it hears that it cannot be.
  EXPECT_TRUE(Parse({"--kv-store-memory", "1GiB"}, f32).moves);
  EXPECT_NE(Parse({"--kv-profile", "raw"}, f32).error, "");
}

}  // namespace
}  // namespace kvik::cli
