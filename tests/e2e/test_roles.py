# SPDX-License-Identifier: Apache-2.0
"""Servers that share the work: prefill and decode apart, a router in front, a pool behind. Answers are those of one
server, whatever happens to the others."""
import concurrent.futures
import json

import pytest
from conftest import Server, tokens, wait_until
from roles import (CHUNK, check_sources, complete, free_port, has_ipv6, kv_url, nodes, pair, pool_of, router_of,
                   sources, stored, text, until_external, wait_up)


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


IO_THREADS = 2  # that compress and decompress on each side


def check_breakdown(reply):
    """The parts of a reply whose KV a peer made for it are there and fit into the whole."""
    report = reply["kvik"]
    parts, moved = report["breakdown_ms"], report["transfer"]
    close = lambda a, b: abs(a - b) < 0.01
    assert close(parts["queue"] + parts["prefill"], report["ttft_ms"]), report
    assert close(report["ttft_ms"] + parts["decode"], report["latency_ms"]), report
    for part in ("compress", "wire", "decompress", "decode"):
        assert parts[part] > 0, report
    # Nothing took longer than what it was for.
    assert moved["predicted_ms"] > 0 and 0 < moved["observed_ms"] <= report["latency_ms"], report
    assert 0 <= parts["remote_prefill"] <= moved["observed_ms"], report
    assert parts["decompress"] <= IO_THREADS * moved["observed_ms"], report


def test_a_reply_tells_how_its_kv_came(start):
    router, _, decode = pair(start)
    reply = until_external(lambda seed: complete(router, tokens(seed, 1200), 8))
    moved = reply["kvik"]["transfer"]
    assert moved["profile"] and moved["why"] and moved["source"]
    assert moved["wire_bytes"] > 0 and moved["raw_bytes"] >= moved["wire_bytes"] * 0.9
    assert reply["kvik"]["quality"] == 1
    check_breakdown(reply)
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


def test_what_one_server_computed_another_finds_in_the_pool(start, alone):
    pool = pool_of(start)
    status, health = pool.request("GET", "/health")
    assert status == 200 and health["status"] == "ok" and health["role"] == "pool" and health["engine_id"]
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


@pytest.mark.parametrize("kept", [2, 4])
def test_a_pool_keeps_so_many_encodings(start, tmp_path, kept):
    store = ("--kv-store-disk", f"{tmp_path}:256MiB", "--kv-store-encodings", str(kept))
    pool = pool_of(start, *store)
    prompt = tokens(60, CHUNK + 5)

    for i, profile in enumerate(("raw", "lossless", "kivi-4", "cachegen")):
        writer = start("--pool", kv_url(pool), "--kv-profile", profile, "--default-quality", "0")
        complete(writer, prompt, 1)
        writer.stop()
        wait_until(lambda: pool.metric("kvik:kv_store_puts_total", tier="disk") > i, f"{profile} is stored")
    pool.stop()
    assert stored(pool_of(start, *store), "disk") == kept


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
                       (("--model", "x", "--no-kv-store", "--kv-profile", "raw"), "--kv-profile"),
                       (("--model", "x", "--no-kv-store", "--kv-store-memory", "1GiB"), "--no-kv-store"),
                       (("--model", "x", "--decode", "http://x"), "--decode"),
                       (("--model", "x", "--no-kv-store", "--kv-store-encodings", "4"), "--kv-store-encodings"),
                       (("--role", "king", "--model", "x"), "--role"),
                       (("--role", "decode"), "--model"),
                       (("--role", "pool", "--kv-link", "rate=fast"), "--kv-link")]:
        done = run("serve", *args)
        assert done.returncode == 2, args
        assert word in done.stderr, done.stderr


def test_flags_that_could_not_work_are_refused():
    from conftest import run
    for args, flag, why in [(("--pool", "kvik://"), "--pool", "host:port"),
                            (("--pool", "kvik://10.0.0.7"), "--pool", "host:port"),
                            (("--pool", "kvik://10.0.0.7:0"), "--pool", "host:port"),
                            (("--pool", "kvik://10.0.0.7:7711/x"), "--pool", "host:port"),
                            (("--pool", "kvik://a:1", "--pool", "kvik://b:1", "--pool", "kvik://a:1"), "--pool",
                             "given twice"),
                            (("--pool", "redis://a:1", "--pool", "redis://a:1"), "--pool", "given twice"),
                            (("--kv-listen", "7711"), "--kv-listen", "host:port"),
                            (("--kv-listen", "::1:7711"), "--kv-listen", "[::1]:7711"),
                            (("--kv-store-memory", "1MiB", "--default-quality", "nan"), "--default-quality", "nan"),
                            (("--tpot-slo-ms", "nan"), "--tpot-slo-ms", "nan")]:
        done = run("serve", "--model", "x", *args)
        assert done.returncode == 2 and flag in done.stderr and why in done.stderr, (args, done.stderr)
    for args, why in [(("--role", "router", "--decode", "http://"), "no host"),
                      (("--role", "router", "--prefill", "http://10.0.0.7:80000"), "port"),
                      (("--role", "router", "--node", "http://[::1:80"), "]"),
                      (("--role", "router", "--prefill", "http://a:1", "--decode", "http://a:1/"), "named twice"),
                      (("--model", "x", "--router", "nonsense"), "--router")]:
        done = run("serve", "--port", "0", *args)
        assert done.returncode == 1 and why in done.stderr, (args, done.stderr)


def test_prefill_and_decode_find_each_other_over_ipv6(start, alone):
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    router, _, decode = pair(start, prefill=("--host", "::1"), decode=("--host", "::1"), router=("--host", "::1"))
    reply = until_external(lambda seed: complete(router, tokens(seed, 600)))
    assert "[::1]:" in reply["kvik"]["transfer"]["source"]
    assert text(router, tokens(7, 600)) == text(alone, tokens(7, 600))
    assert decode.url.startswith("http://[::1]:")
