#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An lm-eval task on KV that moved: the same answers, byte for byte, as from one server.

    lm_eval_kv.py [--items 60] [--link SPEC]
    KVIK_EVAL_DATA=folder with math.jsonl (default: ../shared/data/eval)
    KVIK_MODELS=folder with the model (default: that of `kvik pull`)   LM_EVAL_PYTHON=python with lm_eval[api]

The task (lm_eval/math_kv.yaml, greedy generate_until) runs on one server; on a prefill and a decode server behind a
router; on a server that reads what another one has put into a pool. KV of the last two crosses a shaped link, encoded
losslessly. Prints a line for each: answers equal to the first's, score, and prompt tokens whose KV came over the link.
Exit code 1 if an answer differs or no KV came; 77 without data, or where pip cannot get lm-eval."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from kvik_files import CACHE, DEMO_MODEL
from kvik_process import Process, Roles, model_file, settle

ROOT = pathlib.Path(__file__).resolve().parent.parent
KVIK = os.environ.get("KVIK", str(ROOT / "build" / "kvik"))
TASKS = ROOT / "scripts" / "lm_eval"
TASK = "math_kv"
SKIPPED = 77


def skip(why):
    print(f"lm-eval: skipped, {why}")
    sys.exit(SKIPPED)


def lm_eval_python():
    """A Python that has lm-eval; made once."""
    given = os.environ.get("LM_EVAL_PYTHON")
    if given:
        return given
    python = CACHE / "lm-eval-venv" / "bin" / "python"
    if subprocess.run([python, "-c", "import lm_eval, tenacity"], capture_output=True).returncode if python.exists() else 1:
        print(f"LM_EVAL_PYTHON is not set: installing lm-eval into {python.parent.parent}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", "lm-eval[api]"], capture_output=True, text=True)
        if done.returncode:
            skip(f"pip cannot get lm-eval: {done.stderr.strip().splitlines()[-1:]}")
    return str(python)


class Evaluation:
    """Runs the task; keeps what lm-eval writes."""

    def __init__(self, python, data, folder, args):
        self.python, self.data, self.folder, self.args = python, data, pathlib.Path(folder), args

    def run(self, name, server):
        """({item: answer}, score) of one server."""
        out = self.folder / name
        model_args = ",".join([f"base_url={server.url}/v1/completions", "model=demo", "tokenizer_backend=None",
                               f"num_concurrent={self.args.concurrent}", "max_length=8192"])
        done = subprocess.run(
            [self.python, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model_args,
             "--include_path", TASKS, "--tasks", TASK, "--limit", str(self.args.items), "--log_samples",
             "--output_path", out],
            cwd=self.data, capture_output=True, text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
                 "HF_HOME": str(self.folder / "hf"), "TOKENIZERS_PARALLELISM": "false"})
        if done.returncode:
            sys.exit(f"lm-eval failed:\n{done.stderr[-4000:]}")
        results, = out.rglob("results_*.json")
        samples, = out.rglob("samples_*.jsonl")
        score = json.loads(results.read_text())["results"][TASK]["exact_match,answer"]
        answers = {}
        for line in samples.read_text().splitlines():
            sample = json.loads(line)
            (answers[sample["doc_id"]],), = sample["resps"]
        if len(answers) != self.args.items:
            sys.exit(f"lm-eval answered {len(answers)} of {self.args.items} items")
        return answers, score


def came_over(server):
    return int(server.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--concurrent", type=int, default=2, help="requests at a time")
    parser.add_argument("--link", default="rate=1Gbit,delay=1ms")
    args = parser.parse_args()
    data = pathlib.Path(os.environ.get("KVIK_EVAL_DATA", ROOT.parent / "shared" / "data" / "eval"))
    if not (data / "math.jsonl").exists():
        skip(f"no math.jsonl in {data}")
    model = ["--model", str(model_file(KVIK)), "--served-model-name", "demo"]
    python = lm_eval_python()
    failed = False
    first = {}

    def report(name, answers, score, loaded):
        nonlocal failed
        equal = sum(answers[item] == first.setdefault(item, answers[item]) for item in answers)
        good = equal == len(answers) and (loaded is None or loaded > 0)
        failed = failed or not good
        print(f"{name:32} {equal:>4}/{len(answers):<4} {score:6.3f} {'-' if loaded is None else loaded:>10}"
              f"{'' if good else '  FAILED'}", flush=True)

    print(f"{DEMO_MODEL}, {args.items} items, link {args.link}, lossless")
    print(f"{'servers':32} {'equal':>9} {'score':>6} {'KV tokens':>10}")
    with tempfile.TemporaryDirectory() as folder:
        evaluation = Evaluation(python, data, folder, args)
        alone = Process(KVIK, *model)
        report("one", *evaluation.run("one", alone), None)
        alone.stop()

        half = ["--threads", str(max(1, (os.cpu_count() or 2) // 2)), "--kv-profile", "lossless"]
        roles = Roles(KVIK, *model, *half, decode_args=("--kv-link", args.link))
        answers, score = evaluation.run("pd", roles.router)
        report("prefill, decode, router", answers, score, came_over(roles.decode))
        roles.stop()

        pool = Process(KVIK, "--role", "pool", "--kv-listen", "127.0.0.1:0", "--kv-store-memory", "4GiB")
        pooled = [*model, "--kv-profile", "lossless", "--pool", pool.kv]
        writer = Process(KVIK, *pooled)
        answers, score = evaluation.run("writer", writer)
        settle(lambda: pool.metric("kvik:kv_store_objects", tier="memory"))
        report("one, puts into the pool", answers, score, None)
        writer.stop()
        reader = Process(KVIK, *pooled, "--kv-link", args.link)
        answers, score = evaluation.run("reader", reader)
        report("another, reads from the pool", answers, score, came_over(reader))
        reader.stop()
        pool.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
