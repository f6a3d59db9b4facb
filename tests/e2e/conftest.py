# SPDX-License-Identifier: Apache-2.0
"""Starts the real program on a free port and gives tests the official client to it."""
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.parse

import openai
import pytest

KVIK = os.environ["KVIK_BINARY"]
MODEL = os.environ["KVIK_TINY_MODEL"]
# A build with sanitizers is many times slower: long tests ask for less of the same.
with open(KVIK, "rb") as program:
    INSTRUMENTED = re.search(rb"__[at]san_init", program.read()) is not None
# How such a build ends when it found something; kvik itself never ends so.
SANITIZER_EXIT_CODE = 86


def environment(**more):
    """The variables a kvik under test runs with: these, and a sanitizer's report is its exit code."""
    env = {**os.environ, **more}
    for sanitizer in ("ASAN", "LSAN", "UBSAN", "TSAN"):
        name = sanitizer + "_OPTIONS"
        env[name] = f"{env.get(name, '')}:exitcode={SANITIZER_EXIT_CODE}:print_stacktrace=1"
    return env


def check_ended_well(code, stderr, expected=None):
    """Fails, with what the process said, unless it ended by itself, with no report of a sanitizer."""
    assert code >= 0 and code != SANITIZER_EXIT_CODE and code in (expected or [code]), f"exit code {code}:\n{stderr}"
    assert "Sanitizer" not in stderr and "runtime error:" not in stderr, stderr


def wait_until(condition, what):
    """A state that never comes is a failure, not a hang."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, f"still waiting that {what}"


class Process:
    """A running `kvik serve`."""

    def __init__(self, *args, env=None):
        self.log = tempfile.TemporaryFile("w+")  # a file never fills up as a pipe would
        self.process = subprocess.Popen([KVIK, "serve", *args], stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env=environment(**(env or {})))
        self.greeting = self.process.stdout.readline()
        match = re.search(r" on (http://\S+)", self.greeting)
        if not match:
            said = self.stderr()
            self.kill()
            raise RuntimeError(f"the server did not start: {self.greeting}{said}")
        self.url = match[1]
        self.address = urllib.parse.urlsplit(self.url).netloc
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0)

    def stderr(self):
        """What it has said until now."""
        self.log.flush()
        with open(f"/proc/self/fd/{self.log.fileno()}") as log:
            return log.read()

    def stop(self):
        """Ends the server as an operator would, if it has not ended yet; it must have ended well."""
        if self.log.closed:
            return  # ended before
        if self.process.poll() is None:
            self.thaw()
            self.process.terminate()
        try:
            code = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        self.log.seek(0)
        stderr = self.log.read()
        self.log.close()
        check_ended_well(code, stderr, [0])

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        """Ends it as a crash would."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def request(self, method, path, body=None, headers=None):
        """(status, parsed JSON or text) of a plain HTTP request."""
        connection = http.client.HTTPConnection(self.address, timeout=120)
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        text = reply.read().decode("utf-8")
        connection.close()
        try:
            return reply.status, json.loads(text)
        except json.JSONDecodeError:
            return reply.status, text

    def metric(self, name, **labels):
        """The sum of a metric's samples that carry these labels."""
        total = 0.0
        for line in self.request("GET", "/metrics")[1].splitlines():
            match = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name and all(f'{k}="{v}"' in (match[2] or "") for k, v in labels.items()):
                total += float(match[3])
        return total

    def complete(self, prompt, max_tokens=16, **extra):
        """A greedy completion."""
        known = {k: extra.pop(k) for k in ("stop", "n", "seed", "stream", "logprobs", "echo") if k in extra}
        return self.client.completions.create(
            model="tiny", prompt=prompt, max_tokens=max_tokens, temperature=extra.pop("temperature", 0),
            extra_body=extra, **known)

    def text(self, prompt, max_tokens=16, **extra):
        return self.complete(prompt, max_tokens, **extra).choices[0].text

    def streamed(self, prompt, max_tokens=16, **extra):
        """(text, finish_reason) of a streamed completion, put together from its chunks."""
        text, reason = "", None
        for chunk in self.complete(prompt, max_tokens, stream=True, **extra):
            for choice in chunk.choices:
                text += choice.text
                reason = choice.finish_reason or reason
        return text, reason

    def chat(self, content, max_tokens=16, **extra):
        return self.client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": content}], max_tokens=max_tokens,
            temperature=0, **extra)


class Server(Process):
    """One with the tiny model; its arguments come after the defaults and win. It has a store only if they name one, or if
    `own_store` leaves it what every server has: tests count what is computed and what comes from where."""

    def __init__(self, *args, model=MODEL, env=None, own_store=False):
        named = own_store or any(flag in args for flag in ("--kv-store-memory", "--kv-store-disk"))
        super().__init__("--model", model, "--served-model-name", "tiny", "--threads", "1", "--cost-model", "default",
                         *([] if named else ["--no-kv-store"]),
                         *([] if "--port" in args else ["--port", "0"]),
                         *([] if "--num-blocks" in args else ["--kv-memory", "64MiB"]), *args, env=env)
        self.num_blocks = int(re.search(r'num_gpu_blocks="(\d+)"', self.request("GET", "/metrics")[1])[1])

    def blocks(self):
        """KV blocks by state, all of one moment."""
        text = self.request("GET", "/metrics")[1]
        return {state: int(n) for state, n in re.findall(r'kvik:kv_blocks\{.*state="(\w+)".*\} (\d+)', text)}

    def wait_idle(self):
        """Until no request runs or waits."""
        wait_until(lambda: not self.metric("vllm:num_requests_running") and
                   not self.metric("vllm:num_requests_waiting"), "requests end")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: waits for leases or time-outs; part of make test-all, not of make test")


@pytest.fixture
def start():
    """start(*arguments) -> Server; all are stopped at the end, and each must have ended well."""
    with contextlib.ExitStack() as running:
        def make(*args, kind=Server, **kwargs):
            server = kind(*args, **kwargs)
            running.callback(server.stop)
            return server
        yield make


@pytest.fixture(scope="module")
def server():
    """One server for tests that leave no trace in it that others could see."""
    running = Server()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def alone():
    """One server that does everything by itself: what answers are compared with."""
    running = Server()
    yield running
    running.stop()


def run(*args, **env):
    """A kvik command that ends by itself."""
    done = subprocess.run([KVIK, *args], capture_output=True, text=True, timeout=120, env=environment(**env))
    check_ended_well(done.returncode, done.stderr)
    return done


def tokens(seed, count):
    """Token ids that look random and are the same in every run."""
    state = seed * 2654435761 % 2**32 or 1
    ids = []
    for _ in range(count):
        state ^= state << 13 & 0xFFFFFFFF
        state ^= state >> 17
        state ^= state << 5 & 0xFFFFFFFF
        ids.append(state % 256)
    return ids
