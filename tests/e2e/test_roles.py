# SPDX-License-Identifier: Apache-2.0
"""Servers that share the work: prefill and decode apart, a router in front, a pool behind. Answers are those of one
server, whatever happens to the others."""
import concurrent.futures
import json
import os
import random
import re
import signal
import socket

import pytest
from conftest import Process, Server, tokens, wait_until

CHUNK = 256  # tokens of an object
SLOW = "rate=4Mbit"  # a chunk takes a while


@pytest.fixture(scope="module")
def alone():
    """One server that does everything: what answers are compared with."""
    running = Server()
    yield running
    running.stop()


def router_of(start, *args):
    return start("--role", "router", "--port", "0", *args, kind=Process)


def nodes(router):
    return {node["url"]: node for node in router.request("GET", "/nodes")[1]["nodes"]}


def wait_up(router, *urls):
    wait_until(lambda: all(nodes(router).get(url, {}).get("up") for url in urls), f"{urls} are up")


def pair(start, *, prefill=(), decode=(), router=()):
    """(router, prefill node, decode node), all up."""
    p = start("--role", "prefill", *prefill)
    d = start("--role", "decode", *decode)
    r = router_of(start, "--prefill", p.url, "--decode", d.url, *router)
    wait_up(r, p.url, d.url)
    return r, p, d


def complete(server, prompt, max_tokens=16, **more):
    """The whole reply, as JSON."""
    status, reply = server.request("POST", "/v1/completions", {
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more})
    assert status == 200, reply
    return reply


def text(server, prompt, max_tokens=16, **more):
    return complete(server, prompt, max_tokens, **more)["choices"][0]["text"]


def sources(reply):
    return reply["kvik"]["prompt_tokens_by_source"]


def until_external(ask):
    """The reply of the first ask(seed) whose KV came from elsewhere. Which KV is loaded is a matter of speed: on a busy
    machine a tiny model may have computed a prompt before anybody answers."""
    replies = []

    def external():
        replies.append(ask(1000 + len(replies)))
        return sources(replies[-1])["external"] > 0
    wait_until(external, "KV comes from elsewhere")
    return replies[-1]


def check_sources(server):
    """Every prompt token has one source."""
    parts = sum(server.metric("vllm:prompt_tokens_by_source_total", source=source)
                for source in ("local_compute", "local_cache_hit", "external_kv_transfer"))
    assert parts == server.metric("vllm:prompt_tokens_total")


def test_prefill_and_decode_apart_say_what_one_server_says(start, alone):
    router, prefill, decode = pair(start)
    external = 0
    for seed, length in enumerate([1, 15, 16, 17, 255, 256, 257, 600, 1000, 1500]):
        prompt = tokens(seed + 100, length)
        reply = complete(router, prompt, 24)
        assert reply["choices"][0]["text"] == text(alone, prompt, 24), length
        assert sum(sources(reply).values()) == length
        external += sources(reply)["external"]

    def ask(seed):
        nonlocal external
        prompt = tokens(seed, 900)
        reply = complete(router, prompt)
        external += sources(reply)["external"]
        assert reply["choices"][0]["text"] == text(alone, prompt)
        return reply
    until_external(ask)
    assert prefill.metric("vllm:prompt_tokens_total") > 0
    assert decode.metric("vllm:external_prefix_cache_hits_total") == external
    assert decode.metric("vllm:kv_offload_load_bytes_total") > 0
    check_sources(decode)
    check_sources(prefill)


def test_streams_and_chats_pass_through_the_router(start, alone):
    router, _, _ = pair(start)
    prompt = tokens(7, 700)
    assert router.streamed(prompt, 20, ignore_eos=True) == alone.streamed(prompt, 20, ignore_eos=True)
    assert router.chat("hello " * 100).choices[0].message.content == alone.chat("hello " * 100).choices[0].message.content
    assert router.request("GET", "/v1/models")[1]["data"][0]["id"] == "tiny"


