#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""KV that moves: a prefill server, a decode server, a router and a pool over a shaped link.

    demo_roles.py KVIK MODEL [--link SPEC] [--quality Q] [--prompts N] [--words N]

For every way of compressing KV the same prompts are answered twice: cold (the prefill server computes the prompt, the
decode server gets its KV) and warm (both have forgotten it, the pool has not). Prints latencies, bytes and the reasons
of the controller. Exit code 1 if an exact answer differs from the decode server's own.
"""
import argparse
import os
import sys
import time

from kvik_process import Process, Roles

WORDS = ("the cache keeps what a model has read so that it need not read it again and every block of it is named by all "
         "that came before").split()


def prompt(number, words):
    return f"Story {number}. " + " ".join(WORDS[(i * 7 + i * i * (number + 3)) % len(WORDS)] for i in range(words))


class Server(Process):
    def complete(self, text, quality, max_tokens):
        start = time.monotonic()
        reply = self.request("POST", "/v1/completions", {
            "prompt": text, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "kvik": {"quality": quality, "workload": "qa"}})
        return reply, (time.monotonic() - start) * 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvik")
    parser.add_argument("model")
    parser.add_argument("--profiles", help="a profile library of the model")
    parser.add_argument("--link", default="rate=400Mbit,delay=1ms")
    parser.add_argument("--quality", type=float, default=0.95)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--words", type=int, default=700)
    parser.add_argument("--max-tokens", type=int, default=16)
    args = parser.parse_args()

    # A fixed profile is judged by what it does, measured or not; the controller keeps to its budget.
    arms = [("raw", 1.0), ("kivi-4", 0.0), ("cachegen", 0.0), ("adaptive", args.quality), ("adaptive", 1.0)]
    print(f"link {args.link}; quality budget of adaptive: {args.quality} (and 1, exact); fixed lossy profiles: any quality")
    header = ("profile", "budget", "KV from", "TTFT ms", "JCT ms", "MB", "ratio", "encoding", "computed/local/external")
    print("{:9} {:>6} {:8} {:>8} {:>8} {:>7} {:>6} {:16} {}".format(*header))
    texts = [prompt(i, args.words) for i in range(args.prompts)]
    exact, differ, whys = {}, 0, []
    common = ["--model", args.model, "--served-model-name", "demo", "--threads", str(max(1, (os.cpu_count() or 2) // 2))]
    library = ["--profiles", args.profiles] if args.profiles else []
    for profile, quality in arms:
        pool = Server(args.kvik, "--role", "pool", "--kv-listen", "127.0.0.1:0")
        roles = Roles(args.kvik, *common, *library, "--kv-profile", profile, "--default-quality", str(quality), pool=pool,
                      decode_args=("--kv-link", args.link), kind=Server)
        for source in ("prefill", "pool"):
            rows = []
            for i, text in enumerate(texts):
                reply, job_ms = (roles.router if source == "prefill" else roles.decode).complete(text, quality, args.max_tokens)
                rows.append((reply["kvik"], job_ms))
                if quality == 1:
                    answer = reply["choices"][0]["text"]
                    differ += exact.setdefault(i, answer) != answer
            roles.forget()
            moved = [k.get("transfer") or {} for k, _ in rows]
            mean = lambda values: sum(values) / len(rows)
            wire, raw = mean([m.get("wire_bytes", 0) for m in moved]), mean([m.get("raw_bytes", 0) for m in moved])
            by = [mean([k["prompt_tokens_by_source"][s] for k, _ in rows]) for s in ("computed", "local_cache", "external")]
            print("{:9} {:6.2f} {:8} {:8.0f} {:8.0f} {:7.2f} {:6.2f} {:16} {:.0f}/{:.0f}/{:.0f}".format(
                profile, quality, source, mean([k["ttft_ms"] for k, _ in rows]), mean([ms for _, ms in rows]),
                wire / 1e6, raw / wire if wire else 0, "+".join(sorted({m.get("profile") or "-" for m in moved})), *by))
            last = rows[-1][0]
            whys.append((profile, quality, source, last["breakdown_ms"], (last.get("transfer") or {}).get("why", "")))
        roles.stop()
    print("\nwhere the time of the last request went, and why its KV moved as it did")
    for profile, quality, source, breakdown, why in whys:
        parts = ", ".join(f"{name} {ms:.0f}" for name, ms in breakdown.items() if ms >= 0.5)
        print(f"{profile} {quality:.2f}, KV from {source}: {parts} ms; {why}")
    print(f"\nexact answers: {'all equal' if differ == 0 else f'{differ} DIFFER'}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
