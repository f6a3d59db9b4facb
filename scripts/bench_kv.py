#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""KV that moves between servers, on sockets: a real model, emulated links (`--kv-link`), prompts of real questions.

    KVIK_EVAL_DATA=folder of *.jsonl KVIK_MODELS=folder scripts/bench_kv.py RESULTS [--sections pd,bare,pool,drift,crossings]
                                            [--only REGEX] [--budget SECONDS] [--prepare] [--report] [--docs FILE]

pd: prefill node, decode node and router for every way of compressing KV, side by side; each repeat sends the same prompt
    through all of them, one after the other, and nobody has seen it before. The link of a cell follows from
    R = (raw KV that the prefill makes a second) / bandwidth.
bare: the same without a router and on the machine's loopback as it is, of prompts that the prefill node has computed before.
pool: KV that a pool has in many encodings: computed again, fetched, or both at once.
drift: the same while the link falls to a twentieth for a while and other work comes to the machine.
crossings: the bandwidth at which one profile overtakes another, predicted and found.

Every measurement is a line of JSON in RESULTS and is not made again, so the command can be stopped (--budget stops it by
itself) and repeated. Exact answers are compared with a server of its own before anything is timed. At the end the tables
of all there is are printed, and with --docs written between the markers of that file."""
import argparse
import os
import pathlib
import signal
import sys

from kv_bare_link import BareLink
from kv_handover import Handover
from kv_nodes import Measurements, Over, Section
from kv_pool_reads import Crossings, Drift, PoolReads

SECTIONS = {"pd": Handover, "bare": BareLink, "pool": PoolReads, "drift": Drift, "crossings": Crossings}
BEGIN, END = "<!-- bench_kv.py -->", "<!-- end of bench_kv.py -->"


def write_docs(path, lines):
    before, _, rest = pathlib.Path(path).read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"bench-kv: {path} has no markers")
    pathlib.Path(path).write_text(before + "\n".join([BEGIN, "", *lines]) + END + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="folder; made if it is not there")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--only", default="", help="cells whose name has this regular expression, e.g. pd/math")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--budget", type=float, help="seconds after which no measurement is begun")
    parser.add_argument("--prepare", action="store_true", help="only fill the pool, which is not timed")
    parser.add_argument("--report", action="store_true", help="only print the tables of what is there")
    parser.add_argument("--docs", help="write the tables into this file, between its markers")
    options = parser.parse_args()
    options.data = os.environ.get("KVIK_EVAL_DATA", "data/eval")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the servers, too

    results = Measurements(pathlib.Path(options.results) / "bench-kv.jsonl")
    sections = {name: kind(options, results) for name, kind in SECTIONS.items()}
    done = True
    if not options.report:
        for name in options.sections.split(","):
            try:
                with sections[name].servers():
                    sections[name].run()
            except Over:
                Section.note("stopped; repeat the command to go on")
                done = False
                break
    lines = [line for section in sections.values() for line in section.tables()]
    print("\n".join(lines))
    if options.docs:
        write_docs(options.docs, lines)
    return 0 if done else 3


if __name__ == "__main__":
    sys.exit(main())
