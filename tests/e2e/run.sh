#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# End-to-end tests: run.sh KVIK TINY_MODEL_WRITER [pytest arguments...]. Makes a virtual environment
# with pytest and the official openai client beside the binary once; exit code 77 (skipped) where
# pip cannot get them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kvik=$(realpath "$1")
writer=$(realpath "$2")
shift 2

venv=${KVIK_E2E_VENV:-$(dirname "$kvik")/e2e-venv}
# Another run may be making it.
exec 9> "$venv.lock"
flock 9
if ! "$venv/bin/python" -c 'import pytest, openai' 2> /dev/null; then
  log=$(mktemp)
  if ! { python3 -m venv "$venv" && "$venv/bin/python" -m pip install -q pytest openai; } > "$log" 2>&1; then
    echo "e2e: skipped, no pytest and openai to be had: $(tail -n 1 "$log")"
    rm -f "$log"
    exit 77
  fi
  rm -f "$log"
fi
# Without these the tests of KV events are skipped.
if ! "$venv/bin/python" -c 'import zmq, msgpack' 2> /dev/null; then
  "$venv/bin/python" -m pip install -q pyzmq msgpack > /dev/null 2>&1 || echo "e2e: no pyzmq and msgpack to be had"
fi
exec 9>&-
models=$(mktemp -d)
trap 'rm -rf "$models"' EXIT
"$writer" "$models/tiny.gguf"
# What kvik measures of this machine is kept in a cache of the run.
XDG_CACHE_HOME=$models/cache KVIK_BINARY=$kvik KVIK_TINY_MODEL=$models/tiny.gguf \
  "$venv/bin/python" -B -m pytest -q -p no:cacheprovider "$here" "$@"
