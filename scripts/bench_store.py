#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What keeping KV in memory and on disk costs a server whose prompts are all new, so that nothing is ever loaded:

    bench_store.py [--rounds N] [--prompts N] [--tokens N] [--new N] [--clients N] [FLAGS OF KVIK SERVE...]

Two servers, one without a store and one with the embedded one, answer different prompts of the same length in turns, in
an order that alternates; a turn begins when what the last one left to store is stored. Prints geometric means of the paired
ratios (with the store / without) of TTFT, of tokens per second and of CPU time, with their 95 % intervals.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import sys
import tempfile
import time

from kv_nodes import KVIK, mean, ratio_interval
from kvik_files import demo_model
from kvik_process import Process, settle

ARMS = ("off", "on")


def cpu_seconds(server):
    """What the process has taken of all cores."""
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def turn(server, prompts, new, clients):
    """(mean TTFT in ms, prompt and new tokens per second)."""
    def ask(prompt):
        return server.request("POST", "/v1/completions",
                              {"prompt": prompt, "max_tokens": new, "temperature": 0, "ignore_eos": True})
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        replies = list(pool.map(ask, prompts))
    seconds = time.monotonic() - start
    assert all(reply["kvik"]["prompt_tokens_by_source"]["computed"] == len(prompt)
               for reply, prompt in zip(replies, prompts, strict=True)), "a prompt was not new"
    return mean(reply["kvik"]["ttft_ms"] for reply in replies), sum(len(p) + new for p in prompts) / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=8, help="of a turn")
    parser.add_argument("--tokens", type=int, default=1024, help="of a prompt")
    parser.add_argument("--new", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--clients", type=int, default=1, help="requests at a time")
    args, serve = parser.parse_known_args()
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="kvik-bench-store-") as folder:
        store = {"off": ["--no-kv-store"], "on": ["--kv-store-memory", "1GiB", "--kv-store-disk", f"{folder}:4GiB"]}
        servers = {arm: Process(KVIK, "--model", str(demo_model("bench-store")), "--kv-memory", "1GiB", *store[arm], *serve)
                   for arm in ARMS}
        taken = {arm: [] for arm in ARMS}
        for number in range(-1, args.rounds):  # the first one warms up
            for arm in ARMS if number % 2 else reversed(ARMS):
                prompts = [[rng.randrange(1000, 40000) for _ in range(args.tokens)] for _ in range(args.prompts)]
                before = cpu_seconds(servers[arm])
                measured = turn(servers[arm], prompts, args.new, args.clients)
                settle(lambda: servers[arm].metric("kvik:kv_store_written_bytes_total", tier="disk"))
                if number >= 0:
                    taken[arm].append((*measured, cpu_seconds(servers[arm]) - before))
        on = servers["on"]
        stored = on.metric("kvik:kv_store_written_bytes_total", tier="disk")
        dropped = on.metric("kvik:kv_stores_dropped_total")
        for server in servers.values():
            server.stop()
    print(f"{args.rounds} pairs of turns of {args.prompts} prompts of {args.tokens} tokens and {args.new} new ones, "
          f"{args.clients} at a time, {os.cpu_count()} cores; {stored / 1e6:.0f} MB stored, {dropped:.0f} chunks dropped")
    for index, what in enumerate(("TTFT, ms", "tokens/s", "CPU, s")):
        values = {arm: [row[index] for row in taken[arm]] for arm in ARMS}
        ratio, low, high = ratio_interval(values["on"], values["off"])
        print(f"{what:9} off {mean(values['off']):7.2f}  on {mean(values['on']):7.2f}  on/off {ratio:.3f} "
              f"(95 %: {low:.3f} to {high:.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
