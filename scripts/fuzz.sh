#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target (or the ones named) for FUZZ_SECONDS each, starting from
# tests/fuzz/corpus. New inputs stay in build-fuzz/; a finding is left there as crash-*, and the
# script exits 1. To replay one: build-fuzz/fuzz_NAME FILE.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-600}

cmake --preset fuzz > /dev/null
ninja -C build-fuzz fuzz_targets
if [[ $# -gt 0 ]]; then
  targets=("$@")
else
  mapfile -t targets < <(cd build-fuzz && ls fuzz_* | grep -vE '\.' | sed 's/^fuzz_//')
fi
status=0
for target in "${targets[@]}"; do
  work=build-fuzz/corpus/$target
  mkdir -p "$work" "tests/fuzz/corpus/$target"
  echo "fuzz: $target for $seconds s"
  log=build-fuzz/$target.log
  # rss_limit: a small input must never make a reader allocate without bound.
  if build-fuzz/fuzz_"$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 \
    -artifact_prefix="build-fuzz/$target-" -print_final_stats=1 \
    "$work" "tests/fuzz/corpus/$target" > "$log" 2>&1; then
    echo "fuzz: $target clean, $(grep -o 'number_of_executed_units: [0-9]*' "$log" | tail -1)"
  else
    status=1
    echo "fuzz: $target FOUND something; last lines of $log:"
    tail -40 "$log"
  fi
done
exit $status
