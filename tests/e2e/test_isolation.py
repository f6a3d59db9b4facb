# SPDX-License-Identifier: Apache-2.0
"""Tenants, limits and blocks: nobody sees, starves or leaks."""
import concurrent.futures
import json
import random
import socket

import openai
import pytest
from conftest import tokens, wait_until


def cached(reply):
    return reply.usage.prompt_tokens_details.cached_tokens


def test_a_salt_hides_the_cache_from_other_salts(start):
    server = start()
    prompt = tokens(1, 1500)
    assert cached(server.complete(prompt, 1, cache_salt="A")) == 0
    assert cached(server.complete(prompt, 1, cache_salt="B")) == 0
    assert cached(server.complete(prompt, 1)) == 0
    assert cached(server.complete(prompt, 1, cache_salt="A")) == 1488


def test_a_prompt_larger_than_the_pool_is_refused_and_the_next_request_runs(start):
    server = start("--num-blocks", "20")  # 320 tokens of a context of 2048
    with pytest.raises(openai.BadRequestError) as error:
        server.complete(tokens(1, 600))
    assert error.value.code == "context_length_exceeded"
    assert len(server.complete(tokens(2, 100), 8, ignore_eos=True).choices[0].text) > 0


def test_two_long_prompts_in_a_pool_for_one_and_a_half_both_finish(start):
    server = start("--num-blocks", "90")
    prompts = [tokens(1, 900), tokens(2, 900)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda p: server.complete(p, 20, ignore_eos=True), prompts))
    assert [r.usage.completion_tokens for r in replies] == [20, 20]
    computed = server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    assert computed + server.metric("vllm:prompt_tokens_recomputed_total") <= 2 * 1800


def test_hit_counters_count_each_prompt_token_once(start):
    server = start("--num-blocks", "60", "--max-num-seqs", "4")
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda i: server.complete(tokens(100 + i, 300), 2, ignore_eos=True), range(20)))
    server.wait_idle()
    assert server.metric("vllm:prefix_cache_queries_total") == 20 * 300
    assert server.metric("vllm:prefix_cache_hits_total") == 0
    assert server.metric("vllm:prompt_tokens_total") == 20 * 300


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
