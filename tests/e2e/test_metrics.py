# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md and /metrics name the same metrics, of the same kinds, in every role."""
import os
import re

from conftest import tokens
from roles import complete, kv_url, pair, pool_of, until_external

DOCS = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "metrics.md")
KINDS = {"counter", "gauge", "histogram"}


def documented():
    """{name: kind} of every table whose second column is the kind, and the lists of names in prose."""
    names = {}
    with open(DOCS) as file:
        text = file.read()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[1] in KINDS:
            names |= {name: cells[1] for name in re.findall(r"`((?:vllm|kvik):\w+)", cells[0])}
    return names, set(re.findall(r"(?:vllm|kvik):\w+", text))


def exported(*processes):
    """{name: kind} of what they show together."""
    kinds = {}
    for process in processes:
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", process.request("GET", "/metrics")[1], re.M):
            assert kinds.setdefault(name, kind) == kind, name
    return kinds


def test_what_is_documented_is_exported_and_what_is_exported_is_documented(start, tmp_path):
    pool = pool_of(start, "--kv-store-memory", "16MiB")
    store = ("--pool", kv_url(pool), "--kv-store-memory", "16MiB", "--kv-store-disk", f"{tmp_path}:64MiB")
    router, prefill, decode = pair(start, decode=(*store, "--kv-cache-metrics", "--kv-cache-metrics-sample", "1"))
    reply = until_external(lambda seed: complete(router, tokens(seed, 1200), 8))
    assert reply["kvik"]["transfer"]["profile"]
    kinds = exported(pool, router, prefill, decode)
    # What policies know of themselves.
    for policy in ("hazard", "asym", "lru+continuum"):
        server = start("--policy", policy)
        complete(server, tokens(1, 100))
        kinds |= exported(server)
        server.stop()

    tables, mentioned = documented()
    of_histograms = {name + suffix for name, kind in kinds.items() if kind == "histogram"
                     for suffix in ("_bucket", "_sum", "_count")}
    assert mentioned - of_histograms - set(kinds) == set(), "documented and not exported"
    assert set(kinds) - mentioned == set(), "exported and not documented"
    assert {name: kinds[name] for name in tables} == tables
    for name, kind in kinds.items():
        if name.startswith("kvik:"):  # vLLM has histograms that end alike
            assert (kind == "counter") == name.endswith("_total"), name
