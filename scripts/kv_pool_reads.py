# SPDX-License-Identifier: Apache-2.0
"""bench_kv.py, reads from a pool: TTFT by bandwidth and length, a link that changes, where profiles change places."""
import json
import math
import os
import pathlib
import subprocess
import sys
import time

from kv_nodes import BYTES_PER_TOKEN, Over, Prompts, Q_MIN, Section, mean, median
from kvik_files import CACHE, demo_model

WORKLOAD = "qa"
SALT = "pool"
# "adaptive" stores what a server without a fixed profile does.
STORED = ("adaptive", "raw", "lossless", "packed-16", "rotated-1.4", "joint-1", "joint-1.4", "cachegen", "cachegen-2", "cachegen-3")


class PoolSection(Section):
    """A pool on disk in RESULTS that has prompts in many encodings, and readers that forget them after each request."""

    LENGTHS = ()
    ENCODINGS = STORED

    def start_pool(self, lengths):
        folder = pathlib.Path(self.options.results) / "pool"
        folder.mkdir(parents=True, exist_ok=True)
        self.pool = self.node("--role", "pool", "--kv-listen", "127.0.0.1:0", "--kv-store-memory", "2GiB", "--kv-store-disk",
                              f"{folder}:8GiB", "--kv-store-encodings", len(STORED))
        self.plain = self.node("--model", demo_model("bench-kv"), "--served-model-name", "demo", "--threads", 1, "--kv-memory", "512MiB")
        self.prompts = Prompts(self.options.data, self.plain)
        for arm in self.ENCODINGS:
            todo = [n for n in lengths if ("stored", arm, n) not in self.results]
            if not todo:
                continue
            self.check_budget()
            with self.servers():
                writer = self.engine("both", "--kv-profile", arm, "--default-quality", self.quality_of(arm), "--pool", self.pool.kv)
                for length in todo:
                    writer.complete(self.prompts.make(WORKLOAD, 0, length), 1, SALT, quality=1 if arm == "adaptive" else 0)
            for length in todo:  # ending the writer has stored all of it
                self.results.add(("stored", arm, length))
            self.note(f"the pool has {arm}")
        if self.options.prepare:
            raise Over

    def reader(self, arm, rate, *, meets=False):
        """`meets`: loads from the tail while it computes from the front; else all is fetched, as from a peer that promised it."""
        more = ("--pool", self.pool.kv) if meets else ()
        return self.engine("decode", "--kv-profile", arm, "--default-quality", self.quality_of(arm), "--default-workload", WORKLOAD,
                           "--kv-link", rate if isinstance(rate, str) else f"rate={rate:.0f}B", *more)

    def read(self, reader, key, length, arm, *, meets=False):
        reader.request("POST", "/reset_prefix_cache")
        host, _, port = self.pool.kv.removeprefix("kvik://").rpartition(":")
        transfer = None if meets else {"do_remote_prefill": True, "remote_host": host, "remote_port": int(port)}
        return self.ask(reader, key, self.prompts.make(WORKLOAD, 0, length), 1, SALT, transfer=transfer,
                        quality=self.quality_of(arm), workload=WORKLOAD)


