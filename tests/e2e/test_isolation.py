# SPDX-License-Identifier: Apache-2.0
"""Clients that leave, or ask for what cannot be, keep nothing of the server."""
import concurrent.futures
import json
import random
import socket

import pytest
from conftest import tokens, wait_until


def test_no_block_leaks_from_cancelled_and_malformed_requests(start):
    server = start("--num-blocks", "120", "--max-num-seqs", "6")
    total = server.blocks()["free"]
    rng = random.Random(4)

    def one(i):
        if i % 10 == 0:
            assert server.request("POST", "/v1/completions", '{"prompt": [1, "x"]}')[0] == 400
            return
        body = json.dumps({"prompt": tokens(i % 7, rng.randrange(1, 400)), "max_tokens": 200,
                           "ignore_eos": True, "stream": i % 2 == 0})
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
                               f"{len(body)}\r\n\r\n{body}".encode())
            # A stream is read a little, at most; then the client is gone.
            if i % 4 == 0:
                connection.recv(rng.randrange(1, 2000))

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(one, range(200)))
    # A client may be gone before the server has read what it sent.
    wait_until(lambda: server.metric("vllm:request_success_total") == 180, "every well-formed request ends")
    wait_until(lambda: {server.blocks()[state] for state in ("filling", "referenced")} == {0},
               "their blocks are let go")
    held = server.blocks()
    assert held["free"] + held["cached"] == total, held
    assert server.request("POST", "/reset_prefix_cache")[0] == 200
    assert server.blocks()["free"] == total


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_ends_its_requests(start, streaming):
    server = start()
    # Enough work that it is far from done when the client goes.
    body = json.dumps({"prompt": tokens(1, 20), "max_tokens": 1900, "n": 100, "ignore_eos": True,
                       "stream": streaming})
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
                           f"{len(body)}\r\n\r\n{body}".encode())
        if streaming:
            connection.recv(100)
        wait_until(lambda: server.metric("vllm:num_requests_running"), "the request runs")
    server.wait_idle()
    assert server.metric("vllm:request_success_total", finished_reason="abort") > 0
    assert server.metric("vllm:generation_tokens_total") < 100 * 1900
