# SPDX-License-Identifier: Apache-2.0
"""scripts/replay_grid.py goes on where it was interrupted and judges as it says; dense_starts.py finds the runs."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
import dense_starts  # noqa: E402
import replay_grid  # noqa: E402

# Stands in for the program: a cell's miss cost is the length of the policy's name, and calls are counted.
FAKE = """#!/usr/bin/env python3
import json, sys
args = dict(zip(sys.argv[2::2], sys.argv[3::2]))
open(r"{log}", "a").write(args["--policies"] + "\\n")
for policy in args["--policies"].split(","):
    print(json.dumps({{"trace": args["--workload"], "policy": policy, "offline": policy == "bound",
                      "cache_blocks": int(args["--cache-blocks"]), "repeats": 10, "miss_cost_pct": len(policy)}}))
"""


def cells_of(lines, repeats=1):
    """{"trace blocks": {policy: miss cost}} as cells; a policy with a ! is offline."""
    return {(t.split()[0], int(t.split()[1]), p.strip("!")): {
        "trace": t.split()[0], "cache_blocks": int(t.split()[1]), "policy": p.strip("!"), "offline": p.endswith("!"),
        "repeats": repeats, "miss_cost_pct": value} for t, here in lines.items() for p, value in here.items()}


class Verdicts(unittest.TestCase):
    def test_offline_policies_are_no_rivals_and_margins_hold(self):
        cells = cells_of({"a 1": {"lru": 50, "asym": 49.5, "hazard": 50.4, "bound!": 10},
                          "b 1": {"lru": 60, "hazard": 30}})
        lines, met = replay_grid.verdicts(cells, {("a", 1, "hazard"): 49.5})
        self.assertTrue(met, lines)
        self.assertIn("1 of 1 cells with a reference", lines[0])
        self.assertIn("2 of 2 cells, 100 %", lines[2])

    def test_every_exception_is_named(self):
        cells = cells_of({"a 1": {"lru": 50, "asym": 40, "hazard": 50.6}, "b 1": {"lru": 60, "hazard": 30}})
        lines, met = replay_grid.verdicts(cells, {("a", 1, "hazard"): 49.5})
        self.assertFalse(met)
        self.assertEqual([line.startswith("NOT MET") for line in lines if not line.startswith(" ")], [True] * 3)
        self.assertIn("a 1: 50.6, reference 49.5", lines[1])
        self.assertIn("a 1: 50.60, lru 50.00 (+1.2 %)", lines[3])
        self.assertIn("a 1: asym 40.0, hazard 50.6 (+26.5 %)", lines[5])

    def test_made_up_loads_have_a_wider_margin(self):
        cells = cells_of({"a 1": {"lru": 60, "hazard": 52}}, repeats=10)
        self.assertTrue(replay_grid.verdicts(cells, {("a", 1, "hazard"): 49.5})[1])
        self.assertFalse(replay_grid.verdicts(cells, {("a", 1, "hazard"): 48.5})[1])

    def test_the_reference_asym_knows_the_lifespan(self):
        reference = {("a", 1, "asym"): 70}
        cell = {"trace": "a", "cache_blocks": 1}
        self.assertIsNone(replay_grid.reference_of(reference, cell | {"policy": "asym"}))
        self.assertEqual(replay_grid.reference_of(reference, cell | {"policy": "asym@p99"}), 70)


class Resuming(unittest.TestCase):
    def test_only_missing_cells_run(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            kvik, log, out = folder / "kvik", folder / "log", folder / "out"
            kvik.write_text(FAKE.format(log=log))
            kvik.chmod(0o755)

            def run(*more):
                return subprocess.run([sys.executable, "-B", SCRIPTS / "replay_grid.py", "--kvik", kvik, "--traces", "",
                                       "--reference", "", "--out", out, "--only", "loogle:5,conv", "--policies",
                                       "lru,hazard,bound", *more], capture_output=True, text=True, check=False)

            first = run()
            self.assertEqual(first.returncode, 1, first.stderr)  # hazard has the longer name
            self.assertIn("left out: conv", first.stdout)
            self.assertIn("| loogle:5 | 7621 | **3.0** | 6.0 | 5.0 |", first.stdout)
            self.assertEqual(log.read_text().splitlines(), ["lru,hazard,bound"] * 3)
            lines = (out / "cells.jsonl").read_text().splitlines(keepends=True)
            self.assertEqual(len(lines), 9)
            (out / "cells.jsonl").write_text("".join(lines[:7]) + lines[7][:20])  # the last two are lost
            log.write_text("")
            self.assertEqual(run().stdout, first.stdout)
            self.assertEqual(log.read_text().splitlines(), ["hazard,bound"])
            log.write_text("")
            report = run("--report").stdout
            self.assertEqual(report, first.stdout.replace("".join(
                line for line in first.stdout.splitlines(keepends=True) if line.startswith("left out")), ""))
            self.assertEqual(log.read_text(), "")


class DenseStarts(unittest.TestCase):
    def test_runs_are_told_apart_and_keep_their_shape(self):
        # Two runs of three calls, four copies each; one call is alike in both.
        shapes = [[(0, 10), (700, 99), (1500, 12)], [(0, 20), (900, 99), (4000, 21)]]
        starts = [[1000, 50000, 91234, 160000], [2000, 7000, 70000, 200003]]
        calls = [{"timestamp": start + at, "input_length": tokens, "output_length": 1, "hash_ids": []}
                 for shape, run in zip(shapes, starts) for start in run for at, tokens in shape]
        calls.sort(key=lambda call: call["timestamp"])
        found = dense_starts.find_runs(calls, 4)
        self.assertEqual(sorted([(c["timestamp"], c["input_length"]) for c in run] for run in map(
            lambda run: sorted(run, key=lambda c: c["timestamp"]), found)),
            sorted([(start + at, tokens) for at, tokens in shape]
                   for shape, run in zip(shapes, starts) for start in run))
        with tempfile.TemporaryDirectory() as folder:
            path, out = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
            path.write_text("".join(json.dumps(call) + "\n" for call in calls))
            subprocess.run([sys.executable, "-B", SCRIPTS / "dense_starts.py", path, out, "--copies", "4", "--factor",
                            "10"], check=True, stdout=subprocess.DEVNULL)
            times = [json.loads(line)["timestamp"] for line in out.read_text().splitlines()]
        self.assertEqual(times, sorted(start // 10 + at for shape, run in zip(shapes, starts) for start in run
                                       for at, _ in shape))


if __name__ == "__main__":
    unittest.main()
