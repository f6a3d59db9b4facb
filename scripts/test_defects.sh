#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Would the exactness check notice? Builds kvik with three bugs on purpose (base/planted_defect.h)
# and expects `kvik selftest exact` to pass without them and to fail with each.
set -euo pipefail
cd "$(dirname "$0")/.."
flags=(selftest exact --model "${KVIK_DEMO_MODEL:-demo}" --configurations 4 --quiet)

cmake --preset defects > /dev/null
ninja -C build-defects kvik
[[ -n ${KVIK_DEMO_MODEL:-} ]] || build-defects/kvik pull demo --quiet > /dev/null

failed=0
echo "defects: none planted"
if ! KVIK_DEFECT='' build-defects/kvik "${flags[@]}" 2> /dev/null | tail -1; then
  echo "defects: FAILED without a defect"
  failed=1
fi
for defect in gap_position m_dependent stale_slot; do
  echo "defects: $defect planted"
  status=0
  KVIK_DEFECT=$defect build-defects/kvik "${flags[@]}" 2> /dev/null | tail -1 || status=$?
  if [[ $status -ne 1 ]]; then
    echo "defects: $defect was NOT noticed (exit code $status)"
    failed=1
  fi
done
[[ $failed -eq 0 ]] && echo "defects: each of three was noticed"
exit $failed
