# SPDX-License-Identifier: Apache-2.0
"""bench_kv.py, prefill and decode apart: JCT by workload and bandwidth, every way of compressing KV side by side."""
import math
import time

from kv_nodes import BYTES_PER_TOKEN, MAX_TOKENS, PUBLISHED, Q_MIN, Prompts, Section, mean, ratio_interval

PD_R = (0.1, 1, 10)
PD_WORKLOADS = ("math", "qa")
PD_LENGTHS = (128, 192, 256, 384, 512, 640, 768, 896, 1024, 160, 224, 320, 448, 720, 960)
PD_WARM_UP = 2
PILOT_LENGTHS = (128, 512, 1024)
STATIC_CANDIDATES = 2  # of each cell, by the pilot


class Handover(Section):
    """Section pd."""

    def timed(self, router, key, ids, workload, arm):
        self.ask(router, key, ids, MAX_TOKENS, "/".join(map(str, key)), quality=self.quality_of(arm), workload=workload)

    def prefill_rate(self, prefill, prompts):
        """Tokens a second, of prompts of 512."""
        if ("prefill",) not in self.results:
            speeds = []
            for i in range(6):
                reply, _ = prefill.complete(prompts.make("qa", 900 + i, 512), 1, f"rate-{i}")
                speeds.append(512e3 / reply["kvik"]["ttft_ms"])
            self.results.add(("prefill",), tokens_per_s=sorted(speeds[1:])[2])

    def rate(self, r):
        """Bytes a second of the link."""
        return self.results[("prefill",)]["tokens_per_s"] * BYTES_PER_TOKEN / r

    def pair(self, prefill, arm, rate, workload="qa"):
        """The router of a decode node that takes KV in this way."""
        decode = self.engine("decode", "--kv-profile", arm, "--kv-link", f"rate={rate:.0f}B", "--default-quality",
                             self.quality_of(arm), "--default-workload", workload)
        return self.node("--role", "router", "--prefill", prefill.url, "--decode", decode.url)

    def check_exact(self, prefill, prompts):
        """What came over the link gives the answers of a server that computes everything."""
        if ("exact",) in self.results:
            return
        with self.servers():
            routers = [self.pair(prefill, arm, self.rate(1)) for arm in ("raw", "adaptive", "lossless")]
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
            with self.servers():
                router = self.pair(prefill, arm, self.rate(r))
                router.wait_up()
                router.complete(prompts.make("qa", 990, 300), 2, f"pilot-{r}-{arm}", quality=0)
                for length in todo:
                    self.timed(router, ("pilot", r, arm, length), prompts.make("qa", 970 + length % 7, length), "qa", arm)
            self.note(f"pilot R={r} {arm}: " + ", ".join(
                f"{self.results[('pilot', r, arm, n)]['jct_ms']:.0f}" for n in PILOT_LENGTHS) + " ms")

    def run(self):
        cells = [(w, r) for r in PD_R for w in PD_WORKLOADS if self.wanted(f"pd/{w}/{r}")]
        repeats = range(self.options.repeats)
        prefill = prompts = None
        for workload, r in cells:
            if all(self.done(workload, r, i) for i in repeats):
                continue
            if prefill is None:
                prefill = self.engine("prefill")
                prompts = Prompts(self.options.data, prefill)
                self.prefill_rate(prefill, prompts)
                self.check_exact(prefill, prompts)
                self.say_eta(cells)
            self.run_pilot(r, prefill, prompts)
            self.check_budget()
            with self.servers():
                self.run_cell(workload, r, prefill, prompts)

    def arms(self, workload, r):
        statics = [arm for arm in self.static_arms(workload, r) if arm != "raw"]
        return ["raw", *PUBLISHED, *statics, "adaptive"]

    def done(self, workload, r, repeat):
        return len(self.results.of("pd", workload, r, repeat)) >= len(PUBLISHED) + 2 + STATIC_CANDIDATES

    def run_cell(self, workload, r, prefill, prompts):
        arms = self.arms(workload, r)
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
                    self.timed(routers[arm], key, ids, workload, arm)
        self.note(f"pd {workload} R={r}: done")

    def say_eta(self, cells):
        tokens = mean(PD_LENGTHS)
        compute_s = tokens / self.results[("prefill",)]["tokens_per_s"] + 0.01 * MAX_TOKENS
        seconds = 0
        for workload, r in cells:
            raw_s = tokens * BYTES_PER_TOKEN / self.rate(r)
            left = sum(not self.done(workload, r, i) for i in range(self.options.repeats))
            seconds += left * (6 * compute_s + raw_s * (1 + 4 / 5))
        for r in {r for _, r in cells}:
            left = sum(("pilot", r, arm, n) not in self.results for arm in self.pilot_arms() for n in PILOT_LENGTHS)
            seconds += left * (compute_s + 1 + tokens * BYTES_PER_TOKEN / self.rate(r) / 4)
        self.note(f"pd: about {seconds / 60:.1f} min; a prefill of {self.results[('prefill',)]['tokens_per_s']:.0f} "
                  f"tokens/s is {self.results[('prefill',)]['tokens_per_s'] * BYTES_PER_TOKEN / 1e6:.1f} MB/s of raw KV")

    def tables(self):
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
                repeats = [i for i in range(1000) if self.done(workload, r, i)]
                if not repeats:
                    continue
                arms = self.arms(workload, r)
                rows = {arm: [self.results[("pd", workload, r, i, arm)] for i in repeats] for arm in arms}
                jct = {arm: [row["jct_ms"] for row in rows[arm]] for arm in arms}
                statics = [arm for arm in arms if arm not in (*PUBLISHED, "adaptive")]
                best = min(statics, key=lambda arm: mean(math.log(x) for x in jct[arm]))
                for arm in arms:
                    wire, raw = mean(x["wire_bytes"] for x in rows[arm]), mean(x["raw_bytes"] for x in rows[arm])
                    against = "" if arm == "adaptive" else "{:.3f} [{:.3f}, {:.3f}]".format(
                        *ratio_interval(jct["adaptive"], jct[arm]))
                    name = f"**{arm}** (best static)" if arm == best else arm
                    out.append(f"| {workload} | {r} | {self.rate(r) * 8 / 1e9:.3f} | {name} | {self.q_text(arm, workload)} | {len(repeats)} | "
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