def test_a_reply_tells_how_its_kv_came(start):
    router, _, decode = pair(start)
    reply = until_external(lambda seed: complete(router, tokens(seed, 1200), 8))
    moved = reply["kvik"]["transfer"]
    assert moved["profile"] and moved["why"] and moved["source"]
    assert moved["wire_bytes"] > 0 and moved["raw_bytes"] >= moved["wire_bytes"] * 0.9
    assert reply["kvik"]["quality"] == 1
    assert {"queue", "prefill", "compress", "wire", "decompress", "decode"} <= set(reply["kvik"]["breakdown_ms"])
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == sources(reply)["external"] + sources(reply)["local_cache"]
    # The last chunk of a stream says it, too.
    def stream(seed):
        body = {"prompt": tokens(seed + 500, 1200), "max_tokens": 4, "temperature": 0, "stream": True}
        events = router.request("POST", "/v1/completions", body)[1].split("\n\n")
        assert events[-2] == "data: [DONE]"
        return json.loads(events[-3].removeprefix("data: "))
    assert until_external(stream)["kvik"]["transfer"]["why"]
    decisions = decode.request("GET", "/kv/decisions")[1]["decisions"]
    assert decisions


def test_transfers_can_be_arranged_without_the_router(start, alone):
    """As proxies for other engines do it: the prefill node's reply is what the decode node is sent."""
    prefill = start("--role", "prefill")
    decode = start("--role", "decode")
    to_prefill = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
                  "remote_block_ids": None, "remote_host": None, "remote_port": None}

    def ask(seed):
        prompt = tokens(seed, 800)
        params = complete(prefill, prompt, 1, kv_transfer_params=to_prefill)["kv_transfer_params"]
        assert params["do_remote_prefill"] and params["remote_host"] == "127.0.0.1"
        reply = complete(decode, prompt, 24, kv_transfer_params=params)
        assert reply["choices"][0]["text"] == text(alone, prompt, 24)
        return reply
    until_external(ask)
    params = complete(prefill, "a", 1, kv_transfer_params=to_prefill)["kv_transfer_params"]
    # Nobody listens to it where no KV moves.
    status, error = alone.request("POST", "/v1/completions", {"prompt": "a", "kv_transfer_params": params})
    assert status == 400 and error["error"]["param"] == "kv_transfer_params"


def test_only_what_the_decode_node_lacks_is_sent(start, alone):
    router, _, decode = pair(start)
    history = tokens(11, 1024)
    first = complete(router, history, 16)
    loaded = sources(first)["external"]
    more = history + tokens(12, 512)
    second = complete(router, more, 16)
    assert sources(second)["local_cache"] >= loaded
    assert sources(second)["external"] <= 512
    assert second["choices"][0]["text"] == text(alone, more, 16)
    check_sources(decode)


def test_turns_go_back_and_forth(start, alone):
    router, prefill, decode = pair(start)
    prompt = tokens(13, 300)
    for turn in range(5):
        reply = complete(router, prompt, 64, return_token_ids=False)
        assert reply["choices"][0]["text"] == text(alone, prompt, 64), turn
        prompt = prompt + tokens(50 + turn, 280)
    check_sources(prefill)
    check_sources(decode)


