#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The demonstration behind `make demo`: fetches a small model, starts a server whose cache is too
# small for the load and loses blocks at random, answers a chat, then replays the same conversations
# cold (nothing reused) and warm (segments with gaps reused), and compares every answer.
# Exit code 1 if an answer differs, or fewer than 20 % of the warm requests reused two or more
# segments.
set -euo pipefail
cd "$(dirname "$0")/.."

kvik=${KVIK:-build/kvik}
[[ -x $kvik ]] || { echo "demo: $kvik is not built; run: make build" >&2; exit 1; }
work=$(mktemp -d)
server=
cleanup() {
  if [[ -n $server ]]; then
    kill "$server" 2> /dev/null || true
    wait "$server" 2> /dev/null || true
  fi
  rm -rf "$work"
}
trap cleanup EXIT

model=${1:-}
if [[ -z $model ]]; then
  echo '== model'
  model=$("$kvik" pull demo)
fi
echo "$model"

# 240 blocks are 3840 tokens: less than the conversations below have together, so blocks go, and
# with --policy random they go from the middle of prompts. No store gives them back.
echo '== server'
"$kvik" serve --model "$model" --served-model-name demo --port 0 --policy random --no-kv-store \
  --num-blocks 240 --max-model-len 2048 --max-num-seqs 8 > "$work/out" 2> "$work/log" &
server=$!
url=
for _ in $(seq 600); do
  url=$(sed -n 's/^kvik: serving .* on //p' "$work/out")
  [[ -z $url ]] || break
  kill -0 "$server" 2> /dev/null || { cat "$work/log" >&2; exit 1; }
  sleep 0.1
done
[[ -n $url ]] || { echo 'demo: the server did not start within a minute' >&2; exit 1; }
cat "$work/log"
echo "listening on $url"

echo '== chat'
curl -sS --fail-with-body "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "model": "demo", "temperature": 0, "max_tokens": 40,
  "messages": [{"role": "user", "content": "What is the capital of France?"}]}' > "$work/chat"
python3 - "$work/chat" << 'PYTHON'
import json, sys
reply = json.load(open(sys.argv[1]))
print(reply["choices"][0]["message"]["content"])
print("usage:", json.dumps(reply["usage"]))
PYTHON

load=(--workload multi-turn --base-url "$url" --sessions 6 --turns 4 --turn-words 100
      --system-words 80 --max-tokens 24 --concurrency 3 --seed 1 --answers "$work/answers")
echo '== the load, cold: every request computes its whole prompt'
"$kvik" bench "${load[@]}" --cold
echo '== the same load, warm: requests reuse what is left in the cache, gaps and all'
"$kvik" bench "${load[@]}" --warmup 1 --json > "$work/warm.json" || true
python3 - "$work/warm.json" << 'PYTHON'
import json, sys
r = json.load(open(sys.argv[1]))
for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
    d = r[name]
    print(f"{name[:-3].upper():22s} mean {d['mean']:8.1f} ms   P50 {d['p50']:8.1f}   P90 {d['p90']:8.1f}   P99 {d['p99']:8.1f}")
share = r["multi_segment_share"]
print(f"hit rate               {100 * r['hit_rate']:.1f} % of {r['prompt_tokens']} prompt tokens")
print(f"segments               {r['mean_segments']:.2f} a request; {100 * share:.1f} % of requests had 2 or more")
identical = r["failed"] == 0 and r["differing_outputs"] == 0
print(f"outputs identical: {'yes' if identical else 'no'} ({r['requests']} answers, {r['differing_outputs']} differ, {r['failed']} failed)")
if share < 0.2:
    print("demo: fewer than 20 % of the warm requests reused two or more segments", file=sys.stderr)
sys.exit(0 if identical and share >= 0.2 else 1)
PYTHON
kill "$server" 2> /dev/null || true
wait "$server" 2> /dev/null || true
server=

# Prompts computed on one server, answers on another, a pool behind both: raw, two published
# methods, and what the controller chooses.
echo '== KV over a slow link: prefill, decode, router, pool'
library=()
if [[ $(basename "$model") == SmolLM2-135M* ]]; then
  library=(--profiles profiles/smollm2-135m)
fi
python3 scripts/demo_roles.py "$kvik" "$model" "${library[@]}"
