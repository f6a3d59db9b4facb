# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of moving KV share: servers, prompts of exact lengths, a file of measurements, statistics."""
import http.client
import json
import math
import os
import pathlib
import random
import re
import subprocess
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "kvik"
KVIK = os.environ.get("KVIK", str(ROOT / "build" / "kvik"))
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
LIBRARY = ROOT / "profiles" / "smollm2-135m"
RESAMPLES = 4000


def find_model():
    for folder in filter(None, (os.environ.get("KVIK_MODELS"), CACHE / "models")):
        path = pathlib.Path(folder) / MODEL_FILE
        if path.is_file():
            return path.resolve()
    raise SystemExit(f"bench-kv: {MODEL_FILE} not found; run 'build/kvik pull demo' or set KVIK_MODELS")


class Node:
    """A running `kvik serve`."""

    def __init__(self, *args):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([KVIK, "serve", "--port", "0", *map(str, args)], stdout=subprocess.PIPE,
                                        stderr=self.log, text=True)
        line = self.process.stdout.readline()
        match = re.search(r" on (http://\S+)", line)
        if not match:
            self.process.wait()
            self.log.seek(0)
            raise SystemExit(f"bench-kv: {' '.join(map(str, args))} did not start: {line}{self.log.read()}")
        self.url = match[1]
        kv = re.search(r"(kvik://[^,\s]+)", line)
        self.kv = kv[1] if kv else None

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=300)
        connection.request(method, path, None if body is None else json.dumps(body))
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        if reply.status != 200:
            raise SystemExit(f"bench-kv: {path} says {reply.status}: {text}")
        return json.loads(text) if text.startswith("{") else text

    def complete(self, prompt, max_tokens, salt, **kvik):
        """(reply, milliseconds). A salt of its own finds no KV of other requests."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "cache_salt": salt,
                "kvik": kvik}
        start = time.monotonic()
        reply = self.request("POST", "/v1/completions", body)
        return reply, (time.monotonic() - start) * 1000

    def metric(self, name, **labels):
        """The sum of a metric's samples that carry these labels."""
        total = 0.0
        for line in self.request("GET", "/metrics").splitlines():
            match = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name and all(f'{k}="{v}"' in (match[2] or "") for k, v in labels.items()):
                total += float(match[3])
        return total

    def wait_up(self):
        """Of a router: until all of its nodes are."""
        while not all(node["up"] for node in self.request("GET", "/nodes")["nodes"]):
            time.sleep(0.02)


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
