#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quality over conversations whose KV moves: does what q promises of one transfer still hold after several?

    session_quality.py [--sessions 16] [--turns 5] [--q-min 0.97,0.95] [--link SPEC]
    KVIK_EVAL_DATA=folder with qa.jsonl (default: ../shared/data/eval)
    KVIK_MODELS=folder with the model (default: that of `kvik pull`)

Conversations of several turns (passages and a question each) run on one server, exactly and greedily. Then again on a
prefill and a decode server behind a router, over a link so slow that KV is approximated, with a pool behind both, for
each q_min; before the last turn but one both servers forget all they had, so that KV comes from the pool. The answers
of the first run are forced upon the others token by token, and q is how often a position's likeliest token is the same,
of the positions where the exact run was sure (0.5 logit between its first and second). Prints a line for each turn.
Exit code 1 if q after the last turn is below q_min, a reply says that it had less, or nothing was approximated; 77
without data or model."""
import argparse
import json
import os
import pathlib
import random
import sys

from kvik_files import DEMO_MODEL
from kvik_process import Process, Roles, model_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
KVIK = os.environ.get("KVIK", str(ROOT / "build" / "kvik"))
LIBRARY = ROOT / "profiles" / "smollm2-135m"
WORKLOAD = "qa"
SURE_LOGITS = 0.5
SKIPPED = 77


class Turn:
    def __init__(self, prompt):
        self.prompt = prompt  # ids, the conversation until then included
        self.answer = []      # ids
        self.tops = []        # the likeliest token's text, of each
        self.sure = []        # whether the exact run was


class Texts:
    """Token ids of texts, as the server sees them."""

    def __init__(self, server):
        self.server, self.known = server, {}

    def ids(self, text):
        if text not in self.known:
            self.known[text] = self.server.request("POST", "/tokenize", {
                "prompt": text, "add_special_tokens": False})["tokens"]
        return self.known[text]


def complete(server, prompt, max_tokens, logprobs, **kvik):
    return server.request("POST", "/v1/completions", {
        "model": "demo", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "logprobs": logprobs, "kvik": kvik})


def ranked(top):
    """[(text, logprob)], the likeliest first."""
    return sorted(top.items(), key=lambda item: -item[1])


def exact_session(server, texts, items, args, number):
    """The turns of one conversation with the greedy answers of a server that moves no KV."""
    turns, history = [], []
    for turn in range(args.turns):
        own = items[(number * args.turns + turn) * args.passages:][:args.passages]
        text = "".join(f"\nPassage: {item['context']}" for item in own)
        text += f"\nQuestion: {random.Random(number * 100 + turn).choice(own)['prompt']}?\nAnswer:"
        now = Turn(history + texts.ids(text))
        logprobs = complete(server, now.prompt, args.max_tokens, 2, session=number)["choices"][0]["logprobs"]
        for piece, top in zip(logprobs["tokens"], logprobs["top_logprobs"]):
            ids = texts.ids(piece)
            if len(ids) != 1 or len(top) != 2:
                break  # not a text of its own: the answer ends before it
            best, second = ranked(top)
            now.answer += ids
            now.tops.append(best[0])
            now.sure.append(best[1] - second[1] >= SURE_LOGITS)
        history = now.prompt + now.answer
        turns.append(now)
    return turns


def interval(agreements):
    """(mean, lower end of its 95 % interval) of [(equal, positions)] by session."""
    positions = sum(n for _, n in agreements)
    mean = sum(equal for equal, _ in agreements) / positions
    rng = random.Random(1)
    means = []
    for _ in range(2000):
        drawn = [rng.choice(agreements) for _ in agreements]
        means.append(sum(e for e, _ in drawn) / max(1, sum(n for _, n in drawn)))
    return mean, sorted(means)[50]


def approximated(sessions, q_min, args):
    """Runs all conversations over the link. False: q_min was not kept, or nothing was approximated."""
    pool = Process(KVIK, "--role", "pool", "--kv-listen", "127.0.0.1:0", "--kv-store-memory", "2GiB")
    roles = Roles(KVIK, "--model", str(model_file(KVIK)), "--served-model-name", "demo", "--profiles", str(LIBRARY),
                  "--kv-memory", "1536MiB", "--threads", str(max(1, (os.cpu_count() or 2) // 2)), "--kv-link", args.link,
                  pool=pool)
    good, lossy = True, 0
    for turn in range(args.turns):
        if turn == args.turns - 2:
            roles.forget()
        agreements, told, external, profiles = [], [], 0, set()
        moved_back = roles.prefill.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
        for number, turns in enumerate(sessions):
            now = turns[turn]
            reply = complete(roles.router, now.prompt, len(now.answer), 1, session=number, workload=WORKLOAD, quality=q_min,
                             forced_token_ids=now.answer)
            choice = reply["choices"][0]["logprobs"]
            if len(choice["tokens"]) != len(now.answer):
                sys.exit(f"{len(choice['tokens'])} tokens came for {len(now.answer)}")
            same = [ranked(top)[0][0] == expected
                    for top, expected, sure in zip(choice["top_logprobs"], now.tops, now.sure) if sure]
            agreements.append((sum(same), len(same)))
            told.append(reply["kvik"]["quality"])
            external += reply["kvik"]["prompt_tokens_by_source"]["external"]
            profiles.add((reply["kvik"].get("transfer") or {}).get("profile") or "-")
        moved_back = roles.prefill.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") - moved_back
        mean, low = interval(agreements)
        lossy += sum(q < 1 for q in told)
        kept = min(told) >= q_min - 1e-6 and (turn < args.turns - 1 or mean >= q_min)
        good = good and kept
        print(f"{q_min:5.2f} {turn + 1:4} {sum(n for _, n in agreements):9} {100 * mean:7.2f} {100 * low:7.2f} "
              f"{min(told):8.4f} {sum(q < 1 for q in told):5}/{len(told):<3} {external:8} {moved_back:8.0f}  "
              f"{'+'.join(sorted(profiles))}{'' if kept else '  FAILED'}", flush=True)
    if lossy == 0:
        good = False
        print("FAILED: nothing was approximated")
    roles.stop()
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--passages", type=int, default=3, help="a turn")
    parser.add_argument("--max-tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--q-min", default="0.97,0.95")
    parser.add_argument("--link", default="rate=60Mbit,delay=1ms")
    args = parser.parse_args()
    data = pathlib.Path(os.environ.get("KVIK_EVAL_DATA", ROOT.parent / "shared" / "data" / "eval")) / "qa.jsonl"
    if not data.exists():
        print(f"session quality: skipped, no {data}")
        return SKIPPED
    items = [json.loads(line) for line in data.read_text().splitlines()]
    random.Random(5).shuffle(items)
    if len(items) < args.sessions * args.turns * args.passages:
        sys.exit(f"{data} has {len(items)} passages, too few")
    alone = Process(KVIK, "--model", str(model_file(KVIK)), "--served-model-name", "demo")
    texts = Texts(alone)
    sessions = [exact_session(alone, texts, items, args, number) for number in range(args.sessions)]
    alone.stop()
    lengths = [len(turns[-1].prompt) for turns in sessions]
    print(f"{DEMO_MODEL}, {args.sessions} conversations of {args.turns} turns, {min(lengths)} to {max(lengths)} tokens; "
          f"link {args.link}")
    print("q_min turn positions   q, % 95% low  told, least lossy  external  to prefill  profiles")
    results = [approximated(sessions, float(q_min), args) for q_min in args.q_min.split(",")]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
