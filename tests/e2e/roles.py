# SPDX-License-Identifier: Apache-2.0
"""Servers with roles, and what tests ask of them."""
import itertools
import re
import socket

from conftest import Process, wait_until

CHUNK = 256  # tokens of an object
SLOW = "rate=4Mbit"  # a chunk takes a while


def router_of(start, *args):
    return start("--role", "router", *([] if "--port" in args else ["--port", "0"]), *args, kind=Process)


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


def pool_of(start, *args):
    return start("--role", "pool", "--port", "0", *([] if "--kv-listen" in args else ["--kv-listen", "127.0.0.1:0"]),
                 *args, kind=Process)


def kv_url(pool):
    return re.search(r"kvik://[^,\s]+", pool.greeting)[0]


def kv_port(server):
    """Where peers come for KV of a prefill or decode node, or of a pool."""
    if "kvik://" in server.greeting:
        return int(kv_url(server).rsplit(":", 1)[1])
    return server.request("GET", "/health")[1]["kv"]["port"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as listener:
            listener.bind(("::1", 0))
        return True
    except OSError:
        return False


def complete(server, prompt, max_tokens=16, **more):
    """The whole reply, as JSON."""
    status, reply = server.request("POST", "/v1/completions", {
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more})
    assert status == 200, reply
    return reply


def text_of(reply):
    return reply["choices"][0]["text"]


def text(server, prompt, max_tokens=16, **more):
    return text_of(complete(server, prompt, max_tokens, **more))


def sources(reply):
    return reply["kvik"]["prompt_tokens_by_source"]


def external(reply):
    return sources(reply)["external"]


def until_external(ask):
    """The reply of the first ask(seed) whose KV came from elsewhere. Which KV is loaded is a matter of speed: on a busy
    machine a tiny model may have computed a prompt before anybody answers."""
    replies = []

    def came():
        replies.append(ask(1000 + len(replies)))
        return external(replies[-1]) > 0
    wait_until(came, "KV comes from elsewhere")
    return replies[-1]


def wait_found(reader, ask):
    """Until a reader finds KV of the prompts of ask(seed) elsewhere again. Whether it is worth loading over a slow link is
    another matter."""
    seeds = itertools.count(1000)

    def found():
        before = reader.metric("kvik:kv_exchange_blocks_total", what="found")
        ask(next(seeds))
        return reader.metric("kvik:kv_exchange_blocks_total", what="found") > before
    wait_until(found, "KV is found elsewhere")


def check_sources(server):
    """Every prompt token has one source."""
    parts = sum(server.metric("vllm:prompt_tokens_by_source_total", source=source)
                for source in ("local_compute", "local_cache_hit", "external_kv_transfer"))
    assert parts == server.metric("vllm:prompt_tokens_total")


def stored(server, tier):
    return server.metric("kvik:kv_store_objects", tier=tier)


def wait_stored(pool, tier, objects):
    wait_until(lambda: stored(pool, tier) >= objects, f"{objects} objects are in {tier}")


def check_nothing_left(*servers):
    """Once leases have ended no block is held, being filled or waited for: all are free or hold what may be evicted."""
    for server in servers:
        server.wait_idle()
        wait_until(lambda: server.metric("kvik:kv_loading_blocks") == 0 and server.metric("kvik:kv_held_blocks") == 0,
                   "loads and leases end")
        wait_until(lambda: {server.blocks()[state] for state in ("filling", "referenced")} == {0}, "blocks are let go")
        blocks = server.blocks()
        assert blocks["free"] + blocks["cached"] == server.num_blocks, blocks