def test_a_prompt_that_the_prefill_node_cannot_take_is_a_clean_400(start, alone):
    router, prefill, decode = pair(start, prefill=("--max-model-len", "300"))
    status, error = router.request("POST", "/v1/completions", {"prompt": tokens(1, 500), "max_tokens": 8})
    assert status == 400
    assert error["error"]["code"] == "context_length_exceeded"
    assert decode.metric("vllm:prompt_tokens_total") == 0
    assert text(router, tokens(1, 200)) == text(alone, tokens(1, 200))


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_a_prefill_node_that_dies_while_it_sends_costs_nothing_but_time(start, alone, how):
    prefill = start("--role", "prefill", "--kv-link", SLOW)
    decode = start("--role", "decode")
    router = router_of(start, "--prefill", prefill.url, "--decode", decode.url)
    wait_up(router, prefill.url, decode.url)
    prompts = [tokens(20 + i, 1500) for i in range(3)]
    expected = [text(alone, prompt, 12) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(text, router, prompt, 12) for prompt in prompts]
        wait_until(lambda: decode.metric("kvik:kv_loading_blocks") > 0 or all(a.done() for a in answers),
                   "KV is on its way")
        if how == "kill":
            prefill.kill()
        else:
            prefill.process.send_signal(signal.SIGSTOP)
        assert [answer.result() for answer in answers] == expected
    if how == "freeze":
        prefill.process.send_signal(signal.SIGCONT)
    # The decode node goes on alone.
    prompt = tokens(30, 900)
    assert text(decode, prompt) == text(alone, prompt)
    decode.wait_idle()
    wait_until(lambda: decode.metric("kvik:kv_loading_blocks") == 0, "no load is left")
    assert decode.blocks()["filling"] == 0 and decode.blocks()["referenced"] == 0


def test_a_prefill_node_comes_back_at_the_same_address(start, alone):
    listen = free_port()
    port = free_port()
    args = ("--role", "prefill", "--kv-listen", f"127.0.0.1:{listen}", "--port", str(port))
    prefill = start(*args)
    decode = start("--role", "decode")
    router = router_of(start, "--prefill", prefill.url, "--decode", decode.url)
    wait_up(router, prefill.url, decode.url)
    until_external(lambda seed: complete(router, tokens(seed, 900)))
    prefill.kill()
    prompt = tokens(41, 900)
    assert text(router, prompt) == text(alone, prompt)
    wait_until(lambda: not nodes(router)[prefill.url]["up"], "the router notices")
    prefill = start(*args)
    wait_up(router, prefill.url)

    def ask(seed):
        prompt = tokens(seed + 5000, 900)
        reply = complete(router, prompt)
        assert reply["choices"][0]["text"] == text(alone, prompt)
        return reply
    until_external(ask)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_nodes_join_and_leave_while_requests_run(start, alone):
    router = router_of(start)
    assert router.request("GET", "/health")[0] == 503
    first = start("--role", "decode", "--router", router.url)
    wait_up(router, first.url)
    assert router.request("GET", "/health")[0] == 200
    prompt = tokens(60, 400)
    assert text(router, prompt) == text(alone, prompt)
    prefill = start("--role", "prefill", "--router", router.url)
    second = start("--role", "decode", "--router", router.url)
    wait_up(router, prefill.url, second.url)
    prompts = [tokens(61 + i, 700) for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(text, router, prompt) for prompt in prompts]
        first.stop()  # finishes what it has begun
        assert [answer.result() for answer in answers] == [text(alone, prompt) for prompt in prompts]
    assert first.url not in nodes(router)
    assert nodes(router)[second.url]["requests"] > 0
    assert nodes(router)[prefill.url]["requests"] > 0


def test_a_decode_node_that_crashes_is_replaced(start, alone):
    first = start("--role", "decode")
    second = start("--role", "decode")
    router = router_of(start, "--decode", first.url, "--decode", second.url)
    wait_up(router, first.url, second.url)
    prompts = [tokens(80 + i, 300) for i in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(text, router, prompt, 40) for prompt in prompts]
        first.kill()
        assert [answer.result() for answer in answers] == [text(alone, prompt, 40) for prompt in prompts]
    wait_until(lambda: not nodes(router)[first.url]["up"], "the router notices")


@pytest.mark.parametrize("other", [("--block-size", "32"), ("--hash", "sha256_cbor")])
def test_servers_that_do_not_fit_refuse_each_other_loudly(start, alone, other):
    router, prefill, decode = pair(start, prefill=other)
    prompt = tokens(70, 700)
    reply = complete(router, prompt)
    assert reply["choices"][0]["text"] == text(alone, prompt)
    assert sources(reply)["external"] == 0
    wait_until(lambda: "do not fit" in decode.stderr(), "the decode node says why")


