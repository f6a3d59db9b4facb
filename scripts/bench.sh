#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every *_bench program on every ISA this machine has, best first. Each program compares with its
# reference before it times, measures the machine's peaks in the same run, and exits 1 when a goal
# (a share of those peaks) is missed. Arguments go to the programs: --quick, --threads N, --only TEXT.
set -euo pipefail
cd "$(dirname "$0")/.."

has() { grep -m1 '^flags' /proc/cpuinfo | grep -qw "$1"; }
isas=()
if has avx512f && has avx512bw && has avx512dq && has avx512vl; then
  if has avx512_bf16; then isas+=(avx512bf16); fi
  isas+=(avx512)
fi
if has avx2 && has fma; then isas+=(avx2); fi
if [[ ${#isas[@]} -eq 0 ]]; then isas=(scalar); fi

short=0
runs=0
for isa in "${isas[@]}"; do
  for bench in build/*_bench; do
    if [[ $bench =~ /(eviction|store)_bench$ && $isa != "${isas[0]}" ]]; then continue; fi  # no kernels
    echo "== ${bench#build/} on $isa"
    runs=$((runs + 1))
    KVIK_KERNELS=$isa "$bench" "$@" || short=$((short + 1))
  done
done
echo "bench: $((runs - short)) of $runs runs (${isas[*]}) reach every goal"
[[ $short -eq 0 ]]
