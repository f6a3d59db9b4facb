#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every eviction policy on every trace and size, and what that says of hazard.

    KVIK_TRACES=folder             with mooncake_conversation_trace.jsonl, mooncake_synthetic_trace.jsonl and
                                   magagent_blocks.jsonl; a trace that is not there is left out and named
    KVIK_REPLAY_REFERENCE=a,b,...  CSV files with trace,cache_blocks,policy,miss_cost_pct of another replay

Cells go to OUT/cells.jsonl as soon as they are done, and cells that are there are not run again: interrupt it and
start it again as you like (--fresh forgets them). Then the table (OUT/grid.csv, OUT/grid.md) and the verdicts:
hazard against the reference, against lru, and against the best policy that does not know the future.
"""
import argparse
import csv
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent

ONLINE = ["lru", "lfu", "slru", "fifo", "random", "max-score", "max-score-class", "gdsf", "pensieve", "asym", "asym-run",
          "asym-last", "hazard", "hazard-prefix"]
OFFLINE = ["asym@p99", "asym-last@p99", "belady", "belady-compute", "bound"]

CONVERSATION = "mooncake_conversation_trace.jsonl"
TRACES = {  # name: (file, flags, sizes)
    "conv8": (CONVERSATION, ["--session-sample", "8"], [500, 952, 2000, 4000]),
    "magagent": ("magagent_blocks.jsonl", [], [2500, 4000, 8000, 16000]),
    "magagent-sparse": ("magagent_blocks.jsonl", [], [2500, 4000, 8000, 16000]),
    "synthetic": ("mooncake_synthetic_trace.jsonl", [], [1000, 2000, 4000, 8000, 16000]),
    "conv": (CONVERSATION, [], [5000, 10000, 20000, 40000]),
}
# Agent runs as they are in the file leave each other most of any cache; the reference starts them more densely.
DENSE = {"magagent": 8}
GENERATORS = {name: [3811, 7621, 15242] for name in ("longbench:5", "longbench:10", "loogle:5", "loogle:10")}
SEEDS = 10

REFERENCE_MARGIN = 1.0  # points
GENERATOR_MARGIN = 3.0  # points; means of few random loads
LRU_MARGIN = 0.01
BEST_MARGIN = 0.02
BEST_SHARE = 0.8


def load_cells(path):
    """Cells by (trace, cache_blocks, policy). A last line that was cut off is left out."""
    cells = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                cell = json.loads(line)
                cells[(cell["trace"], cell["cache_blocks"], cell["policy"])] = cell
            except (ValueError, KeyError, TypeError):
                continue
    return cells


def load_reference(paths):
    reference = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for row in csv.DictReader(file):
                reference[(row["trace"], int(row["cache_blocks"]), row["policy"])] = float(row["miss_cost_pct"])
    return reference


def reference_of(reference, cell):
    """A reference names no set-ups. Its asym and asym-last know the trace's lifespan: ours with @p99."""
    policy = cell["policy"]
    if policy in ("asym", "asym-last"):
        return None
    return reference.get((cell["trace"], cell["cache_blocks"], policy.split("@")[0]))


def table(cells, reference):
    """(CSV rows, Markdown)."""
    rows = []
    for cell in cells.values():
        row = {field: cell.get(field) for field in (
            "trace", "cache_blocks", "policy", "offline", "repeats", "miss_cost_pct", "block_hit_pct", "prefix_hit_pct",
            "request_hit_pct", "segments_mean", "segments_p99", "us_per_request")}
        row["reference_pct"] = reference_of(reference, cell)
        rows.append(row)
    policies = [p for p in ONLINE + OFFLINE if any(key[2] == p for key in cells)]
    lines = ["| trace | blocks | " + " | ".join(policies) + " |", "|---" * (len(policies) + 2) + "|"]
    for trace, blocks in dict.fromkeys(key[:2] for key in cells):
        values = [cells.get((trace, blocks, p)) for p in policies]
        online = [c["miss_cost_pct"] for c in values if c and not c["offline"]]
        texts = []
        for cell in values:
            if not cell:
                texts.append("")
                continue
            text = f"{cell['miss_cost_pct']:.1f}"
            if not cell["offline"] and cell["miss_cost_pct"] == min(online):
                text = f"**{text}**"
            theirs = reference_of(reference, cell)
            texts.append(text + (f" ({theirs:.1f})" if theirs is not None else ""))
        lines.append(f"| {trace} | {blocks} | " + " | ".join(texts) + " |")
    return rows, "\n".join(lines) + "\n"