def test_requests_fail_when_told_to(start):
    decode = start("--role", "decode", "--kv-failure-policy", "fail")
    gone = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": free_port()}
    status, error = decode.request("POST", "/v1/completions",
                                   {"prompt": tokens(1, 600), "kv_transfer_params": gone})
    assert status == 503, error
    assert complete(decode, tokens(1, 600))
    router = router_of(start, "--decode", decode.url, "--kv-failure-policy", "fail")
    wait_up(router, decode.url)
    assert router.request("POST", "/v1/completions", {"prompt": "x"})[0] == 503


def test_clients_that_leave_leave_nothing_behind(start):
    router, prefill, decode = pair(start, prefill=("--num-blocks", "400"), decode=("--num-blocks", "400"))
    total = {node: node.blocks()["free"] for node in (prefill, decode)}
    rng = random.Random(5)
    host, port = router.address.split(":")

    def one(i):
        body = json.dumps({"prompt": tokens(i % 9, rng.randrange(1, 1200)), "max_tokens": 200, "ignore_eos": True,
                           "stream": i % 2 == 0})
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                               f"{body}".encode())
            if i % 4 == 0:
                connection.recv(rng.randrange(1, 2000))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(200)))
    for node in (prefill, decode):
        node.wait_idle()
        wait_until(lambda: node.metric("kvik:kv_loading_blocks") == 0 and node.metric("kvik:kv_held_blocks") == 0,
                   "leases end")
        wait_until(lambda: {node.blocks()[state] for state in ("filling", "referenced")} == {0}, "blocks are let go")
        held = node.blocks()
        assert held["free"] + held["cached"] == total[node], held
    assert all(node["requests_running"] == 0 for node in nodes(router).values())


def pool_of(start, *args):
    return start("--role", "pool", "--port", "0", "--kv-listen", "127.0.0.1:0", *args, kind=Process)


def kv_url(pool):
    return re.search(r"kvik://[^,\s]+", pool.greeting)[0]


def wait_stored(server, pool_metric, least):
    wait_until(lambda: pool_metric() >= least, "KV is stored")


def test_what_one_server_computed_another_finds_in_the_pool(start, alone):
    pool = pool_of(start)
    assert pool.request("GET", "/health") == (200, {"status": "ok", "role": "pool"})
    first = start("--pool", kv_url(pool))
    second = start("--pool", kv_url(pool))
    external = 0

    def ask(seed):
        nonlocal external
        prompt = tokens(seed, 1024 + 5)
        expected = text(alone, prompt, 24)
        before = pool.metric("kvik:kv_store_objects", tier="memory")
        assert text(first, prompt, 24) == expected
        wait_until(lambda: pool.metric("kvik:kv_store_objects", tier="memory") >= before + 4, "KV is in the pool")
        reply = complete(second, prompt, 24)
        assert reply["choices"][0]["text"] == expected
        external += sources(reply)["external"]
        # What is in the server's own cache is not fetched.
        assert sources(complete(second, prompt, 24))["external"] == 0
        return reply
    until_external(ask)
    assert second.metric("vllm:external_prefix_cache_hits_total") == external
    check_sources(second)


