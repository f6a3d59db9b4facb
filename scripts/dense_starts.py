#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts the runs of a trace of agents more densely.

A trace that was made by starting every recorded agent run several times (`--copies`) at random
moments says which conversation a call belongs to, but not which run: one run holds many
conversations. The copies tell: calls of one run keep their distance, so a call that comes at
t1 .. t6 and another of the same run at u1 .. u6 have u - t alike six times. Runs are found by
that, and then begin `--factor` times as early; inside a run nothing moves. The share of a cache
that each run gets shrinks by as much, with the same contents.

usage: dense_starts.py TRACE.jsonl OUT.jsonl [--copies 6] [--factor 8]
"""
import argparse
import collections
import json
import sys

JITTER_MS = 5  # times are rounded


def alike(distances, others):
    return all(abs(a - b) <= JITTER_MS for a, b in zip(distances, others))


def find_runs(requests, copies):
    """[(first time, requests)] of every copy of every run. Requests of no run are an error."""
    times = collections.defaultdict(list)
    for request in requests:
        times[(request["input_length"], request["output_length"])].append(request)
    votes = collections.Counter()
    for calls in times.values():
        if len(calls) == copies:  # a call that no other run nor moment repeats
            at = [call["timestamp"] for call in calls]
            votes[tuple(t - at[0] for t in at)] += 1
    kinds = []
    for distances, _ in votes.most_common():
        if not any(alike(distances, kind) for kind in kinds):
            kinds.append(distances)

    runs = collections.defaultdict(list)
    for calls in times.values():
        left = list(calls)
        while left:
            for number, kind in enumerate(kinds):
                members = []
                for distance in kind:
                    wanted = left[0]["timestamp"] + distance
                    near = [c for c in left if abs(c["timestamp"] - wanted) <= JITTER_MS
                            and not any(c is m for m in members)]
                    if not near:
                        break
                    members.append(min(near, key=lambda c: abs(c["timestamp"] - wanted)))
                if len(members) == copies:
                    for copy, call in enumerate(members):
                        runs[(number, copy)].append(call)
                    left = [c for c in left if not any(c is m for m in members)]
                    break
            else:
                sys.exit(f"the call at {left[0]['timestamp']} ms has no {copies} copies at the "
                         "distances of any run: is --copies right?")
    return list(runs.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("trace")
    parser.add_argument("out")
    parser.add_argument("--copies", type=int, default=6)
    parser.add_argument("--factor", type=float, default=8)
    options = parser.parse_args()
    with open(options.trace, encoding="utf-8") as file:
        requests = [json.loads(line) for line in file if line.strip()]
    runs = find_runs(requests, options.copies)
    for run in runs:
        start = min(call["timestamp"] for call in run)
        for call in run:
            call["timestamp"] += round(start / options.factor) - start
    requests.sort(key=lambda call: call["timestamp"])
    with open(options.out, "w", encoding="utf-8") as file:
        for call in requests:
            file.write(json.dumps(call, separators=(",", ":")) + "\n")
    print(f"{len(requests)} calls of {len(runs)} runs, started {options.factor:g} times as densely")


if __name__ == "__main__":
    main()
