#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A real model under random conversations and clients that leave at any time: soak.sh [flags of
# kvik selftest soak...]. Without flags three short rounds, about a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -n ${KVIK_DEMO_MODEL:-} ]] || build/kvik pull demo --quiet > /dev/null
[[ $# -gt 0 ]] || set -- --rounds 3 --requests 40
build/kvik selftest soak --model "${KVIK_DEMO_MODEL:-demo}" "$@"
