# SPDX-License-Identifier: Apache-2.0
"""What scripts need of a running `kvik serve`."""
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse

from kvik_files import DEMO_MODEL, find_model


class Process:
    """One server on a free port, from start to stop(). A server that does not start, and a request that fails, end the
    script. It keeps KV in a store only if its arguments name one: scripts measure what they say, and leave nothing behind."""

    def __init__(self, kvik, *args):
        self.log = tempfile.TemporaryFile("w+")
        named = any(flag in args for flag in ("--kv-store-memory", "--kv-store-disk", "--no-kv-store"))
        if not named and not {"router", "pool"} & set(args):  # roles without an engine have none by themselves
            args = (*args, "--no-kv-store")
        self.process = subprocess.Popen([kvik, "serve", "--port", "0", *args], stdout=subprocess.PIPE, stderr=self.log,
                                        text=True)
        line = self.process.stdout.readline()
        match = re.search(r" on (http://\S+)", line)
        if not match:
            self.process.wait()
            self.log.seek(0)
            sys.exit(f"kvik serve {' '.join(args)} did not start: {line}{self.log.read()}")
        self.url = match[1]
        kv = re.search(r"(kvik://[^,\s]+)", line)
        self.kv = kv[1] if kv else None  # where peers come for KV

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()

    def request(self, method, path, body=None):
        """The parsed JSON, or the text."""
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=300)
        connection.request(method, path, None if body is None else json.dumps(body))
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        if reply.status != 200:
            sys.exit(f"{self.url}{path} says {reply.status}: {text}")
        return json.loads(text) if text.startswith("{") else text

    def metric(self, name, **labels):
        """The sum of a metric's samples that carry these labels."""
        total = 0.0
        for line in self.request("GET", "/metrics").splitlines():
            match = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name and all(f'{k}="{v}"' in (match[2] or "") for k, v in labels.items()):
                total += float(match[3])
        return total


def model_file(kvik):
    """The demo's model, which is fetched if need be."""
    file = find_model(DEMO_MODEL)
    if file is not None:
        return file
    done = subprocess.run([kvik, "pull", "demo"], capture_output=True, text=True)
    if done.returncode:
        print(f"skipped, no model: {done.stderr.strip()}")
        sys.exit(77)
    return "demo"


def wait_up(router):
    """Until the router has heard of every node that it was given."""
    while not all(node["up"] for node in router.request("GET", "/nodes")["nodes"]):
        time.sleep(0.05)


class Roles:
    """A prefill and a decode server with the same arguments and some of their own, and a router in front, all up. Stops
    them, and the pool behind them if there is one, from front to back."""

    def __init__(self, kvik, *args, pool=None, decode_args=(), kind=Process):
        self.pool = pool
        if pool is not None:
            args = (*args, "--pool", pool.kv)
        self.prefill = kind(kvik, "--role", "prefill", *args)
        self.decode = kind(kvik, "--role", "decode", *args, *decode_args)
        self.router = kind(kvik, "--role", "router", "--prefill", self.prefill.url, "--decode", self.decode.url)
        wait_up(self.router)

    def forget(self):
        """Both servers let go of the KV that they have; a pool does not, and gets what is on the way to it before."""
        if self.pool is not None:
            settle(lambda: self.pool.metric("kvik:kv_store_objects", tier="memory"))
        for node in (self.prefill, self.decode):
            node.request("POST", "/reset_prefix_cache")

    def stop(self):
        for process in (self.router, self.decode, self.prefill, self.pool):
            if process is not None:
                process.stop()


def settle(read):
    """Until a number stays the same for a second."""
    last, since = read(), time.monotonic()
    while time.monotonic() - since < 1:
        time.sleep(0.05)
        now = read()
        if now != last:
            last, since = now, time.monotonic()
