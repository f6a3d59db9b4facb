#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Would the selftests notice? Builds kvik with bugs on purpose (base/planted_defect.h) and expects
# `kvik selftest exact` and `soak` to pass without them and to fail with each.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${KVIK_DEMO_MODEL:-demo}

cmake --preset defects > /dev/null
ninja -C build-defects kvik
[[ -n ${KVIK_DEMO_MODEL:-} ]] || build-defects/kvik pull demo --quiet > /dev/null

failed=0
# check NAME FLAGS...: runs a selftest without a defect and with each.
check() {
  local what=$1
  shift
  echo "defects: $what, none planted"
  if ! KVIK_DEFECT='' build-defects/kvik selftest "$@" 2> /dev/null | tail -1; then
    echo "defects: $what FAILED without a defect"
    failed=1
  fi
  for defect in gap_position m_dependent stale_slot; do
    echo "defects: $what, $defect planted"
    local status=0
    KVIK_DEFECT=$defect build-defects/kvik selftest "$@" 2> /dev/null | tail -1 || status=$?
    if [[ $status -ne 1 ]]; then
      echo "defects: $what did NOT notice $defect (exit code $status)"
      failed=1
    fi
  done
}
check exact exact --model "$model" --configurations 4 --quiet
check soak soak --model "$model" --policy asym --rounds 1 --requests 150 --seed 3 --quiet
[[ $failed -eq 0 ]] && echo "defects: each of three was noticed"
exit $failed