def verdicts(cells, reference):
    """Lines, and whether all goals are met."""
    over_reference, over_lru, not_best, compared, judged = [], [], [], 0, 0
    for trace, blocks in dict.fromkeys(key[:2] for key in cells):
        here = {key[2]: cell for key, cell in cells.items() if key[:2] == (trace, blocks)}
        if "hazard" not in here or "lru" not in here:
            continue
        judged += 1
        hazard, lru = here["hazard"]["miss_cost_pct"], here["lru"]["miss_cost_pct"]
        theirs = reference_of(reference, here["hazard"])
        if theirs is not None:
            compared += 1
            margin = GENERATOR_MARGIN if here["hazard"].get("repeats", 1) > 1 else REFERENCE_MARGIN
            if hazard > theirs + margin:
                over_reference.append(f"{trace} {blocks}: {hazard:.1f}, reference {theirs:.1f}")
        if hazard > lru * (1 + LRU_MARGIN):
            over_lru.append(f"{trace} {blocks}: {hazard:.2f}, lru {lru:.2f} ({100 * (hazard / lru - 1):+.1f} %)")
        online = {policy: cell["miss_cost_pct"] for policy, cell in here.items() if not cell["offline"]}
        best = min(online, key=online.get)
        if hazard > online[best] * (1 + BEST_MARGIN):
            not_best.append(f"{trace} {blocks}: {best} {online[best]:.1f}, hazard {hazard:.1f} "
                            f"({100 * (hazard / online[best] - 1):+.1f} %)")
    share = (judged - len(not_best)) / judged if judged else 0
    goals = [
        (not over_reference,
         f"hazard <= reference + {REFERENCE_MARGIN:g} point (made-up loads + {GENERATOR_MARGIN:g}): "
         f"{compared - len(over_reference)} of {compared} cells with a reference", over_reference),
        (not over_lru, f"hazard <= {1 + LRU_MARGIN:g} x lru: {judged - len(over_lru)} of {judged} cells", over_lru),
        (share >= BEST_SHARE,
         f"hazard best or within {100 * BEST_MARGIN:g} % of the best online policy: {judged - len(not_best)} of "
         f"{judged} cells, {100 * share:.0f} % (goal {100 * BEST_SHARE:.0f} %)", not_best),
    ]
    lines = []
    for met, text, exceptions in goals:
        lines.append(("met:     " if met else "NOT MET: ") + text)
        lines += ["           " + exception for exception in exceptions]
    return lines, all(met for met, _, _ in goals)


def plan(traces_folder, out, only):
    """[(trace, flags, sizes)] that can run here, and what cannot."""
    runs, missing = [], []
    for name, (file, flags, sizes) in TRACES.items():
        path = pathlib.Path(traces_folder or "", file)
        if only and name not in only:
            continue
        if not traces_folder or not path.exists():
            missing.append(f"{name}: no {file}" + ("" if traces_folder else " (give --traces or KVIK_TRACES)"))
            continue
        if name in DENSE:
            dense = out / f"{name}_dense.jsonl"
            if not dense.exists():
                part = dense.with_suffix(".part")
                subprocess.run([sys.executable, "-B", HERE / "dense_starts.py", path, part, "--factor",
                                str(DENSE[name])], check=True)
                part.rename(dense)
            path = dense
        runs.append((name, ["--trace", str(path), "--name", name, *flags], sizes))
    for name, sizes in GENERATORS.items():
        if not only or name in only:
            runs.append((name, ["--workload", name, "--seeds", str(SEEDS)], sizes))
    return runs, missing


def run_cells(kvik, runs, policies, cells, path):
    total = sum(len(sizes) * len(policies) for _, _, sizes in runs)
    with open(path, "a", encoding="utf-8") as log:
        if path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n"):
            log.write("\n")  # after a line that was cut off
        done = 0
        for name, flags, sizes in runs:
            for blocks in sizes:
                wanted = [p for p in policies if (name, blocks, p) not in cells]
                done += len(policies) - len(wanted)
                if not wanted:
                    continue
                command = [str(kvik), "replay", *flags, "--cache-blocks", str(blocks), "--policies", ",".join(wanted),
                           "--json", "--quiet"]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                    for line in process.stdout:
                        log.write(line)
                        log.flush()
                        cell = json.loads(line)
                        cells[(cell["trace"], cell["cache_blocks"], cell["policy"])] = cell
                        done += 1
                        print(f"[{done}/{total}] {name} {blocks} {cell['policy']}: {cell['miss_cost_pct']:.1f} %",
                              file=sys.stderr, flush=True)
                if process.returncode != 0:
                    sys.exit("failed: " + " ".join(command))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kvik", default=ROOT / "build" / "kvik")
    parser.add_argument("--traces", default=os.environ.get("KVIK_TRACES", ""))
    parser.add_argument("--reference", default=os.environ.get("KVIK_REPLAY_REFERENCE", ""))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "replay-grid")
    parser.add_argument("--only", default="", help="these traces and workloads, with commas")
    parser.add_argument("--policies", default=",".join(ONLINE + OFFLINE))
    parser.add_argument("--fresh", action="store_true", help="forget the cells that are there")
    parser.add_argument("--report", action="store_true", help="run nothing: table and verdicts of the cells there are")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "cells.jsonl"
    if options.fresh:
        path.unlink(missing_ok=True)
    cells = load_cells(path)
    reference = load_reference([p for p in options.reference.split(",") if p])
    only = {o for o in options.only.split(",") if o}
    missing = []
    if not options.report:
        runs, missing = plan(options.traces, options.out, only)
        run_cells(options.kvik, runs, options.policies.split(","), cells, path)
    order = {name: i for i, name in enumerate([*TRACES, *GENERATORS]) if not only or name in only}
    cells = dict(sorted(((key, cell) for key, cell in cells.items() if key[0] in order),
                        key=lambda item: (order[item[0][0]], item[0][1])))
    rows, markdown = table(cells, reference)
    if rows:
        with open(options.out / "grid.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    (options.out / "grid.md").write_text(markdown, encoding="utf-8")
    print(markdown)
    for line in missing:
        print("left out: " + line)
    lines, met = verdicts(cells, reference)
    print("\n".join(lines))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
