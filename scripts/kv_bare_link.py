# SPDX-License-Identifier: Apache-2.0
"""bench_kv.py, a link that is as fast as this machine's loopback: where compression has nothing to gain but bytes."""
import socket
import time

from kv_nodes import Prompts, Q_MIN, Section, mean, median, ratio_interval

EXACT = "adaptive, exact"
# What is asked for -> the profile that the decode node is told to use.
ARMS = {"raw": "raw", "lossless": "lossless", "packed-16": "packed-16", "rotated-1.4": "rotated-1.4", EXACT: "adaptive",
        "adaptive": "adaptive"}
LENGTHS = (17, 33, 65, 129, 257, 1025)  # all but the last token can move
WARM_UP = 5
WORKLOAD = "qa"


class BareLink(Section):
    """Section bare: the prefill node has computed the prompt before, so what is timed is moving it and computing one token."""

    def quality(self, arm):
        return 1.0 if arm == EXACT else self.quality_of(arm)

    def repeats(self):
        return 2 * self.options.repeats

    def run(self):
        todo = [n for n in LENGTHS if self.wanted(f"bare/{n}") and any(
            ("bare", n, i, arm) not in self.results for i in range(self.repeats()) for arm in ARMS)]
        if not todo:
            return
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        prefill = self.engine("prefill", "--kv-listen", f"127.0.0.1:{port}")
        prompts = Prompts(self.options.data, prefill)
        decoders = {arm: self.engine("decode", "--kv-profile", profile, "--default-quality", self.quality(arm),
                                     "--default-workload", WORKLOAD) for arm, profile in ARMS.items()}
        transfer = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": port}
        session = f"{time.time():.0f}"
        for length in todo:
            for i in range(-WARM_UP, self.repeats()):
                self.check_budget()
                ids = prompts.make(WORKLOAD, 500 + i, length)
                salt = f"bare-{session}-{length}-{i}"
                prefill.complete(ids, 1, salt)
                for at in range(len(ARMS)):
                    arm = list(ARMS)[(at + i) % len(ARMS)]
                    self.ask(decoders[arm], None if i < 0 else ("bare", length, i, arm), ids, 1, salt, transfer=transfer,
                             quality=self.quality(arm), workload=WORKLOAD)
        self.note("bare: done")

    def tables(self):
        out = []
        for length in LENGTHS:
            repeats = sorted({row["key"][2] for row in self.results.of("bare", length)})
            repeats = [i for i in repeats if all(("bare", length, i, arm) in self.results for arm in ARMS)]
            # What was not found at the prefill node was computed, which says nothing of moving it.
            seen = len(repeats)
            repeats = [i for i in repeats if all(
                self.results[("bare", length, i, arm)]["by_source"]["external"] == length - 1 for arm in ARMS)]
            if not repeats:
                continue
            rows = {arm: [self.results[("bare", length, i, arm)] for i in repeats] for arm in ARMS}
            ttft = {arm: [row["ttft_ms"] for row in rows[arm]] for arm in ARMS}
            for arm in ARMS:
                against = "" if arm == "raw" else "{:.3f} [{:.3f}, {:.3f}]".format(*ratio_interval(ttft[arm], ttft["raw"]))
                counts = {}
                for row in rows[arm]:
                    counts[row["profile"] or "computed"] = counts.get(row["profile"] or "computed", 0) + 1
                took = ", ".join(f"{name} {n}" for name, n in sorted(counts.items(), key=lambda c: -c[1]))
                wire = mean(row["wire_bytes"] for row in rows[arm])
                out.append(f"| {length} | {arm} | {len(repeats)} of {seen} | {median(ttft[arm]):.2f} | "
                           f"{mean(row['observed_ms'] or 0 for row in rows[arm]):.2f} | {wire / 1e6:.2f} | "
                           f"{against} | {took if arm.startswith('adaptive') else ''} |")
        if not out:
            return out
        return ["### Without a link in between", "",
                "One machine's loopback, nothing emulated; the prefill node has computed the prompt before, the decode node computes "
                f"its last token. One thread a server, workload {WORKLOAD}, q_min = {Q_MIN} unless exact. Ratios of TTFT: geometric "
                "mean over paired repeats with its 95 % interval; of repeats in which all but the last token came over the link in every arm.", "",
                "| tokens | arm | repeats | TTFT ms, median | of it moving, mean | MB | TTFT / raw | took |",
                "|---:|---|---:|---:|---:|---:|---:|---|", *out, ""]
