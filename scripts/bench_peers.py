#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of kvik against the faster of llama.cpp and vLLM CPU: same weights, same threads, same machine, same run.

    PEER_PYTHON=python with xllamacpp   (absent: a venv of its own under ~/.cache/kvik)
    VLLM_PYTHON=python with vllm        (absent: vLLM is printed as not compared)
    KVIK_MODELS=folder with the model   VLLM_MODEL=a Hugging Face folder of the same weights (absent: converted)

Batch 1, random prompts that no cache has seen, 48 greedy tokens after each. Every engine stays loaded for the
whole run; while one is measured, the others are stopped (SIGSTOP), so that none spins on a core, and each answers
one short untimed prompt when it goes on. The engines
take turns within each repeat, and the best repeat of each counts: on shared cores the worst ones measure the
neighbours. Each peer runs in every setting listed, and the fastest setting of all peers is the one to beat.
Prints one line a cell; exit 1 if a cell is short of its goal."""
import http.client
import json
import os
import pathlib
import platform
import random
import signal
import socket
import subprocess
import sys
import time

from kvik_files import CACHE, demo_model

ROOT = pathlib.Path(__file__).resolve().parent.parent
THREADS = 2
REPEATS = max(3, int(os.environ.get("REPEATS", "3")))
NEW_TOKENS = 48
LENGTHS = (128, 1024, 4096)
GOALS = [("prefill", 128, 1.3), ("prefill", 1024, 1.3), ("prefill", 4096, 1.3), ("decode", 128, 1.2), ("decode", 4096, 3.0)]
START_TIMEOUT_S = 600
SETTLE_S = 4
RUN_TIMEOUT_S = 600


def prompt(length, seed):
    rng = random.Random(seed)
    return [rng.randrange(100, 40000) for _ in range(length)]


class Engine:
    """A process (group) that is stopped whenever it is not being measured."""

    def __init__(self, name, setting, argv, **popen):
        self.name, self.setting = name, setting
        self.process = subprocess.Popen(argv, start_new_session=True, **popen)

    def settle(self):
        """Started: lets it finish what it does in the background, then waits for its turn."""
        time.sleep(SETTLE_S)
        self.pause()

    def pause(self):
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self):
        os.killpg(self.process.pid, signal.SIGCONT)

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGCONT)
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


class Kvik(Engine):
    """kvik as its users meet it: over HTTP, streamed; what the client sees is what counts."""

    def __init__(self, binary, model):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = open(CACHE / "bench-peers-kvik.log", "w")
        super().__init__("kvik", "serve", [str(binary), "serve", "--model", str(model), "--host", "127.0.0.1", "--port",
                         str(self.port), "--threads", str(THREADS), "--no-kv-store"], stdout=self.log, stderr=subprocess.STDOUT)
        self.version = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True).stdout.strip()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
                connection.request("GET", "/v1/models")
                self.model_id = json.loads(connection.getresponse().read())["data"][0]["id"]
                return
            except (OSError, http.client.HTTPException):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"kvik did not start; see {self.log.name}") from None
                time.sleep(0.05)

    def measure(self, length, seed):
        body = json.dumps({"model": self.model_id, "prompt": prompt(length, seed), "max_tokens": NEW_TOKENS, "temperature": 0,
                           "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=RUN_TIMEOUT_S)
        start = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise SystemExit(f"kvik: {reply.status} {reply.read().decode()}")
        first = last = usage = None
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if event.get("choices"):
                last = time.perf_counter()
                first = first or last
        if usage["completion_tokens"] != NEW_TOKENS or usage.get("prompt_tokens_details", {}).get("cached_tokens", 0):
            raise SystemExit(f"kvik: not a cold run of {NEW_TOKENS} tokens: {usage}")
        return {"prefill": length / (first - start), "decode": (NEW_TOKENS - 1) / (last - first)}


# Peers run under their own Python, in this protocol: one JSON line when loaded, then for every line "LENGTH SEED" on
# standard input one line of results. Whatever the engine itself prints goes to standard error.
WORKER_PRELUDE = """
import json, os, random, sys, time
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def say(value):
    print(json.dumps(value), file=out, flush=True)
def prompt(length, seed):
    rng = random.Random(seed)
    return [rng.randrange(100, 40000) for _ in range(length)]
"""

LLAMA_WORKER = WORKER_PRELUDE + """
import xllamacpp as xl
model, threads, flash, new = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
params = xl.CommonParams()
params.model.path = model
params.n_ctx, params.n_batch, params.n_ubatch, params.n_parallel = 8192, 2048, 512, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
kind = xl.llama_flash_attn_type
params.flash_attn_type = kind.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash == "on" else kind.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xl.Server(params)
say({"version": "xllamacpp " + xl.__version__})
for line in sys.stdin:
    length, seed = map(int, line.split())
    reply = server.handle_completions({"prompt": prompt(length, seed), "max_tokens": new, "temperature": 0,
                                       "ignore_eos": True, "cache_prompt": False})
    t = reply["timings"]
    say({"prefill": t["prompt_per_second"], "decode": t["predicted_per_second"]})
"""

VLLM_WORKER = WORKER_PRELUDE + """
model, threads, dtype, new = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
os.environ.update(VLLM_CPU_KVCACHE_SPACE="2", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR",
                  VLLM_CPU_OMP_THREADS_BIND="0-%d" % (threads - 1), VLLM_NO_USAGE_STATS="1")
