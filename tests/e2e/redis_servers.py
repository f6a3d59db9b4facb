# SPDX-License-Identifier: Apache-2.0
"""redis-server processes of a test's own, alone and as a cluster, on free ports."""
import os
import shutil
import signal
import socket
import subprocess

import pytest
from conftest import wait_until
from wire import Wire

needs_redis = pytest.mark.skipif(not (shutil.which("redis-server") and shutil.which("redis-cli")),
                                 reason="redis-server is not installed")


def _free_port():
    """Below the range of ephemeral ports, and with one 10,000 above for what a cluster talks about."""
    for port in range(10000 + os.getpid() % 6000 * 2, 32768 - 10000):
        with socket.socket() as low, socket.socket() as high:
            try:
                low.bind(("127.0.0.1", port))
                high.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
            if port not in _free_port.given:
                _free_port.given.add(port)
                return port
    raise RuntimeError("no free ports")


_free_port.given = set()


class Redis:
    def __init__(self, folder, *flags, port=None):
        self.port = port or _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.folder = os.path.join(folder, f"redis-{self.port}")
        os.makedirs(self.folder, exist_ok=True)
        self.flags = flags
        self.start()

    def start(self):
        """On the same address, with nothing of what it held, unless the flags say that it is kept."""
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder,
             *self.flags], stdout=subprocess.DEVNULL)
        wait_until(lambda: "PONG" in self.cli("ping") or self.process.poll() is not None, "redis-server answers")
        assert self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        if self.process.poll() is None:
            self.kill()

    def cli(self, *args):
        return subprocess.run(["redis-cli", "-p", str(self.port), *args], capture_output=True, text=True).stdout

    def objects(self):
        """How many objects of kvik it holds."""
        keys = self.cli("keys", "kvik:1:*").split()
        return sum(not key.endswith("}:i") for key in keys)


class RedisCluster:
    """Three primaries, each with a replica, that agree. What clients say to a primary goes over a wire."""

    def __init__(self, folder):
        self.nodes, self.wires = [], []
        for number in range(6):
            port = _free_port()
            announced = []
            if number < 3:
                self.wires.append(Wire(port))
                announced = ["--cluster-announce-port", str(self.wires[-1].port), "--cluster-announce-bus-port",
                             str(port + 10000)]
            self.nodes.append(Redis(folder, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
                                    "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
                                    *announced, port=port))
        done = subprocess.run(["redis-cli", "--cluster", "create", *[node.address for node in self.nodes],
                               "--cluster-replicas", "1", "--cluster-yes"], capture_output=True, text=True)
        assert "All 16384 slots covered" in done.stdout, done.stdout + done.stderr
        wait_until(lambda: all("cluster_state:ok" in node.cli("cluster", "info") for node in self.nodes),
                   "the cluster is whole")
        self.url = "redis://" + ",".join(f"127.0.0.1:{wire.port}" for wire in self.wires)

    def primaries(self):
        return self.nodes[:3]

    def wait_replicated(self):
        for node in self.primaries():
            node.cli("wait", "1", "60000")

    def stop(self):
        for wire in self.wires:
            wire.close()
        for node in self.nodes:
            node.stop()