@pytest.mark.parametrize("embedded", [True, False])
def test_hits_survive_a_restart(start, alone, tmp_path, embedded):
    prompts = [tokens(2000 + i, 1024 + 5) for i in range(3)]
    expected = [text(alone, prompt, 24) for prompt in prompts]
    store = ("--kv-store-memory", "32MiB", "--kv-store-disk", f"{tmp_path}:256MiB")
    if embedded:
        server = start(*store)
        assert [text(server, prompt, 24) for prompt in prompts] == expected
        server.stop()
        server = start(*store)
    else:
        pool = pool_of(start, *store)
        server = start("--pool", kv_url(pool))
        assert [text(server, prompt, 24) for prompt in prompts] == expected
        wait_until(lambda: pool.metric("kvik:kv_store_objects", tier="disk") >= 12, "KV is on the disk")
        server.stop()
        pool.stop()
        pool = pool_of(start, *store)
        server = start("--pool", kv_url(pool))
    replies = [complete(server, prompt, 24) for prompt in prompts]
    assert [reply["choices"][0]["text"] for reply in replies] == expected
    assert sum(sources(reply)["external"] for reply in replies) >= CHUNK


def test_a_pool_that_dies_between_requests_and_while_it_sends(start, alone):
    pool = pool_of(start)
    server = start("--pool", kv_url(pool))
    prompts = [tokens(95 + i, 1100) for i in range(3)]
    expected = [text(alone, prompt, 12) for prompt in prompts]
    assert [text(server, prompt, 12) for prompt in prompts] == expected
    wait_until(lambda: pool.metric("kvik:kv_store_objects", tier="memory") >= 12, "KV is in the pool")
    reader = start("--pool", kv_url(pool), "--kv-link", SLOW)
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(text, reader, prompt, 12) for prompt in prompts]
        wait_until(lambda: reader.metric("kvik:kv_loading_blocks") > 0 or all(a.done() for a in answers),
                   "KV is on its way")
        pool.kill()
        assert [answer.result() for answer in answers] == expected
    prompt = tokens(99, 700)
    assert text(reader, prompt) == text(alone, prompt)
    wait_until(lambda: reader.metric("kvik:kv_loading_blocks") == 0, "no load is left")


def test_bits_that_flip_on_the_disk_are_never_served(start, alone, tmp_path):
    store = ("--kv-store-disk", f"{tmp_path}:256MiB")
    prompt = tokens(92, 1024 + 5)
    expected = text(alone, prompt, 24)
    server = start(*store)
    assert text(server, prompt, 24) == expected
    server.stop()
    rng = random.Random(3)
    for name in os.listdir(tmp_path):
        path = os.path.join(tmp_path, name)
        data = bytearray(open(path, "rb").read())
        for _ in range(len(data) // 20000):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with open(path, "wb") as damaged:
            damaged.write(data)
    server = start(*store)
    assert text(server, prompt, 24) == expected


def test_a_fixed_lossy_profile_needs_leave_of_the_request_or_the_server(start):
    server = start("--kv-store-memory", "32MiB", "--kv-profile", "kivi-4", "--default-quality", "0")
    status, error = server.request("POST", "/v1/completions", {"prompt": "a", "kvik": {"quality": 1}})
    assert status == 400 and error["error"]["param"] == "kvik.quality"
    status, _ = server.request("POST", "/v1/completions", {"prompt": "a"}, {"X-Kvik-Quality": "1"})
    assert status == 400
    assert server.request("POST", "/v1/completions", {"prompt": "a"})[0] == 200
    # Nobody could keep to such a default.
    with pytest.raises(RuntimeError, match="kivi-4"):
        Server("--kv-store-memory", "32MiB", "--kv-profile", "kivi-4")


def test_flags_that_would_do_nothing_are_refused():
    from conftest import run
    for args, word in [(("--role", "router", "--model", "x"), "--model"),
                       (("--role", "pool", "--prefill", "http://x"), "--prefill"),
                       (("--model", "x", "--kv-profile", "raw"), "--kv-profile"),
                       (("--model", "x", "--decode", "http://x"), "--decode"),
                       (("--role", "king", "--model", "x"), "--role"),
                       (("--role", "decode"), "--model"),
                       (("--role", "pool", "--kv-link", "rate=fast"), "--kv-link")]:
        done = run("serve", *args)
        assert done.returncode == 2, args
        assert word in done.stderr, done.stderr
