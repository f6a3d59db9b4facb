#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What compression costs, on real models and prompts: every published preset and the calibrated profiles of this
repository, on every workload and length.

    KVIK_EVAL_DATA=folder of *.jsonl KVIK_MODELS=folder scripts/rate_distortion.py RESULTS [--only REGEX] [--docs DOCS]
                                                                      [--positions 8192] [--long-positions 2048]
                                                                      [--continuation 128] [--wrap COMMAND]

Calibrates what the presets need, then says how long it will take. Everything measured is kept in RESULTS (raw KV, a log of results, JSON a group of
cells), so the command can be stopped and repeated. At the end DOCS/rate-distortion.md and the plots in DOCS/img are
written from all groups there are."""
import argparse
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys

from kvik_files import find_model

ROOT = pathlib.Path(__file__).resolve().parent.parent
KVIK = os.environ.get("KVIK", str(ROOT / "build" / "kvik"))
SEED = 1
Q_GOAL = 0.97

# Name, file, profile library (made by `kvik calibrate`).
MODELS = (
    ("SmolLM2-135M", "SmolLM2-135M-Instruct.Q4_1.gguf", ROOT / "profiles" / "smollm2-135m"),
    ("Qwen2.5-Coder-0.5B", "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", ROOT / "profiles" / "qwen2.5-coder-0.5b"),
)
# Name, cells, whether its prompts are long ones.
GROUPS = (
    ("128", ("math:128", "code:128", "qa:128"), False),
    ("1K", ("math:1K", "code:1K", "qa:1K", "summarization:1K"), False),
    ("long", ("qa:6K", "summarization:6K", "retrieval"), True),
)
PRESETS = ("lossless", "kivi-2", "kivi-4", "cachegen", "cachegen-2", "cachegen-3", "quarot-4")
CALIBRATED_PRESETS = ("affinequant-diagonal", "affinequant-full", "mixhq", "duoattention", "kvtc")


class Group:
    """Some cells of one model: one `kvik eval`."""

    def __init__(self, options, model, path, library, name, cells, is_long):
        self.options, self.model, self.path, self.library = options, model, path, library
        self.name, self.cells, self.is_long = name, cells, is_long
        self.slug = f"{model.lower()}-{name.lower()}"
        self.file = pathlib.Path(options.results) / f"{self.slug}.json"

    def command(self, *more):
        positions = self.options.long_positions if self.is_long else self.options.positions
        argv = [KVIK, "eval", "--model", self.path, "--data", self.options.data, "--cell", ",".join(self.cells),
                "--positions", positions, "--continuation", self.options.continuation, "--seed", SEED,
                "--cache", pathlib.Path(self.options.results) / "cache", "--cache-limit", self.options.cache_limit]
        presets = list(PRESETS)
        if self.library is not None:
            presets += CALIBRATED_PRESETS
            argv += ["--profiles", self.library]
            for name, _, _ in profiles_of(self.library):
                if name not in presets:
                    argv += ["--profile", name]
        return [str(a) for a in [*argv, "--pipeline", ",".join(presets), *more]]

    def plan_seconds(self):
        done = subprocess.run(self.command("--plan"), capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"rate-distortion: {done.stderr.strip().splitlines()[-1]}")
        return float(done.stdout)

    def run(self):
        self.file.parent.mkdir(parents=True, exist_ok=True)
        part = self.file.with_suffix(".part")
        svg = ["--svg", str(pathlib.Path(self.options.docs) / "img" / f"rate-distortion-{self.slug}.svg")]
        argv = shlex.split(self.options.wrap or "") + self.command("--json", *svg)
        with open(part, "w") as out:
            code = subprocess.run(argv, stdout=out).returncode
        if code not in (0, 1) or not part.read_text().startswith("{"):  # 1: some pipeline failed, and the table says so
            raise SystemExit(f"rate-distortion: failed: {shlex.join(argv)}")
        part.replace(self.file)

    def results(self):
        return json.loads(self.file.read_text())["results"] if self.file.exists() else []


def profiles_of(library):
    """[(name, pipeline, hash)] of a library."""
    document = json.loads((library / "library.json").read_text())
    return [(profile["name"], profile["pipeline"], profile["hash"]) for profile in document["profiles"]]


def bench_library(options, model, path, shipped):
    """The profiles of this repository and the calibrated presets, from the same texts, in one library: what the presets
    need is too large to be shipped. Made once; None without a shipped library."""
    if not (shipped / "library.json").exists():
        print(f"rate-distortion: no profile library in {shipped}: calibrated pipelines are left out", file=sys.stderr)
        return None
    ours = [profile for profile in profiles_of(shipped) if profile[0] not in PRESETS]
    folder = pathlib.Path(options.results) / "libraries" / model.lower()
    if not (folder / "library.json").exists():
        if options.report_only:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{name} = {pipeline}" for name, pipeline, _ in ours] + [f"{name} = {name}" for name in CALIBRATED_PRESETS]
        (folder / "profiles.txt").write_text("\n".join(lines) + "\n")
        texts = sorted((ROOT / "data" / "calibration").glob("*.txt"))
        print(f"rate-distortion: calibrating for {model}", file=sys.stderr)
        argv = [KVIK, "calibrate", "--model", path, "--texts", *texts, "--profiles", folder / "profiles.txt", "--out", folder]
        subprocess.run([str(a) for a in argv], check=True, stdout=subprocess.DEVNULL)
    made = {name: profile_hash for name, _, profile_hash in profiles_of(folder)}
    if any(made.get(name) != profile_hash for name, _, profile_hash in ours):
        print(f"rate-distortion: note: {folder} is calibrated otherwise than {shipped} (other arithmetic?)", file=sys.stderr)
    return folder


def groups(options):
    for model, file, library in MODELS:
        path = find_model(file)
        if path is None:
            print(f"rate-distortion: {file} not found (KVIK_MODELS), left out", file=sys.stderr)
            continue
        chosen = [group for group in GROUPS if re.search(options.only, f"{model}/{group[0]}")]
        if not chosen:
            continue
        library = bench_library(options, model, path, library)
        for name, cells, is_long in chosen:
            yield Group(options, model, path, library, name, cells, is_long)


def is_ours(row):
    return row["name"] not in PRESETS + CALIBRATED_PRESETS


def frontier(rows):
    """Of ours, (bits, kl) that nothing of ours beats in both, by bits."""
    points, best = [], math.inf
    for row in sorted((r for r in rows if is_ours(r)), key=lambda r: (r["bits_per_value"], r["kl"])):
        if row["kl"] < best:
            best = row["kl"]
            points.append((row["bits_per_value"], max(row["kl"], 1e-9)))
    return points


def bits_at(points, kl):
    """Bits of the frontier at a divergence: log-linear between its points; None outside of them."""
    for (bits, here), (next_bits, below) in zip(points, points[1:]):
        if here >= kl >= below:
            share = (math.log(here) - math.log(kl)) / (math.log(here) - math.log(below)) if here > below else 0
            return bits + share * (next_bits - bits)
    if points and kl >= points[0][1]:
        return points[0][0]
    return None


def kl_at(points, bits):
    for (here, kl), (after, next_kl) in zip(points, points[1:]):
        if here <= bits <= after:
            share = (bits - here) / (after - here)
            return math.exp(math.log(kl) + share * (math.log(next_kl) - math.log(kl)))
    return points[-1][1] if points and bits >= points[-1][0] else None


def percent(share):
    return f"{100 * share:.2f}"


def cell_table(rows):
    first = next(r for r in rows if "error" not in r)
    lines = [f"{first['prompts']} prompts, {first['positions']:,} positions; perplexity of the {first['ppl_text']}, raw "
             f"{first['ppl_raw']:.3f}.", "",
             "| pipeline | bits | CR | MSE | logit error | output error | KL (95 %), 1/1000 nat | top-1 % | q % (low) | ppl |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for row in sorted((r for r in rows if "error" not in r), key=lambda r: -r["bits_per_value"]):
        low, high = row["intervals"]["kl"]
        name = f"**{row['name']}**" if is_ours(row) else row["name"]
        lines.append(f"| {name} | {row['bits_per_value']:.3f} | {row['cr']:.2f} | {row['mse']:.3g} | {row['logit_error']:.4f} | "
                     f"{row['output_error']:.4f} | {1000 * row['kl']:.3f} ({1000 * low:.3f} to {1000 * high:.3f}) | "
                     f"{percent(row['top1'])} | {percent(row['q'])} ({percent(row['q_low'])}) | {row['ppl']:.3f} |")
    lines += [f"\n{row['name']}: {row['error']}" for row in rows if "error" in row]
    return lines


def summary(cells):
    """Ours against each preset at its own divergence, and the smallest of ours that keeps q."""
    presets = [p for p in PRESETS + CALIBRATED_PRESETS if any(r["name"] == p for rows in cells.values() for r in rows)]
    lines = ["| cell | " + " | ".join(presets) + f" | ours at q >= {Q_GOAL} (low) |", "|---" * (len(presets) + 2) + "|"]
    for cell, rows in cells.items():
        good = {r["name"]: r for r in rows if "error" not in r}
        points = frontier(good.values())
        out = []
        for preset in presets:
            row = good.get(preset)
            ours = bits_at(points, max(row["kl"], 1e-9)) if row else None
            out.append(f"{row['bits_per_value'] / ours:.2f}x" if ours else "-")
        keep = [r for r in good.values() if is_ours(r) and r["q_low"] >= Q_GOAL]
        best = max(keep, key=lambda r: r["cr"], default=None)
        out.append(f"{best['cr']:.2f}x, {best['name']}" if best else "none")
        lines.append(f"| {cell} | " + " | ".join(out) + " |")
    return lines


def ranks(cells):
    """Methods by how much more they diverge than ours would in the same bytes."""
    lines = ["| cell | from least to most divergence for its bytes |", "|---|---|"]
    for cell, rows in cells.items():
        good = [r for r in rows if "error" not in r]
        points = frontier(good)
        factors = []
        for row in good:
            ours = kl_at(points, row["bits_per_value"])
            if not is_ours(row) and row["name"] != "lossless" and ours:
                factors.append((row["kl"] / ours, row["name"]))
        lines.append(f"| {cell} | " + ", ".join(f"{name} {factor:.1f}x" for factor, name in sorted(factors)) + " |")
    return lines


def report(options, all_groups):
    lines = ["# Rate and distortion", "", "Made by `make bench-rd` (scripts/rate_distortion.py); what the columns mean and how "
             "prompts are built: `kvik eval --help`. Bits are per KV value with every byte of every frame counted; raw is 16. "
             "**Bold**: the profiles of this repository.", ""]
    models = {}
    for group in all_groups:
        for row in group.results():
            models.setdefault(group.model, {}).setdefault(row["cell"], []).append(row)
    for model, cells in models.items():
        lines += [f"## {model}", ""]
        if any(is_ours(r) for rows in cells.values() for r in rows):
            lines += ["How many times fewer bytes ours needs at the divergence of each preset (interpolated between profiles; "
                      "-: beyond them):", "", *summary(cells), "", "How many times more each preset diverges than ours in the "
                      "same bytes:", "", *ranks(cells), ""]
        for group in all_groups:
            if group.model == model and group.file.exists():
                lines += [f"![{model}, {group.name}](img/rate-distortion-{group.slug}.svg)", ""]
        for cell, rows in cells.items():
            lines += [f"### {model}, {cell}", "", *cell_table(rows), ""]
    path = pathlib.Path(options.docs) / "rate-distortion.md"
    path.write_text("\n".join(lines))
    print(f"wrote {path}", file=sys.stderr)


def duration(seconds):
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--only", default="", help="model/group, e.g. SmolLM2.*/1K")
    parser.add_argument("--docs", default=str(ROOT / "docs"))
    parser.add_argument("--positions", type=int, default=8192)
    parser.add_argument("--long-positions", type=int, default=2048)
    parser.add_argument("--continuation", type=int, default=128)
    parser.add_argument("--cache-limit", default="40GiB")
    parser.add_argument("--wrap")
    parser.add_argument("--report-only", action="store_true", help="write the documents from what there is")
    options = parser.parse_args()
    options.data = os.environ.get("KVIK_EVAL_DATA", "")
    if not options.report_only and not (options.data and pathlib.Path(options.data).is_dir()):
        raise SystemExit("rate-distortion: set KVIK_EVAL_DATA to a folder of *.jsonl (docs/compression.md says of what shape)")
    pathlib.Path(options.docs, "img").mkdir(parents=True, exist_ok=True)
    chosen = list(groups(options))
    if not chosen:
        raise SystemExit("rate-distortion: nothing to do")
    if not options.report_only:
        plans = [(group, group.plan_seconds()) for group in chosen]
        total = sum(seconds for _, seconds in plans)
        print(f"rate-distortion: about {duration(total)} in all", file=sys.stderr)
        for group, seconds in plans:
            print(f"  {group.model}/{group.name}: {duration(seconds)}", file=sys.stderr)
        for group, _ in plans:
            group.run()
    options.only, options.report_only = "", True
    report(options, list(groups(options)))


if __name__ == "__main__":
    main()
