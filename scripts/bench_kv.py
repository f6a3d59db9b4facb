#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""KV that moves between servers, on sockets: a real model, emulated links (`--kv-link`), prompts of real questions.

    KVIK_EVAL_DATA=folder of *.jsonl KVIK_MODELS=folder scripts/bench_kv.py RESULTS [--sections pd] [--only REGEX]
                                                        [--budget SECONDS] [--report] [--docs FILE]

pd: prefill node, decode node and router for every way of compressing KV, side by side; each repeat sends the same prompt
    through all of them, one after the other, and nobody has seen it before. The link of a cell follows from
    R = (raw KV that the prefill makes a second) / bandwidth.

Every measurement is a line of JSON in RESULTS and is not made again, so the command can be stopped (--budget stops it by
itself) and repeated. Exact answers are compared with a server of its own before anything is timed. At the end the tables
of all there is are printed, and with --docs written between the markers of that file."""
import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import signal
import sys
import time

from kv_nodes import (LIBRARY, Measurements, Node, Prompts, find_model, judged, mean, ratio_interval)

Q_MIN = 0.97
MAX_TOKENS = 16
BYTES_PER_TOKEN = 30 * 3 * 64 * 2 * 2  # of SmolLM2-135M: layers, KV heads, channels, keys and values, bf16
PD_R = (0.1, 1, 10)
PD_WORKLOADS = ("math", "qa")
PD_LENGTHS = (128, 192, 256, 384, 512, 640, 768, 896, 1024, 160, 224, 320, 448, 720, 960)
PD_REPEATS = 15
PD_WARM_UP = 4
PILOT_LENGTHS = (128, 512, 1024)
PUBLISHED = ("kivi-4", "cachegen")  # never measured by the library: any quality
STATIC_CANDIDATES = 2  # of each cell, by the pilot


class Over(Exception):
    """The budget is spent."""


class Bench:
    def __init__(self, options):
        self.options = options
        self.results = Measurements(pathlib.Path(options.results) / "bench-kv.jsonl")
        self.library = {p["name"]: p for p in json.loads((LIBRARY / "library.json").read_text())["profiles"]}
        self.started = time.monotonic()
        self.nodes = contextlib.ExitStack()

    def node(self, *args):
        node = Node(*args)
        self.nodes.callback(node.stop)
        return node

    def engine(self, role, *args):
        return self.node("--role", role, "--model", find_model(), "--served-model-name", "demo", "--threads", 1,
                         "--kv-memory", "512MiB", "--profiles", LIBRARY, *args)

    def check_budget(self):
        if self.options.budget and time.monotonic() - self.started > self.options.budget:
            raise Over

    def note(self, text):
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    # ---- Prefill and decode apart ----

    def quality_of(self, arm):
        return {"raw": 1.0, "adaptive": Q_MIN}.get(arm, 0.0)

    def pair(self, prefill, arm, rate, workload="qa"):
        """The router of a decode node that takes KV in this way."""
        decode = self.engine("decode", "--kv-profile", arm, "--kv-link", f"rate={rate:.0f}B", "--default-quality",
                             self.quality_of(arm), "--default-workload", workload)
        return self.node("--role", "router", "--prefill", prefill.url, "--decode", decode.url)

    def prefill_rate(self, prefill, prompts):
        """Tokens a second, of prompts of 512."""
        if ("prefill",) not in self.results:
            speeds = []
            for i in range(6):
                reply, _ = prefill.complete(prompts.make("qa", 900 + i, 512), 1, f"rate-{i}")
                speeds.append(512e3 / reply["kvik"]["ttft_ms"])
            self.results.add(("prefill",), tokens_per_s=sorted(speeds[1:])[2])
        return self.results[("prefill",)]["tokens_per_s"]

    def rate(self, r):
        """Bytes a second of the link."""
        return self.results[("prefill",)]["tokens_per_s"] * BYTES_PER_TOKEN / r

    def check_exact(self, prefill, prompts):
        """What came over the link gives the answers of a server that computes everything."""
        if ("exact",) in self.results:
            return
        with contextlib.ExitStack() as stack:
            outer, self.nodes = self.nodes, stack
            try:
                routers = [self.pair(prefill, arm, self.rate(1)) for arm in ("raw", "adaptive", "lossless")]
            finally:
                self.nodes = outer
            for router in routers:
                router.wait_up()
            external = 0
            for number, length in enumerate((200, 600, 1024)):
                ids = prompts.make("qa", 950 + number, length)
                expected = prefill.complete(ids, 32, f"alone-{length}")[0]["choices"][0]["text"]
                for i, router in enumerate(routers):
                    reply, _ = router.complete(ids, 32, f"exact-{length}-{i}", quality=1)
                    external += reply["kvik"]["prompt_tokens_by_source"]["external"]
                    if reply["choices"][0]["text"] != expected:
                        raise SystemExit(f"bench-kv: an exact answer differs at {length} tokens, way {i}")
        if external == 0:
            raise SystemExit("bench-kv: no KV came over the link")
        self.results.add(("exact",), answers=9, external_tokens=external)

    def ask(self, router, key, ids, workload, quality):
        """One timed request, kept under its key."""
        reply, jct_ms = router.complete(ids, MAX_TOKENS, "/".join(map(str, key)), quality=quality, workload=workload)
        kvik = reply["kvik"]
        moved = kvik.get("transfer") or {}
        self.results.add(key, tokens=len(ids), jct_ms=jct_ms, ttft_ms=kvik["ttft_ms"], breakdown=kvik["breakdown_ms"],
                         by_source=kvik["prompt_tokens_by_source"], profile=moved.get("profile"),
                         wire_bytes=moved.get("wire_bytes", 0), raw_bytes=moved.get("raw_bytes", 0),
                         predicted_ms=moved.get("predicted_ms"), observed_ms=moved.get("observed_ms"),
                         why=moved.get("why"))

    def allowed(self, workload):
        return [name for name, p in self.library.items() if judged(p, workload) >= Q_MIN]

    def pilot_arms(self):
        return sorted(set().union(*(self.allowed(w) for w in PD_WORKLOADS)))

    def static_arms(self, workload, r):
        """The fastest allowed profiles, by the pilot."""
        def cost(arm):
            return mean(self.results[("pilot", r, arm, n)]["jct_ms"] for n in PILOT_LENGTHS)
        return sorted(self.allowed(workload), key=cost)[:STATIC_CANDIDATES]

    def run_pilot(self, r, prefill, prompts):
        for arm in self.pilot_arms():
            todo = [n for n in PILOT_LENGTHS if ("pilot", r, arm, n) not in self.results]
            if not todo:
                continue
            self.check_budget()
            with contextlib.ExitStack() as stack:
                outer, self.nodes = self.nodes, stack
                try:
                    router = self.pair(prefill, arm, self.rate(r))
                    router.wait_up()
                    router.complete(prompts.make("qa", 990, 300), 2, f"pilot-{r}-{arm}", quality=0)
                    for length in todo:
                        key = ("pilot", r, arm, length)
                        self.ask(router, key, prompts.make("qa", 970 + length % 7, length), "qa", 0)
                finally:
                    self.nodes = outer
            self.note(f"pilot R={r} {arm}: " + ", ".join(
                f"{self.results[('pilot', r, arm, n)]['jct_ms']:.0f}" for n in PILOT_LENGTHS) + " ms")

    def run_pd(self):
        cells = [(w, r) for r in PD_R for w in PD_WORKLOADS if re.search(self.options.only, f"pd/{w}/{r}")]
        repeats = range(self.options.repeats)
        prefill = prompts = None
        for workload, r in cells:
            if all(self.pd_done(workload, r, i) for i in repeats):
                continue
            if prefill is None:
                prefill = self.engine("prefill")
                prompts = Prompts(self.options.data, prefill)
                self.prefill_rate(prefill, prompts)
                self.check_exact(prefill, prompts)
                self.say_pd_eta(cells)
            self.run_pilot(r, prefill, prompts)
            self.check_budget()
            with contextlib.ExitStack() as stack:
                outer, self.nodes = self.nodes, stack
                try:
                    self.run_pd_cell(workload, r, prefill, prompts)
                finally:
                    self.nodes = outer

    def pd_arms(self, workload, r):
        statics = [arm for arm in self.static_arms(workload, r) if arm != "raw"]
        return ["raw", *PUBLISHED, *statics, "adaptive"]

    def pd_done(self, workload, r, repeat):
        return len(self.results.of("pd", workload, r, repeat)) >= len(PUBLISHED) + 2 + STATIC_CANDIDATES

    def run_pd_cell(self, workload, r, prefill, prompts):
        arms = self.pd_arms(workload, r)
        routers = {arm: self.pair(prefill, arm, self.rate(r), workload) for arm in arms}
        for router in routers.values():
            router.wait_up()
        session = f"{time.time():.0f}"
        for i in range(PD_WARM_UP):
            ids = prompts.make(workload, 800 + i, PD_LENGTHS[(3 * i + 2) % len(PD_LENGTHS)])
            for arm, router in routers.items():
                router.complete(ids, 2, f"warm-{session}-{arm}-{i}", quality=self.quality_of(arm), workload=workload)
        for repeat in range(self.options.repeats):
            ids = prompts.make(workload, repeat, PD_LENGTHS[repeat % len(PD_LENGTHS)])
            for at in range(len(arms)):
                arm = arms[(at + repeat) % len(arms)]
                key = ("pd", workload, r, repeat, arm)
                if key not in self.results:
                    self.check_budget()
                    self.ask(routers[arm], key, ids, workload, self.quality_of(arm))
        self.note(f"pd {workload} R={r}: done")

    def say_pd_eta(self, cells):
        tokens = mean(PD_LENGTHS)
        compute_s = tokens / self.results[("prefill",)]["tokens_per_s"] + 0.01 * MAX_TOKENS
        seconds = 0
        for workload, r in cells:
            raw_s = tokens * BYTES_PER_TOKEN / self.rate(r)
            left = sum(not self.pd_done(workload, r, i) for i in range(self.options.repeats))
            seconds += left * (6 * compute_s + raw_s * (1 + 4 / 5))
        for r in {r for _, r in cells}:
            left = sum(("pilot", r, arm, n) not in self.results for arm in self.pilot_arms() for n in PILOT_LENGTHS)
            seconds += left * (compute_s + 1 + tokens * BYTES_PER_TOKEN / self.rate(r) / 4)
        self.note(f"pd: about {seconds / 60:.1f} min; a prefill of {self.results[('prefill',)]['tokens_per_s']:.0f} "
                  f"tokens/s is {self.results[('prefill',)]['tokens_per_s'] * BYTES_PER_TOKEN / 1e6:.1f} MB/s of raw KV")

    def pd_tables(self):
        out = []
        if ("prefill",) not in self.results:
            return out
        speed = self.results[("prefill",)]["tokens_per_s"]
        out += ["### Prefill and decode apart", "",
                f"SmolLM2-135M, one thread a server, {MAX_TOKENS} tokens of answer, prompts of {min(PD_LENGTHS)} to "
                f"{max(PD_LENGTHS)} tokens. A prefill of {speed:.0f} tokens/s makes {speed * BYTES_PER_TOKEN / 1e6:.1f} MB/s "
                f"of raw KV. q_min = {Q_MIN}; *x*: not allowed, its quality for the workload was never measured. Ratios of JCT: "
                "geometric mean over paired repeats with its 95 % interval.", "",
                "| workload | R | Gbit/s | arm | q | repeats | TTFT ms | JCT ms | MB | ratio | adaptive / arm |",
                "|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|"]
        summary, chosen = [], []
        for r in PD_R:
            for workload in PD_WORKLOADS:
                repeats = [i for i in range(PD_REPEATS * 4) if self.pd_done(workload, r, i)]
                if not repeats:
                    continue
                arms = self.pd_arms(workload, r)
                rows = {arm: [self.results[("pd", workload, r, i, arm)] for i in repeats] for arm in arms}
                jct = {arm: [row["jct_ms"] for row in rows[arm]] for arm in arms}
                statics = [arm for arm in arms if arm not in (*PUBLISHED, "adaptive")]
                best = min(statics, key=lambda arm: mean(math.log(x) for x in jct[arm]))
                for arm in arms:
                    q = "x" if arm in PUBLISHED else f">= {Q_MIN}" if arm == "adaptive" else \
                        "1" if arm == "raw" else f"{judged(self.library[arm], workload):.3f}"
                    wire, raw = mean(x["wire_bytes"] for x in rows[arm]), mean(x["raw_bytes"] for x in rows[arm])
                    against = "" if arm == "adaptive" else "{:.3f} [{:.3f}, {:.3f}]".format(
                        *ratio_interval(jct["adaptive"], jct[arm]))
                    name = f"**{arm}** (best static)" if arm == best else arm
                    out.append(f"| {workload} | {r} | {self.rate(r) * 8 / 1e9:.3f} | {name} | {q} | {len(repeats)} | "
                               f"{mean(x['ttft_ms'] for x in rows[arm]):.0f} | {mean(jct[arm]):.0f} | {wire / 1e6:.2f} | "
                               f"{raw / wire if wire else 0:.2f} | {against} |")
                over_best = ratio_interval(jct["adaptive"], jct[best])
                over_raw = ratio_interval(jct["adaptive"], jct["raw"])
                share = mean(x["raw_bytes"] / self.rate(r) * 1e3 / x["jct_ms"] for x in rows["raw"])
                share = min(share, 1)
                cr = mean(x["raw_bytes"] / x["wire_bytes"] for x in rows["adaptive"] if x["wire_bytes"])
                summary.append(
                    f"| {workload} | {r} | {best} | {over_best[2]:.3f} {'met' if over_best[2] < 1.1 else '**missed**'} | "
                    f"{over_raw[2]:.3f} {'met' if over_raw[2] < 1.1 else '**missed**'} | {1 / over_raw[0]:.2f} | "
                    f"{1 / (1 - share + share / cr):.2f} |")
                counts = {}
                for row in rows["adaptive"]:
                    kind = "<= 256" if row["tokens"] <= 256 else "<= 640" if row["tokens"] <= 640 else "> 640"
                    name = row["profile"] or "computed"
                    counts.setdefault(kind, {}).setdefault(name, 0)
                    counts[kind][name] += 1
                chosen.append(f"| {workload} | {r} | " + " | ".join(
                    ", ".join(f"{name} {n}" for name, n in sorted(counts.get(kind, {}).items(), key=lambda c: -c[1]))
                    for kind in ("<= 256", "<= 640", "> 640")) + " |")
        out += ["", "Goals: upper ends below 1.10. Speedup over raw beside what it could be, 1 / ((1 - c) + c / cr), c the "
                "share of the wire in raw's JCT.", "",
                "| workload | R | best static | upper end, adaptive / best static | adaptive / raw | speedup over raw | bound |",
                "|---|---:|---|---:|---:|---:|---:|", *summary, "",
                "What adaptive chose, by tokens of the prompt:", "",
                "| workload | R | up to 256 | up to 640 | more |", "|---|---:|---|---|---|", *chosen, ""]
        return out

    # ---- All ----

    SECTIONS = ("pd",)

    def run(self):
        try:
            for section in self.options.sections.split(","):
                with self.nodes:
                    getattr(self, f"run_{section}")()
        except Over:
            self.note("the budget is spent; repeat the command to go on")
            return False
        return True

    def tables(self):
        return [line for section in self.SECTIONS for line in getattr(self, f"{section}_tables")()]

    def write_docs(self, path):
        begin, end = "<!-- bench_kv.py -->", "<!-- end of bench_kv.py -->"
        text = pathlib.Path(path).read_text()
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        if not after:
            raise SystemExit(f"bench-kv: {path} has no markers")
        pathlib.Path(path).write_text(before + "\n".join([begin, "", *self.tables()]) + end + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="folder; made if it is not there")
    parser.add_argument("--sections", default=",".join(Bench.SECTIONS))
    parser.add_argument("--only", default="", help="cells whose name has this regular expression, e.g. pd/math")
    parser.add_argument("--repeats", type=int, default=PD_REPEATS)
    parser.add_argument("--budget", type=float, help="seconds after which no measurement is begun")
    parser.add_argument("--report", action="store_true", help="only print the tables of what is there")
    parser.add_argument("--docs", help="write the tables into this file, between its markers")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the servers, too
    options.data = os.environ.get("KVIK_EVAL_DATA", "data/eval")
    bench = Bench(options)
    done = options.report or bench.run()
    print("\n".join(bench.tables()))
    if options.docs:
        bench.write_docs(options.docs)
    return 0 if done else 3


if __name__ == "__main__":
    sys.exit(main())
