#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares with reference values made by other programs: KVIK_GOLDEN=folder (default
# ../shared/data/golden), models from KVIK_MODELS=folder (default: the folder of `kvik pull`, which
# is asked for the two models when the references are there). What is missing is skipped by name.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -d ${KVIK_GOLDEN:-../shared/data/golden} && -z ${KVIK_MODELS:-} ]]; then
  for model in demo qwen; do
    build/kvik pull "$model" > /dev/null || echo "test-golden: cannot fetch '$model'; what needs it is skipped"
  done
fi
status=0
build/kvik_golden || status=$?
[[ $status -eq 77 ]] || exit "$status"  # 77: nothing to compare with, and nobody asked for it