class PoolReads(PoolSection):
    """Section pool."""

    RATES = (0.05, 0.2, 1, 5)  # Gbit/s
    LENGTHS = (1024, 3072, 6144)
    RECOMPUTED = 5
    TIE = (0.03, 1024)  # about where fetching takes as long as computing, on a core that makes 1.5 K tokens a second
    LEVELS = ("cachegen", "cachegen-2", "cachegen-3")  # the better quality first
    SLO_SHARES = (0.5, 0.25)  # of the TTFT of computing it

    @classmethod
    def cells(cls):
        return [cls.TIE] + [(rate, length) for rate in cls.RATES for length in cls.LENGTHS]

    @staticmethod
    def raw_s(rate, length):
        return length * BYTES_PER_TOKEN / (rate * 1e9 / 8)

    @classmethod
    def repeats(cls, rate, length):
        """What is short is repeated more often: it differs more."""
        return 3 if cls.raw_s(rate, length) > 8 else 5 if cls.raw_s(rate, length) > 2 else 11

    def missing(self):
        return [(rate, length) for rate, length in self.cells()
                if any(("pool", rate, length, i, arm) not in self.results
                       for i in range(self.repeats(rate, length)) for arm in ("raw", "level", "adaptive", "meets"))]

    def run(self):
        todo = [cell for cell in self.missing() if self.wanted("pool/{}/{}".format(*cell))]
        if not todo:
            return
        wanted = sorted({length for _, length in todo})
        self.start_pool(wanted)
        for length in wanted:
            for i in range(self.RECOMPUTED):
                if ("recompute", length, i) not in self.results:
                    self.check_budget()
                    self.plain.request("POST", "/reset_prefix_cache")
                    self.ask(self.plain, ("recompute", length, i), self.prompts.make(WORKLOAD, 0, length), 1, f"recompute-{length}-{i}")
        self.sizes(wanted)
        left = sum(self.repeats(*cell) * (1 + 1.5 * self.raw_s(*cell)) for cell in todo)
        self.note(f"pool: about {left / 60:.1f} min")
        for rate in sorted({rate for rate, _ in todo}):
            lengths = [length for r, length in todo if r == rate]
            if lengths:
                self.check_budget()
                with self.servers():
                    self.run_rate(rate, lengths)

    def sizes(self, lengths):
        """Bytes on the wire of the levels that are chosen by size."""
        for level in self.LEVELS:
            todo = [n for n in lengths if ("size", level, n) not in self.results]
            if todo:
                self.check_budget()
                with self.servers():
                    reader = self.reader(level, "rate=10Gbit")
                    for length in todo:
                        self.read(reader, ("size", level, length), length, level)

    def recompute_ms(self, length):
        return median(self.results[("recompute", length, i)]["ttft_ms"] for i in range(self.RECOMPUTED))

    def level(self, rate, length):
        """The best level that meets half of the time that computing takes, as its publication has it; none: compute."""
        for level in self.LEVELS:
            wire_ms = self.results[("size", level, length)]["wire_bytes"] * 8e-6 / rate
            if wire_ms <= self.SLO_SHARES[0] * self.recompute_ms(length):
                return level
        return None

    def run_rate(self, rate, lengths):
        bytes_per_s = rate * 1e9 / 8
        readers = {"raw": self.reader("raw", bytes_per_s), "adaptive": self.reader("adaptive", bytes_per_s),
                   "meets": self.reader("adaptive", bytes_per_s, meets=True)}
        for level in {self.level(rate, n) for n in lengths} - {None}:
            readers[level] = self.reader(level, bytes_per_s)
        for name, reader in readers.items():  # learns the link
            for _ in range(3):
                self.read(reader, None, self.LENGTHS[0], "adaptive" if name == "meets" else name, meets=name == "meets")
        for length in lengths:
            for i in range(self.repeats(rate, length)):
                for arm in ("raw", "level", "adaptive", "meets")[::-1 if i % 2 else 1]:
                    key = ("pool", rate, length, i, arm)
                    if key in self.results:
                        continue
                    self.check_budget()
                    name = self.level(rate, length) if arm == "level" else arm
                    if name is None:
                        self.results.add(key, **{k: v for k, v in self.results[("recompute", length, i % self.RECOMPUTED)].items() if k != "key"})
                    else:
                        self.read(readers[name], key, length, "adaptive" if name == "meets" else name, meets=name == "meets")
            self.note(f"pool {rate} Gbit/s, {length} tokens: " + ", ".join(
                f"{arm} {self.ttft(rate, length, arm):.0f}" for arm in ("raw", "level", "adaptive", "meets")) + " ms")

    def rows(self, rate, length, arm):
        return [self.results[("pool", rate, length, i, arm)] for i in range(self.repeats(rate, length))]

    def ttft(self, rate, length, arm):
        """Not a number: little came, the pool had lost it."""
        rows = self.rows(rate, length, arm)
        if self.fetches(rate, length, arm) and self.loaded(rate, length, arm) < 0.85 * length:
            return math.nan
        return median(row["ttft_ms"] for row in rows)

    def fetches(self, rate, length, arm):
        return arm in ("raw", "adaptive") or (arm == "level" and self.level(rate, length) is not None)

    def loaded(self, rate, length, arm):
        return min(row["by_source"]["external"] for row in self.rows(rate, length, arm))

    def text(self, rate, length, arm, ms):
        if math.isnan(ms):
            return "not in the pool"
        loaded = self.loaded(rate, length, arm) if self.fetches(rate, length, arm) else length
        return f"{ms:.0f}" + (f" ({100 * loaded / length:.0f} % fetched)" if loaded < length - 32 else "")

    def of_better(self, rate, length):
        """Both at once over the better of computed and fetched: median of the pairs."""
        recompute = self.recompute_ms(length)
        if self.ttft(rate, length, "adaptive") > recompute:
            return self.ttft(rate, length, "meets") / recompute
        return median(both["ttft_ms"] / fetched["ttft_ms"]
                      for both, fetched in zip(self.rows(rate, length, "meets"), self.rows(rate, length, "adaptive")))

    def tables(self):
        todo = self.missing()
        cells = [cell for cell in self.cells() if cell not in todo]
        if not cells:
            return []
        out = ["### Reads from a pool", "",
               f"TTFT in ms, median of 3 to 11 in turns (computed: {self.RECOMPUTED}), one thread a server, workload {WORKLOAD}, q_min = {Q_MIN}. *cachegen-adaptive* is the "
               "published baseline, driven by the script: the best of three levels whose bytes fit half of the time that computing takes, "
               "else computing (its quality for the workload was never measured: *x*). *fetched* loads what a peer has promised, which is all of it "
               "unless a link is so slow that the last of it is computed meanwhile; *both* is what kvik does with a pool: "
               "loads from the tail while it computes from the front. *not in the pool*: what was stored before was not found, so there is "
               "nothing to compare.", "",
               "| Gbit/s | tokens | computed | raw, fetched | cachegen-adaptive *x* | adaptive, fetched | adaptive, both | both / best of computed and "
               "fetched | loaded by both |", "|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
        arms = ("recompute", "raw", "level", "adaptive", "meets")
        attained = {(arm, share): 0 for arm in arms for share in self.SLO_SHARES}
        worst, ties, points = 0, [], {}
        for rate, length in cells:
            ms = {arm: self.recompute_ms(length) if arm == "recompute" else self.ttft(rate, length, arm) for arm in arms}
            for arm, share in attained:
                attained[(arm, share)] += ms[arm] <= share * ms["recompute"]
            points = {arm: points.get(arm, 0) + (not math.isnan(ms[arm])) for arm in arms}
            ratio = self.of_better(rate, length)
            worst = max(worst, ratio)
            if 0.8 < ms["adaptive"] / ms["recompute"] < 1.25:
                ties.append(1 / ratio)
            last = self.rows(rate, length, "meets")[-1]
            shown = {arm: f"{us:.0f}" if arm == "recompute" else self.text(rate, length, arm, us) for arm, us in ms.items()}
            out.append(f"| {rate} | {length} | {shown['recompute']} | {shown['raw']} | {shown['level']} ({self.level(rate, length) or 'computed'}) | "
                       f"{shown['adaptive']} ({self.rows(rate, length, 'adaptive')[-1]['profile']}) | {shown['meets']} | "
                       f"{ratio:.2f} | {last['by_source']['external']} of {length}, {last['profile']} |")
        out += ["", f"Goal: *both* at most 1.05 of the better of the two: {'met' if worst <= 1.05 else '**missed**'} (worst {worst:.2f}); 1.5 times "
                "better where they tie: " + (", ".join(f"{t:.2f}" for t in ties) if ties else "no point of this grid is a tie") + ".", "",
                "Points within a share of the time that computing takes:", "",
                "| | " + " | ".join(("computed", "raw", "cachegen-adaptive", "adaptive, fetched", "adaptive, both")) + " |", "|---|---:|---:|---:|---:|---:|"]
        for share in self.SLO_SHARES:
            out.append(f"| {share} | " + " | ".join(f"{attained[(arm, share)]} of {points[arm]}" for arm in arms) + " |")
        return out + [""]


class Drift(PoolSection):
    """Section drift."""

    LENGTHS = (1024,)
    ENCODINGS = STORED[:7]
    LEAD_S = 5  # of the link, for the start of the server and the first requests
    PHASES = ((0, 20, "2 Gbit/s"), (20, 30, "100 Mbit/s"), (30, 40, "100 Mbit/s, busy"), (40, 60, "2 Gbit/s, busy"))
    RUNS = 1

    def run(self):
        todo = [(arm, i) for i in range(self.RUNS) for arm in ("adaptive", "kept", "raw") if ("drift", arm, i) not in self.results]
        todo = [cell for cell in todo if self.wanted(f"drift/{cell[0]}")]
        if not todo:
            return
        self.start_pool(self.LENGTHS)
        self.note(f"drift: about {len(todo) * (self.LEAD_S + 62) / 60:.1f} min")
        for arm, i in todo:
            if self.options.budget and time.monotonic() - self.started + self.LEAD_S + 60 > self.options.budget + 30:
                raise Over
            profile = self.results[("drift", "adaptive", 0)]["reads"][0][2] if arm == "kept" else arm
            with self.servers():
                self.run_arm(arm, i, profile)

    def run_arm(self, arm, i, profile):
        low, high = self.LEAD_S + 20, self.LEAD_S + 40
        begin = time.monotonic()
        reader = self.reader(profile, f"rate=2Gbit@0s/100Mbit@{low}s/2Gbit@{high}s")
        while time.monotonic() - begin < self.LEAD_S:
            self.read(reader, None, 1024, profile)
        reads, burners = [], []
        begin += self.LEAD_S
        try:
            while (at := time.monotonic() - begin) < 60:
                if at >= 30 and not burners:  # a machine with other work: each core has two things to do
                    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
                row = self.read(reader, None, 1024, profile)
                reads.append((at, row["ttft_ms"], row["profile"]))
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        self.results.add(("drift", arm, i), reads=reads)
        self.note(f"drift {arm}: {len(reads)} reads")

    def tables(self):
        done = [arm for arm in ("adaptive", "kept", "raw") if ("drift", arm, 0) in self.results]
        if "adaptive" not in done:
            return []
        kept = self.results[("drift", "adaptive", 0)]["reads"][0][2]
        out = ["### A link that changes", "",
               f"Reads of 1,024 tokens from a pool, all fetched, one after the other for a minute: 2 Gbit/s, 100 Mbit/s from 20 to 40 s; from 30 s on "
               f"every core has other work, too. q_min = {Q_MIN}. *kept*: what adaptive chose first ({kept}) and nothing else.", "",
               "| | runs | reads | " + " | ".join(f"{a}-{b} s, {name}: TTFT ms" for a, b, name in self.PHASES) + " | mean of the minute |",
               "|---|---:|---:|" + "---:|" * (len(self.PHASES) + 1)]
        for arm in done:
            runs = [self.results[("drift", arm, i)]["reads"] for i in range(self.RUNS) if ("drift", arm, i) in self.results]
            cells = []
            for low, high, _ in self.PHASES:
                values = [ttft for run in runs for at, ttft, _ in run if low <= at < high]
                names = {}
                for run in runs:
                    for at, _, profile in run:
                        if low <= at < high:
                            names[profile] = names.get(profile, 0) + 1
                most = max(names, key=names.get) if names else "-"
                cells.append(f"{mean(values):.0f} ({most} {100 * names.get(most, 0) // max(len(values), 1)} %)")
            # Each phase counts by its seconds: a reader that is quick in one makes more requests there.
            whole = sum((high - low) / 60 * mean(t for run in runs for at, t, _ in run if low <= at < high) for low, high, _ in self.PHASES)
            out.append(f"| {arm} | {len(runs)} | {sum(map(len, runs))} | " + " | ".join(cells) + f" | {whole:.0f} |")
        return out + [""]


class Crossings(PoolSection):
    """Section crossings."""

    LENGTHS = (1024,)
    ENCODINGS = ("raw", "lossless", "packed-16", "rotated-1.4", "joint-1.4")
    PAIRS = (("packed-16", "rotated-1.4", "rANS overtakes bit-packed"), ("raw", "lossless", "B* of lossless"),
             ("raw", "joint-1.4", "B* of the KLT pipeline"))
    FACTORS = (0.5, 0.7, 1, 1.4, 2)
    REPEATS = 15

    def costs(self):
        """(ratio, decoding: fixed us, speed, us of a frame) by profile, as the server has them at 1,024 tokens."""
        for path in sorted((CACHE / "speeds").glob("*.json"), key=os.path.getmtime, reverse=True):
            speeds = {p["hash"]: p["decode"][2] for p in json.loads(path.read_text())["profiles"]}
            if all(p["hash"] in speeds for p in self.library.values()):
                costs = {name: (next(r["cr"] for r in p["ratios"] if r["prompt_tokens"] == 1024), *speeds[p["hash"]])
                         for name, p in self.library.items()}
                costs["raw"] = (1, *speeds["0" * 16])
                return costs
        raise SystemExit("bench-kv: no speeds of this model are kept")

    @staticmethod
    def read_s(cost, rate, raw_bytes, frames):
        """Of a pipelined read from a pool, docs/control.md."""
        ratio, fixed_us, speed, frame_us = cost
        wire, decode = raw_bytes / ratio / rate, frames * frame_us * 1e-6 + (raw_bytes / speed if speed else 0)
        return fixed_us * 1e-6 + max(wire, decode) + min(wire, decode) / frames

    def predicted(self, pair):
        """The bandwidth at which both take as long, bytes a second."""
        costs = self.results[("speeds",)]["costs"]
        raw_bytes, frames = 1024 * BYTES_PER_TOKEN, 4 * 30
        first, second = (costs[name] for name in pair[:2])
        low, high = 1e6, 1e11
        for _ in range(80):
            middle = math.sqrt(low * high)
            if self.read_s(second, middle, raw_bytes, frames) < self.read_s(first, middle, raw_bytes, frames):
                low = middle  # the smaller one still wins
            else:
                high = middle
        return low

    def run(self):
        pairs = [pair for pair in self.PAIRS if self.wanted(f"crossings/{pair[0]}/{pair[1]}")]
        if all(self.measured(pair) for pair in pairs):
            return
        self.start_pool(self.LENGTHS)
        if ("speeds",) not in self.results:
            with self.servers():
                self.engine("both", "--pool", self.pool.kv)  # measures them if nobody has yet
                self.results.add(("speeds",), costs=self.costs())
        for pair in pairs:
            center = self.predicted(pair)
            self.note(f"{pair[2]}: predicted {center * 8e-9:.3f} Gbit/s; about a minute")
            for factor in self.FACTORS:
                if self.ratio(pair, factor) is None:
                    self.check_budget()
                    with self.servers():
                        self.run_factor(pair, factor, center * factor)

    def run_factor(self, pair, factor, rate):
        readers = {name: self.reader(name, rate) for name in pair[:2]}
        for name, reader in readers.items():
            for _ in range(2):
                if self.read(reader, None, 1024, name)["by_source"]["external"] == 0:
                    raise SystemExit(f"bench-kv: the pool has lost {name}: remove it and the \"stored\" lines of RESULTS")
        for i in range(self.REPEATS):
            for name in pair[:2] if i % 2 else pair[1::-1]:
                key = ("crossing", *pair[:2], factor, i, name)
                if key not in self.results:
                    self.check_budget()
                    self.read(readers[name], key, 1024, name)

    def ratio(self, pair, factor):
        """Median of second over first, paired; None: not all there."""
        keys = [[("crossing", *pair[:2], factor, i, name) for name in pair[:2]] for i in range(self.REPEATS)]
        if not all(key in self.results for two in keys for key in two):
            return None
        return median(self.results[second]["observed_ms"] / self.results[first]["observed_ms"] for first, second in keys)

    def measured(self, pair):
        return all(self.ratio(pair, factor) is not None for factor in self.FACTORS)

    def found(self, pair):
        """The measured crossing over the predicted one; None: not in the range."""
        points = [(math.log(f), math.log(self.ratio(pair, f))) for f in self.FACTORS]
        for (x0, y0), (x1, y1) in zip(points, points[1:]):
            if y0 <= 0 < y1:
                return math.exp(x0 - y0 * (x1 - x0) / (y1 - y0))
        return None

    def tables(self):
        pairs = [pair for pair in self.PAIRS if self.measured(pair)]
        if not pairs:
            return []
        out = ["### Where profiles change places", "",
               f"Reads of 1,024 tokens from a pool, each point the median of {self.REPEATS} paired ratios of the time from the first byte that was asked "
               "for to the last that was decoded. Predicted from the speeds that the server measured at its first start. Goal: within 10 %.", "",
               "| | predicted Gbit/s | measured Gbit/s | off | second / first at " + ", ".join(f"{f}" for f in self.FACTORS) + " of the predicted |",
               "|---|---:|---:|---:|---|"]
        for pair in pairs:
            center, found = self.predicted(pair) * 8e-9, self.found(pair)
            ratios = ", ".join(f"{self.ratio(pair, f):.2f}" for f in self.FACTORS)
            where = "none in range" if found is None else f"{center * found:.3f}"
            off = "**missed**" if found is None else f"{100 * (found - 1):+.0f} % " + ("met" if abs(found - 1) <= 0.1 else "**missed**")
            out.append(f"| {pair[2]}: {pair[1]} against {pair[0]} | {center:.3f} | {where} | {off} | {ratios} |")
        return out + [""]
