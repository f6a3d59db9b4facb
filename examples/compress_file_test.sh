#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the example on made-up KV: an exact pipeline gives every value back, a lossy one is smaller.
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# 4 layers, 2 heads, 64 channels, 300 tokens, normally distributed: the upper halves of floats.
python3 - "$folder/kv.bf16" << 'END'
import random, struct, sys
random.seed(1)
floats = [random.gauss(0, 1) for _ in range(4 * 2 * 2 * 300 * 64)]
halves = struct.unpack(f"<{2 * len(floats)}H", struct.pack(f"<{len(floats)}f", *floats))[1::2]
open(sys.argv[1], "wb").write(struct.pack(f"<{len(halves)}H", *halves))
END
exact=$("$program" lossless "$folder/kv.bf16" "$folder/exact.kvs" 4 2 64)
echo "$exact"
grep -q " 0 of 307200 values differ" <<< "$exact"
lossy=$("$program" kivi-2 "$folder/kv.bf16" "$folder/lossy.kvs" 4 2 64)
echo "$lossy"
[[ $(stat -c %s "$folder/lossy.kvs") -lt $(stat -c %s "$folder/exact.kvs") ]]
if "$program" kivi-2 "$folder/kv.bf16" "$folder/x.kvs" 4 2 63 2> "$folder/error"; then
  echo "a file of another shape was accepted"
  exit 1
fi
grep -q "whole tokens" "$folder/error"
if "$program" no-such "$folder/kv.bf16" "$folder/x.kvs" 4 2 64 2> "$folder/error"; then
  exit 1
fi
grep -q "presets: lossless" "$folder/error"
