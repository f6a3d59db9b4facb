# SPDX-License-Identifier: Apache-2.0
"""What holds over HTTP whichever blocks are evicted: once for every policy of this build."""
import concurrent.futures
import json
import random
import re
import socket

import openai
import pytest
from conftest import INSTRUMENTED, Server, run, tokens, wait_until

BLOCK = 16
BLOCKS = 120  # too few for what the tests ask at once
POLICIES = re.search("choose one of (.*)", run("selftest", "soak", "--model", "none", "--policy", "none").stderr)[1].split(", ")
POLICIES += [f"{name}+continuum" for name in ("lru", "asym", "hazard")]
POLICIES = POLICIES[::4] if INSTRUMENTED else POLICIES


@pytest.fixture(scope="module", params=POLICIES)
def server(request):
    running = Server("--policy", request.param, "--num-blocks", str(BLOCKS), "--max-num-seqs", "6")
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def nothing_is_held_afterwards(server):
    server.request("POST", "/reset_prefix_cache")
    yield
    server.wait_idle()
    held = server.blocks()
    assert held["filling"] == held["referenced"] == 0
    assert held["free"] + held["cached"] == BLOCKS, held


class Since:
    """How much counters have grown since this was made."""
    NAMES = {"queried": "vllm:prefix_cache_queries_total", "hit": "vllm:prefix_cache_hits_total",
             "prompt": "vllm:prompt_tokens_total", "recomputed": "vllm:prompt_tokens_recomputed_total",
             "ended": "vllm:request_success_total"}

    def __init__(self, server):
        self.server = server
        self.before = self.now()

    def now(self):
        counts = {key: self.server.metric(name) for key, name in self.NAMES.items()}
        for key, source in (("computed", "local_compute"), ("cached", "local_cache_hit")):
            counts[key] = self.server.metric("vllm:prompt_tokens_by_source_total", source=source)
        return counts

    def __getitem__(self, key):
        return self.now()[key] - self.before[key]


def cached(reply):
    return reply.usage.prompt_tokens_details.cached_tokens


@pytest.mark.parametrize("length", [12 * BLOCK - 1, 12 * BLOCK, 12 * BLOCK + 1])
def test_the_first_request_equals_its_repeats(server, length):
    replies = [server.complete(tokens(3, length), 12, ignore_eos=True, logprobs=3) for _ in range(5)]
    assert {reply.choices[0].text for reply in replies} == {replies[0].choices[0].text}
    assert all(reply.choices[0].logprobs == replies[0].choices[0].logprobs for reply in replies)
    assert [cached(reply) for reply in replies] == [0] + 4 * [(length - 1) // BLOCK * BLOCK]


def test_a_stop_string_of_an_earlier_request_changes_nothing(server):
    first, second = tokens(1, 100), tokens(1, 100)[:64] + tokens(2, 40)
    cold = server.text(second, 30, ignore_eos=True, cache_salt="cold")
    answer = server.text(first, 30, ignore_eos=True)
    assert server.complete(first, 30, ignore_eos=True, stop=[answer[5:8]]).choices[0].finish_reason == "stop"
    warm = server.complete(second, 30, ignore_eos=True)
    assert (warm.choices[0].text, cached(warm)) == (cold, 64)


def test_tenants_share_nothing(server):
    prompt = tokens(1, 500)
    said = [server.complete(prompt, 1, ignore_eos=True, **salt)
            for salt in ({"cache_salt": "A"}, {"cache_salt": "B"}, {}, {"cache_salt": "A"})]
    assert [cached(reply) for reply in said] == [0, 0, 0, 496]


def test_a_prompt_larger_than_the_pool_is_refused_and_the_next_request_runs(server):
    with pytest.raises(openai.BadRequestError) as error:
        server.complete(tokens(1, BLOCKS * BLOCK))
    assert error.value.code == "context_length_exceeded"
    assert server.complete(tokens(2, 100), 8, ignore_eos=True).usage.completion_tokens == 8


def test_two_long_prompts_in_a_pool_for_one_and_a_half_both_finish(server):
    length = BLOCKS * BLOCK * 5 // 8
    since = Since(server)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda i: server.complete(tokens(i, length), 20, ignore_eos=True), (1, 2)))
    assert [reply.usage.completion_tokens for reply in replies] == [20, 20]
    server.wait_idle()
    assert since["computed"] + since["recomputed"] <= 4 * length


def test_hit_counters_count_each_prompt_token_once(server):
    since = Since(server)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda i: server.complete(tokens(100 + i, 300), 2, ignore_eos=True), range(20)))
    server.wait_idle()
    assert (since["queried"], since["hit"], since["prompt"]) == (20 * 300, 0, 20 * 300)


def test_clients_that_leave_at_any_time_disturb_nobody(server):
    prompts = [tokens(7, 60 * i)[:300] + tokens(40 + i, 50) for i in range(1, 6)]
    alone = [server.text(prompt, 24, ignore_eos=True, cache_salt=f"alone {i}") for i, prompt in enumerate(prompts)]
    since = Since(server)
    rng = random.Random(4)
    plans = [(rng.randrange(len(prompts)), rng.randrange(3), rng.randrange(3), rng.randrange(1, 1500))
             for _ in range(30 if INSTRUMENTED else 90)]

    def one(plan):
        which, priority, what, patience = plan
        if what == 0:
            assert server.text(prompts[which], 24, ignore_eos=True, priority=priority) == alone[which]
        elif what == 1:
            text, reason = server.streamed(prompts[which], 24, ignore_eos=True, priority=priority)
            assert (text, reason) == (alone[which], "length")
        else:
            body = json.dumps({"prompt": prompts[which], "max_tokens": 200, "ignore_eos": True, "priority": priority,
                               "stream": patience % 2 == 0})
            host, port = server.address.split(":")
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
                                   f"\r\n\r\n{body}".encode())
                if patience % 4 == 0:
                    connection.recv(patience)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(one, plans))
    # A client may be gone before the server has read what it sent.
    wait_until(lambda: since["ended"] == len(plans), "every request ends")
    server.wait_idle()
    assert since["prompt"] == since["computed"] + since["cached"]
    assert [server.text(prompt, 24, ignore_eos=True) for prompt in prompts] == alone
