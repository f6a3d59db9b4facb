# SPDX-License-Identifier: Apache-2.0
"""Starts the real program on a free port and gives tests the official client to it."""
import http.client
import json
import os
import re
import subprocess
import time
import urllib.parse

import openai
import pytest

KVIK = os.environ["KVIK_BINARY"]
MODEL = os.environ["KVIK_TINY_MODEL"]


class Server:
    """A running `kvik serve`; its arguments come after the defaults and win."""

    def __init__(self, *args, model=MODEL):
        command = [KVIK, "serve", "--model", model, "--served-model-name", "tiny", "--port", "0",
                   "--threads", "1", *([] if "--num-blocks" in args else ["--kv-memory", "64MiB"]), *args]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        match = re.search(r" on (http://\S+)", line)
        if not match:
            raise RuntimeError(f"the server did not start: {line}{self.process.stderr.read()}")
        self.url = match[1]
        self.address = urllib.parse.urlsplit(self.url).netloc
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0)

    def stop(self):
        """Ends the server as an operator would; its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.process.stderr.close()
        return code

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

    def wait_idle(self):
        """Until no request runs or waits. A state that never comes is a failure, not a hang."""
        deadline = time.monotonic() + 60
        while self.metric("vllm:num_requests_running") or self.metric("vllm:num_requests_waiting"):
            assert time.monotonic() < deadline, "requests are still there"

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


@pytest.fixture
def start():
    """start(*arguments) -> Server; all are stopped at the end, and each must have ended well."""
    servers = []

    def make(*args, **kwargs):
        servers.append(Server(*args, **kwargs))
        return servers[-1]

    yield make
    codes = [server.stop() for server in servers]
    assert all(code == 0 for code in codes), codes


@pytest.fixture(scope="module")
def server():
    """One server for tests that leave no trace in it that others could see."""
    running = Server()
    yield running
    assert running.stop() == 0


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
