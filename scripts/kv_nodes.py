# SPDX-License-Identifier: Apache-2.0
"""What the sections of bench_kv.py share: servers, prompts of exact lengths, a file of measurements, statistics."""
import contextlib
import json
import math
import os
import pathlib
import random
import re
import sys
import time

from kvik_files import demo_model
from kvik_process import Process, wait_up

ROOT = pathlib.Path(__file__).resolve().parent.parent
KVIK = os.environ.get("KVIK", str(ROOT / "build" / "kvik"))
LIBRARY = ROOT / "profiles" / "smollm2-135m"
RESAMPLES = 4000
Q_MIN = 0.97
MAX_TOKENS = 16
BYTES_PER_TOKEN = 30 * 3 * 64 * 2 * 2  # of SmolLM2-135M: layers, KV heads, channels, keys and values, bf16
PUBLISHED = ("kivi-4", "cachegen")  # never measured by the library: any quality


class Node(Process):
    """A running `kvik serve` of this checkout."""

    def __init__(self, *args):
        super().__init__(KVIK, *map(str, args))

    def complete(self, prompt, max_tokens, salt, transfer=None, **kvik):
        """(reply, milliseconds). A salt of its own finds no KV of other requests."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "cache_salt": salt,
                "kvik": kvik, **({"kv_transfer_params": transfer} if transfer else {})}
        start = time.monotonic()
        reply = self.request("POST", "/v1/completions", body)
        return reply, (time.monotonic() - start) * 1000

    def wait_up(self):
        """Of a router: until all of its nodes are."""
        wait_up(self)


class Prompts:
    """Token ids of real questions, several in a row until a prompt is as long as it is to be."""

    def __init__(self, folder, node):
        self.node, self.texts, self.ids = node, {}, {}
        for workload in ("math", "qa"):
            with open(pathlib.Path(folder) / f"{workload}.jsonl") as lines:
                rows = [json.loads(line) for line in lines]
            random.Random(1).shuffle(rows)
            self.texts[workload] = [
                f"{row['context']}\nQuestion: {row['prompt']}\nAnswer: {row['answers']}\n\n" if "context" in row else
                f"Question: {row['prompt']}\nAnswer: {row['reference']}\n\n" for row in rows]

    def make(self, workload, number, tokens):
        """Prompts of different numbers begin differently."""
        key = (workload, number, tokens)
        if key not in self.ids:
            texts = self.texts[workload]
            text, at = "", number * 7
            while len(text) < 6 * tokens:
                text += texts[at % len(texts)]
                at += 1
            ids = self.node.request("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
            self.ids[key] = ids[:tokens]
            if len(self.ids[key]) != tokens:
                raise SystemExit(f"bench-kv: a prompt of {tokens} tokens cannot be made")
        return self.ids[key]


class Measurements:
    """A file of JSON lines, each with a key; what is there is not measured again."""

    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.rows = path, {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.rows[tuple(row["key"])] = row

    def __contains__(self, key):
        return key in self.rows

    def __getitem__(self, key):
        return self.rows[key]

    def add(self, key, **values):
        row = {"key": list(key), **values}
        self.rows[key] = row
        with open(self.path, "a") as out:
            out.write(json.dumps(row) + "\n")

    def of(self, *prefix):
        return [row for key, row in self.rows.items() if key[:len(prefix)] == prefix]


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def ratio_interval(ours, theirs):
    """(geometric mean of the paired ratios, low, high): 95 % by bootstrap over pairs."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    rng = random.Random(1)
    means = sorted(mean(rng.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    return tuple(math.exp(x) for x in (mean(logs), means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]))


def judged(profile, workload):
    """The lower end of the 95 % interval of a library profile's q for a workload, as the server judges it."""
    if profile["fidelity"] == "exact":
        return 1.0
    records = {record["workload"]: record for record in profile["quality"]}
    record = records.get(workload) or records.get("unified")
    return record["q"][1] if record else math.nan


class Over(Exception):
    """Enough for this time."""


class Section:
    """Some cells of the benchmark: run() measures what is missing, tables() prints what is there."""

    def __init__(self, options, results):
        self.options, self.results = options, results
        self.library = {p["name"]: p for p in json.loads((LIBRARY / "library.json").read_text())["profiles"]}
        self.started = time.monotonic()
        self.nodes = []

    @contextlib.contextmanager
    def servers(self):
        """Those that are started within end with it."""
        before = len(self.nodes)
        try:
            yield
        finally:
            while len(self.nodes) > before:
                self.nodes.pop().stop()

    def node(self, *args):
        self.nodes.append(Node(*args))
        return self.nodes[-1]

    def engine(self, role, *args):
        return self.node("--role", role, "--model", demo_model("bench-kv"), "--served-model-name", "demo", "--threads", 1,
                         "--kv-memory", "512MiB", "--profiles", LIBRARY, *args)

    def check_budget(self):
        if self.options.budget and time.monotonic() - self.started > self.options.budget:
            raise Over

    def wanted(self, cell):
        return re.search(self.options.only, cell)

    @staticmethod
    def note(text):
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    @staticmethod
    def quality_of(arm):
        """What a request of this arm asks for: a fixed profile is judged by what it does, the controller keeps to its budget."""
        return {"raw": 1.0, "lossless": 1.0, "adaptive": Q_MIN}.get(arm, 0.0)

    def q_text(self, arm, workload):
        if arm in self.library:
            q = judged(self.library[arm], workload)
            return "x" if math.isnan(q) or q < Q_MIN else f"{q:.3f}"
        return f">= {Q_MIN}" if arm.startswith("adaptive") else "1" if arm in ("raw", "recompute") else "x"

    def allowed(self, workload):
        return [name for name, p in self.library.items() if judged(p, workload) >= Q_MIN]

    def ask(self, node, key, ids, max_tokens, salt, **how):
        """One timed request, kept under its key; without one it only warms up."""
        reply, jct_ms = node.complete(ids, max_tokens, salt, **how)
        kvik = reply["kvik"]
        moved = kvik.get("transfer") or {}
        row = dict(tokens=len(ids), jct_ms=jct_ms, ttft_ms=kvik["ttft_ms"], breakdown=kvik["breakdown_ms"],
                   by_source=kvik["prompt_tokens_by_source"], profile=moved.get("profile"),
                   wire_bytes=moved.get("wire_bytes", 0), raw_bytes=moved.get("raw_bytes", 0),
                   predicted_ms=moved.get("predicted_ms"), observed_ms=moved.get("observed_ms"), why=moved.get("why"))
        if key is not None:
            self.results.add(key, **row)
        return row