if __name__ == "__main__":
    import vllm
    engine = vllm.LLM(model, dtype=dtype, max_model_len=8192, enforce_eager=True, max_num_batched_tokens=4096,
                      enable_prefix_caching=False, skip_tokenizer_init=True)
    def run(length, seed, count):
        start = time.perf_counter()
        engine.generate([{"prompt_token_ids": prompt(length, seed)}],
                        vllm.SamplingParams(max_tokens=count, ignore_eos=True, temperature=0, detokenize=False),
                        use_tqdm=False)
        return time.perf_counter() - start
    run(64, 0, 4)
    say({"version": "vllm " + vllm.__version__})
    for line in sys.stdin:
        length, seed = map(int, line.split())
        first, all_of_it = run(length, seed, 1), run(length, seed + 1, new + 1)
        say({"prefill": length / first, "decode": new / max(1e-9, all_of_it - first)})
"""


class Peer(Engine):
    def __init__(self, name, setting, python, worker, arguments):
        stem = f"bench-peers-{name}-{setting}".replace(" ", "-")
        script = CACHE / f"{stem}.py"  # a file, because vLLM starts its engine by importing it again
        script.write_text(worker)
        self.log = open(CACHE / f"{stem}.log", "w")
        super().__init__(name, setting, [python, "-B", str(script), *map(str, arguments)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=CACHE)
        self.version = self.read()["version"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ({self.setting}) ended early; see {self.log.name}")
        return json.loads(line)

    def measure(self, length, seed):
        print(length, seed, file=self.process.stdin, flush=True)
        return self.read()


def peer_python():
    if os.environ.get("PEER_PYTHON"):
        return os.environ["PEER_PYTHON"]
    venv = CACHE / "peer-venv"
    python = venv / "bin" / "python"
    if subprocess.run([str(python), "-c", "import xllamacpp"], capture_output=True).returncode if python.exists() else True:
        print(f"PEER_PYTHON is not set: installing xllamacpp into {venv}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "xllamacpp"], check=True)
    return str(python)


CONVERT = """
import os, sys, torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
folder, name = os.path.split(sys.argv[1])
source = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
skip = ("quantization_config", "_name_or_path", "transformers_version")
model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in source.config.to_dict().items() if k not in skip}))
model.load_state_dict(source.state_dict())
model.save_pretrained(sys.argv[2])
"""


def vllm_model(python, model):
    """vLLM reads no GGUF of this kind on the CPU: the same weights, dequantised to float32, in a folder of their own."""
    if os.environ.get("VLLM_MODEL"):
        return os.environ["VLLM_MODEL"]
    folder = CACHE / "peers" / model.stem
    if not (folder / "config.json").is_file():
        print(f"converting {model.name} for vLLM into {folder}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([python, "-c", CONVERT, str(model), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return str(folder)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave no stopped engine behind
    CACHE.mkdir(parents=True, exist_ok=True)
    binary = pathlib.Path(os.environ.get("KVIK", ROOT / "build" / "kvik"))
    model = demo_model("bench-peers")
    engines = []
    try:
        engines.append(Kvik(binary, model))
        llama_python = peer_python()
        for flash in ("off", "on"):
            engines[-1].settle()
            engines.append(Peer("llama.cpp", f"flash attention {flash}", llama_python, LLAMA_WORKER, [model, THREADS, flash, NEW_TOKENS]))
        vllm_python = os.environ.get("VLLM_PYTHON")
        if vllm_python:
            folder = vllm_model(vllm_python, model)
            for dtype in ("float32", "bfloat16"):
                engines[-1].settle()
                engines.append(Peer("vLLM", f"{dtype} eager", vllm_python, VLLM_WORKER, [folder, THREADS, dtype, NEW_TOKENS]))
        engines[-1].settle()

        cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown CPU")
        print(f"host: {cpu}, {os.cpu_count()} cores, {platform.system()} {platform.release()}; KVIK_KERNELS={os.environ.get('KVIK_KERNELS', 'auto')}")
        print(f"model: {model.name}; {THREADS} threads, batch 1, {NEW_TOKENS} new tokens, best of {REPEATS} interleaved repeats, tokens/s")
        for engine in engines:
            print(f"engine: {engine.name} ({engine.setting}), {engine.version}")
        if not vllm_python:
            print("engine: vLLM not compared (VLLM_PYTHON is not set)")

        best = {}  # (engine index, what, length) -> tokens/s
        for repeat in range(REPEATS):
            for length in LENGTHS:
                for index, engine in enumerate(engines):
                    engine.resume()
                    engine.measure(64, 1000000 + 1000 * repeat + length)  # untimed: it was stopped for a while
                    for what, speed in engine.measure(length, 1000 * repeat + length).items():
                        key = (index, what, length)
                        best[key] = max(best.get(key, 0.0), speed)
                    engine.pause()
                print(f"repeat {repeat + 1} of {REPEATS}, {length} tokens: done", file=sys.stderr, flush=True)

        short = 0
        for what, length, goal in GOALS:
            ours = best[0, what, length]
            fastest = max(range(1, len(engines)), key=lambda i: best[i, what, length])
            ratio = ours / best[fastest, what, length]
            short += ratio < goal
            others = ", ".join(f"{e.name} {e.setting} {best[i, what, length]:.1f}" for i, e in enumerate(engines) if i)
            print(f"{what} {length:5d}: kvik {ours:.1f} tok/s = {ratio:.2f}x of {engines[fastest].name} ({engines[fastest].setting}); "
                  f"goal {goal}x: {'ok' if ratio >= goal else 'SHORT'} [{others}]")
        print(f"bench-peers: {len(GOALS) - short} of {len(GOALS)} cells reach their goal")
        return 1 if short else 0
    finally:
        for engine in engines:
            engine.close()


if __name__ == "__main__":
    sys.exit(main())
