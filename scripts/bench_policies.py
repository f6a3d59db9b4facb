#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Eviction policies on the real engine: the same forced load on `kvik serve` under each, at 0.9 of what LRU can serve.

    scripts/bench_policies.py RESULTS [--only REGEX] [--scale 8] [--pool-share 0.5] [--wrap COMMAND]
    KVIK_MODELS=folder with the model   BFCL=folder of an unpacked bfcl-eval (absent: made-up questions)

Loads: longbench:5 and longbench:10 (8 sessions of 5 turns, lengths divided by --scale), agentic (12 sessions), and
independent prompts for what adaptive chunks change. For each, LRU first serves the load as fast as it comes: that is its capacity, and what the sessions hold in the end is the
working set, a share of which is the pool. Then every cell is a fresh server and one pass of the load at 0.9 of that
capacity (mean offered rate over the load). asym and hazard start from what `kvik replay` learned from the same
generator with another seed; cells named *-cold start with nothing. All answers are forced, and the log-probabilities
of all cells of a load are compared to the last bit.

A cell is a file in RESULTS; what is there is not run again, so the command can be stopped and repeated. At the end the
tables of all files are printed. --wrap runs each cell under another command, such as a lock for the machine."""
import argparse
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

from kvik_files import demo_model

ROOT = pathlib.Path(__file__).resolve().parent.parent
KVIK = os.environ.get("KVIK", str(ROOT / "build" / "kvik"))
LOAD_SHARE = 0.9  # of LRU's capacity
SESSIONS, TURNS = 8, 5
AGENTS = 12
SEED, OTHER_SEED = 1, 1001
BLOCK_TOKENS = 16
ROOMY_BLOCKS = 8192
START_TIMEOUT_S = 180
POLICIES = ("lru", "hazard", "asym", "max-score", "pensieve")
LEARNING = ("asym", "hazard")
LOADS = ("longbench:10", "longbench:5", "agentic", "random")


class Cell:
    """One pass of a load on one server."""

    def __init__(self, name, load, policy, *, cold=False, serve=(), load_share=LOAD_SHARE, fill=False):
        self.name, self.load, self.policy, self.cold = name, load, policy, cold
        self.serve, self.load_share, self.fill = tuple(serve), load_share, fill

    @property
    def inner(self):
        """The policy without its overlays."""
        return self.policy.partition("+")[0]


def cells():
    """The most telling ones first, in case the run is stopped."""
    def load_cells(load, policies):
        for policy in policies:
            yield Cell(f"{load.replace(':', '-')}/{policy}", load, policy)

    yield from load_cells("longbench:10", POLICIES)
    yield Cell("longbench-10/hazard-cold", "longbench:10", "hazard", cold=True)
    yield from load_cells("agentic", [*POLICIES, "lru+continuum", "asym+continuum", "hazard+continuum"])
    yield from load_cells("longbench:5", POLICIES)
    for repeat in (2, 3):
        for policy in ("lru", "hazard"):
            yield Cell(f"longbench-10/{policy}-{repeat}", "longbench:10", policy)
    fixed = ("--chunk-decode-threshold", "100000")
    for what, share in (("unloaded", 0.25), ("queueing", 1.1)):
        yield Cell(f"chunks-{what}/adaptive", "random", "lru", load_share=share)
        yield Cell(f"chunks-{what}/fixed", "random", "lru", load_share=share, serve=fixed)
    for policy in ("hazard", "asym"):
        yield Cell(f"longbench-10/{policy}-prefix-only", "longbench:10", policy, serve=("--reuse", "prefix"))
    for name, select in (("two-sets", "auto"), ("scan", "scan")):
        yield Cell(f"evictor-8k/{name}", "random", "asym", load_share=0.5, serve=("--select", select), fill=True)


class Server:
    def __init__(self, model, flags, log):
        self.log_path = log
        self.log = open(log, "w")
        self.process = subprocess.Popen(
            [KVIK, "serve", "--model", str(model), "--port", "0", "--no-kv-store", *flags], stdout=self.log,
            stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            found = re.search(r"serving .* on (http://\S+)", log.read_text())
            if found:
                self.url = found[1]
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise SystemExit(f"bench-policies: the server did not start: see {log}")
            time.sleep(0.1)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


class Bench:
    def __init__(self, options):
        self.options = options
        self.results = pathlib.Path(options.results)
        self.model = demo_model("bench-policies")

    def shape(self, load, seed=SEED, requests=SESSIONS * TURNS, agents=AGENTS):
        """The flags of a load that `kvik bench` and `kvik replay` share."""
        flags = ["--workload", load, "--seed", str(seed)]
        if load == "random":
            return [*flags, "--requests", "40", "--input-tokens", "1024", "--output-tokens", "128", "--spread", "0.8"]
        if load != "agentic":
            return [*flags, "--scale", str(self.options.scale), "--requests", str(requests)]
        flags += ["--sessions", str(agents)]
        return flags + (["--bfcl", os.environ["BFCL"]] if os.environ.get("BFCL") else [])

    def path(self, name):
        path = self.results / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def blocks(self, load):
        if load == "random":  # nothing is shared: what counts is that all fit that run
            return ROOMY_BLOCKS
        # What agents share, their instructions, is counted once for each of them: half as much is as scarce.
        share = self.options.pool_share / 2 if load == "agentic" else self.options.pool_share
        return round(share * self.working_set(load))

    def working_set(self, load):
        """Blocks that the sessions hold in the end, shared beginnings counted once a session."""
        ends = {}
        for sample in json.loads(self.path(f"{load.replace(':', '-')}/size").read_text())["samples"]:
            tokens = sample["prompt_tokens"] + sample["completion_tokens"]
            ends[sample["session"]] = max(ends.get(sample["session"], 0), tokens)
        return sum(tokens // BLOCK_TOKENS for tokens in ends.values())

    def capacity(self, load):
        return json.loads(self.path(f"{load.replace(':', '-')}/capacity").read_text())["summary"]["requests_per_second"]

    def rate(self, load, share):
        """--rate for a mean offered rate of `share` of LRU's capacity. Sessions of long documents are few here and
        begin long before the last ends, so the rate that names the load is more than the mean over it."""
        offered = share * self.capacity(load)
        if ":" not in load:
            return offered
        ratio = float(load.partition(":")[2])
        span_at_one = (SESSIONS - 1) * TURNS + (TURNS - 1) * ratio * TURNS  # seconds, at --rate 1
        return offered * span_at_one / (SESSIONS * TURNS)

    def run(self, argv):
        argv = shlex.split(self.options.wrap or "") + [str(a) for a in argv]
        done = subprocess.run(argv, stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            raise SystemExit(f"bench-policies: failed: {shlex.join(argv)}")

    def drive(self, url, flags, save, name, logprobs=None):
        part = save.with_suffix(".part")
        answers = ["--logprobs", "--answers", logprobs] if logprobs else []
        self.run([KVIK, "bench", "--base-url", url, *flags, *answers, "--save", part, "--quiet"])
        part.replace(save)
        print(f"{time.strftime('%H:%M:%S')} {name}: done", file=sys.stderr, flush=True)

    def prepare(self, load):
        """The size of the load, then LRU's capacity with the pool that follows from it."""
        short = load.replace(":", "-")
        for what in ("size", "capacity"):
            save = self.path(f"{short}/{what}")
            if save.exists():
                continue
            blocks = self.blocks(load) if what == "capacity" else ROOMY_BLOCKS
            flags = ["--policy", "lru", "--num-blocks", str(blocks)]
            server = Server(self.model, flags, save.with_suffix(".log"))
            try:
                # As fast as it comes: all start at once, no pauses. The sizes do not depend on answers: they are forced.
                self.drive(server.url, [*self.shape(load), "--rate", "1000", "--speedup", "1000"], save, f"{short}/{what}")
            finally:
                server.close()

    def state(self, cell):
        """What the policy learned from the generator's other seed, at the same rate, as a server would find it."""
        path = self.path(f"states/{cell.name.replace('/', '_')}")
        shape = self.shape(cell.load, OTHER_SEED, requests=300, agents=60)
        subprocess.run([KVIK, "replay", *shape, "--qps", f"{self.rate(cell.load, cell.load_share):.6g}", "--block-size", str(BLOCK_TOKENS),
                        "--policies", cell.policy, "--cache-blocks", str(self.blocks(cell.load)), "--save-state", str(path),
                        "--quiet"], check=True, stdout=subprocess.DEVNULL)
        return path

    def measure(self, cell):
        save = self.path(cell.name)
        if save.exists():
            return
        self.prepare(cell.load)
        flags = ["--policy", cell.policy, *cell.serve]
        flags += ["--num-blocks", str(ROOMY_BLOCKS) if cell.fill else str(self.blocks(cell.load))]
        if cell.inner in LEARNING and not cell.cold:
            flags += ["--policy-state", str(self.state(cell))]
        server = Server(self.model, flags, save.with_suffix(".log"))
        try:
            if cell.fill:  # every block of the pool is cached before the load comes
                self.drive(server.url, ["--workload", "random", "--requests", "70", "--input-tokens", "2000",
                                        "--output-tokens", "2", "--concurrency", "2", "--seed", "7"],
                           save.with_suffix(".fill"), f"{cell.name}, filling")
            self.drive(server.url, [*self.shape(cell.load), "--rate", f"{self.rate(cell.load, cell.load_share):.6g}"], save,
                       cell.name, self.results / f"{cell.load.replace(':', '-')}.answers")
        finally:
            server.close()

    def report(self):
        done = [c for c in cells() if self.path(c.name).exists()]
        for load in LOADS:
            if any(c.load == load for c in done):
                print(f"\n{load}: working set {self.working_set(load)} blocks, pool {self.blocks(load)}; LRU serves "
                      f"{self.capacity(load):.3f} requests/s; offered {LOAD_SHARE} of it"
                      + (f"; lengths / {self.options.scale}" if ":" in load else ""))
            group = None
            for cell in (c for c in done if c.load == load):
                if cell.name.partition("/")[0] != group:
                    group = cell.name.partition("/")[0]
                    base = next(c for c in done if c.name.partition("/")[0] == group)
                    print(f"\n| {group} | TTFT ms mean | P50 | P90 | P99 | TPOT ms mean | P50 | P90 | P99 | hit % | segments "
                          f"| job s mean | P90 | TTFT over {base.name.partition('/')[2]} |")
                    print("|---|" + "---:|" * 13)
                self.row(cell, base)

    def row(self, cell, base):
        summary = json.loads(self.path(cell.name).read_text())["summary"]
        values = [f"{summary[metric][part]:.1f}" for metric in ("ttft_ms", "tpot_ms") for part in ("mean", "p50", "p90", "p99")]
        values += [f"{100 * summary['hit_rate']:.1f}", f"{summary['mean_segments']:.2f}"]
        values += [f"{summary['job_ms'][part] / 1000:.1f}" for part in ("mean", "p90")]
        ratio = "1"
        if cell.name != base.name:
            compared = json.loads(subprocess.run(
                [KVIK, "bench", "compare", str(self.path(base.name)), str(self.path(cell.name)), "--json"], check=True,
                capture_output=True, text=True).stdout)
            ttft = next(m for m in compared if m["metric"] == "ttft_ms mean")
            ratio = f"{ttft['ratio']:.3f} [{ttft['low']:.3f}, {ttft['high']:.3f}]"
        print(f"| {cell.name.partition('/')[2]} | " + " | ".join(values) + f" | {ratio} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="folder; made if it is not there")
    parser.add_argument("--only", default="", help="cells whose name has this regular expression")
    parser.add_argument("--scale", type=int, default=8, help="lengths of the long documents are divided by this (8)")
    parser.add_argument("--pool-share", type=float, default=0.5, help="of the working set (0.5)")
    parser.add_argument("--wrap", help="command to run each pass of a load under")
    parser.add_argument("--report", action="store_true", help="only print the tables of what is there")
    options = parser.parse_args()
    bench = Bench(options)
    if not options.report:
        for cell in cells():
            if re.search(options.only, cell.name):
                bench.measure(cell)
    bench.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
