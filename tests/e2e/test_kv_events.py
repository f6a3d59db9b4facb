# SPDX-License-Identifier: Apache-2.0
"""Whoever subscribes to a server's KV events as to vLLM's knows which blocks it holds, and so does the router."""
import json
import socket

import pytest
from conftest import Process, Server, run, tokens, wait_until

zmq = pytest.importorskip("zmq")
msgpack = pytest.importorskip("msgpack")

BLOCK = 16
END = (2**64 - 1).to_bytes(8, "big")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def config(**more):
    """(arguments, PUB endpoint, ROUTER endpoint)"""
    pub, replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    members = {"enable_kv_cache_events": True, "endpoint": pub.replace("127.0.0.1", "*"), "replay_endpoint": replay,
               "topic": "kv", **more}
    return ("--kv-events-config", json.dumps(members)), pub, replay


class Subscriber:
    """As routers of others do it: a SUB socket, a DEALER for what was missed, and a set of what is held."""

    def __init__(self, pub, replay, topic=b"kv"):
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, topic)
        self.sub.connect(pub)
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.connect(replay)
        self.topic = topic
        self.next = 0
        self.held = set()  # (medium, hash)
        self.stored = []  # events

    def close(self):
        self.context.destroy(linger=0)

    def apply(self, payload):
        batch = msgpack.unpackb(payload)
        assert set(batch) == {"ts", "events", "data_parallel_rank"} and isinstance(batch["ts"], float)
        for event in batch["events"]:
            if event["type"] == "BlockStored":
                assert {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
                        "group_idx", "kv_cache_spec_kind"} <= set(event)
                assert not event["token_ids"] or len(event["token_ids"]) == BLOCK * len(event["block_hashes"])
                self.held |= {(event["medium"], block) for block in event["block_hashes"]}
                self.stored.append(event)
            elif event["type"] == "BlockRemoved":
                self.held -= {(event["medium"], block) for block in event["block_hashes"]}
            else:
                assert event == {"type": "AllBlocksCleared"}
                self.held.clear()

    def replay(self, first):
        """[(sequence, payload)] of what the publisher sends again."""
        self.dealer.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while True:
            assert self.dealer.poll(60_000)
            empty, sequence, payload = self.dealer.recv_multipart()
            assert empty == b""
            if sequence == END:
                return batches
            batches.append((int.from_bytes(sequence, "big"), payload))

    def catch_up(self):
        """Takes what is there: live as long as nothing is missing, else again."""
        while self.sub.poll(0):
            topic, sequence, payload = self.sub.recv_multipart()
            assert topic == self.topic
            if int.from_bytes(sequence, "big") == self.next:
                self.apply(payload)
                self.next += 1
        for sequence, payload in self.replay(self.next):
            self.apply(payload)
            self.next = sequence + 1

    def wait(self, condition, what):
        wait_until(lambda: self.catch_up() or condition(), what)

    def of(self, medium):
        return {block for where, block in self.held if where == medium}


@pytest.fixture
def subscribe():
    made = []

    def make(*args, **kwargs):
        made.append(Subscriber(*args, **kwargs))
        return made[-1]
    yield make
    for subscriber in made:
        subscriber.close()


def names(server, prompt, **more):
    """The names of a prompt's full blocks, as a server says."""
    status, reply = server.request("POST", "/kv/blocks/v1/completions", {"prompt": prompt, **more})
    assert status == 200, reply
    return reply["block_hashes"]


def cached(server, prompt, max_tokens=1):
    status, reply = server.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens,
                                                               "temperature": 0, "ignore_eos": True})
    assert status == 200, reply
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_subscriber_knows_what_the_cache_holds(start, subscribe):
    args, pub, replay = config()
    server = start(*args)
    subscriber = subscribe(pub, replay)
    prompt = tokens(1, 10 * BLOCK + 3)
    server.complete(prompt, 1)
    blocks = names(server, prompt)
    assert len(blocks) == 10
    subscriber.wait(lambda: subscriber.of("GPU") >= set(blocks), "the prompt's blocks are told")
    # Tokens and parents are those of the prompt.
    said, parents = [], []
    for event in subscriber.stored:
        said += event["token_ids"]
        parents += [event["parent_block_hash"], *event["block_hashes"][:-1]]
        assert event["block_size"] == BLOCK and event["lora_name"] is None
    assert said == prompt[:10 * BLOCK]
    assert parents == [None, *blocks[:-1]]
    # A salt makes other blocks, and is told.
    server.complete(prompt, 1, cache_salt="s")
    salted = names(server, prompt, cache_salt="s")
    subscriber.wait(lambda: subscriber.of("GPU") == {*blocks, *salted}, "the salted blocks are told")
    first = next(e for e in subscriber.stored if e["block_hashes"][0] == salted[0])
    assert first["extra_keys"][0] == ["s"]
    # What is cached is not stored again; what is forgotten is told.
    server.complete(prompt, 1)
    assert server.request("POST", "/reset_prefix_cache")[0] == 200
    subscriber.wait(lambda: not subscriber.held, "everything is forgotten")
    assert server.metric("kvik:kv_event_batches_total") == subscriber.next
    assert server.metric("kvik:kv_event_blocks") == 0
    # All of it can be had again.
    again = subscribe(pub, replay)
    assert [sequence for sequence, _ in again.replay(0)] == list(range(subscriber.next))


def test_evicted_blocks_are_told(start, subscribe):
    args, pub, replay = config(use_int_block_hashes=False)
    server = start("--num-blocks", "40", *args)
    subscriber = subscribe(pub, replay)
    for seed in range(6):
        server.complete(tokens(seed, 10 * BLOCK + 1), 1)
    subscriber.wait(lambda: len(subscriber.of("GPU")) == server.blocks()["cached"], "events agree with the cache")
    assert all(isinstance(block, bytes) and len(block) == 16 for block in subscriber.of("GPU"))
    held = {int.from_bytes(block[-8:], "big") for block in subscriber.of("GPU")}
    assert set(names(server, tokens(5, 10 * BLOCK + 1))) <= held
    assert len(held) <= 40


def test_who_comes_too_late_for_what_is_kept_starts_over(start, subscribe):
    args, pub, replay = config(buffer_steps=1, topic="")
    server = start(*args)
    prompts = [tokens(seed, 5 * BLOCK + 1) for seed in range(5)]
    for prompt in prompts:
        server.complete(prompt, 1)
    subscriber = subscribe(pub, replay, b"")
    everything = {block for prompt in prompts for block in names(server, prompt)}
    subscriber.wait(lambda: subscriber.of("GPU") == everything, "everything is told")
    assert subscriber.next >= 5
    # One batch: forget, then all.
    batches = subscriber.replay(0)
    assert len(batches) == 1
    assert msgpack.unpackb(batches[0][1])["events"][0] == {"type": "AllBlocksCleared"}


def test_blocks_of_stores_and_pools_are_told_too(start, subscribe):
    args, pub, replay = config()
    kv = f"127.0.0.1:{free_port()}"
    start("--role", "pool", "--port", "0", "--kv-listen", kv, "--kv-store-memory", "64MiB", *args, kind=Process)
    pool = subscribe(pub, replay)
    more, pub, replay = config()
    server = start("--pool", "kvik://" + kv, "--kv-store-memory", "64MiB", *more)
    local = subscribe(pub, replay)
    prompt = tokens(3, 512)
    server.complete(prompt, 8, ignore_eos=True)
    blocks = set(names(server, prompt))
    local.wait(lambda: local.of("GPU") >= blocks and local.of("CPU") >= blocks, "cache and store hold the prompt")
    pool.wait(lambda: pool.of("CPU") >= blocks, "the pool holds the prompt")
    assert not pool.of("GPU")
    assert all(event["block_size"] == BLOCK for event in pool.stored)
    assert server.request("POST", "/reset_prefix_cache")[0] == 200
    local.wait(lambda: not local.of("GPU"), "the cache forgets")
    assert local.of("CPU") >= blocks


@pytest.mark.parametrize("text, why", [
    ('{"enable_kv_cache_events": true, "endpont": "tcp://*:1"}', "endpont"),
    ('{"endpoint": "tcp://*:5557"}', "enable_kv_cache_events"),
    ("nonsense", "JSON")])
def test_a_wrong_configuration_is_a_usage_error(text, why):
    done = run("serve", "--model", "x", "--kv-events-config", text)
    assert done.returncode == 2 and why in done.stderr


def test_routers_and_commands_without_a_cache_refuse_it():
    on = '{"enable_kv_cache_events": true}'
    assert run("serve", "--role", "router", "--kv-events-config", on).returncode == 2


# ---------------------------------------------------------------- the router


def node_of(router, url):
    return next((node for node in router.request("GET", "/nodes")[1]["nodes"] if node["url"] == url), {})


def router_of(start, *servers):
    router = start("--role", "router", "--port", "0", *[a for s in servers for a in ("--node", s.url)], kind=Process)
    wait_until(lambda: all(node_of(router, s.url).get("up") for s in servers), "all nodes are up")
    return router


def two_nodes(start):
    """Two servers that publish their events, and a router in front."""
    servers = [start(*config()[0]) for _ in range(2)]
    return servers, router_of(start, *servers)


def held_by(router, server):
    return node_of(router, server.url).get("kv_blocks", 0)


def test_a_prompt_goes_to_the_node_that_has_it_whoever_put_it_there(start):
    servers, router = two_nodes(start)
    for seed in range(10, 16):
        prompt = tokens(seed, 40 * BLOCK)
        for server in servers:
            server.request("POST", "/reset_prefix_cache")
        wait_until(lambda: not any(held_by(router, s) for s in servers), "the router knows that nothing is held")
        owner = servers[seed % 2]
        owner.complete(prompt, 1)  # not through the router
        wait_until(lambda: held_by(router, owner) >= 40, "the router knows who has the prompt")
        assert cached(router, prompt + tokens(99, 20)) >= 39 * BLOCK
    assert router.metric("kvik:router_block_lookups_total", outcome="ok") == 6
    assert router.metric("kvik:router_block_lookups_total", outcome="failed") == 0


def test_chats_too(start):
    servers, router = two_nodes(start)
    text = "A long question about something or other. " * 20
    for owner in servers:
        for server in servers:
            server.request("POST", "/reset_prefix_cache")
        wait_until(lambda: not any(held_by(router, s) for s in servers), "the router knows that nothing is held")
        owner.chat(text, 1)
        wait_until(lambda: held_by(router, owner) > 20, "the router knows who has the prompt")
        before = owner.metric("vllm:prompt_tokens_total")
        router.chat(text, 1)
        assert owner.metric("vllm:prompt_tokens_total") > before


def test_a_router_that_starts_later_learns_everything(start):
    servers, first = two_nodes(start)
    prompts = [tokens(seed, 30 * BLOCK) for seed in range(20, 26)]
    for i, prompt in enumerate(prompts):
        servers[i % 2].complete(prompt, 1)
    second = router_of(start, *servers)
    for router in (first, second):
        wait_until(lambda: all(held_by(router, s) >= 90 for s in servers), "the router knows who has what")
        for prompt in prompts:
            assert cached(router, prompt + tokens(98, 20)) >= 29 * BLOCK


def test_a_node_that_starts_anew_holds_nothing(start):
    args = config()[0]
    port = str(free_port())
    doomed = start("--port", port, *args)
    other = start(*config()[0])
    router = router_of(start, doomed, other)
    prompt = tokens(30, 40 * BLOCK)
    doomed.complete(prompt, 1)
    wait_until(lambda: held_by(router, doomed) >= 40, "the router knows who has the prompt")
    doomed.kill()
    wait_until(lambda: not node_of(router, doomed.url)["up"], "the node is out")
    again = start("--port", port, *args)
    assert again.url == doomed.url
    wait_until(lambda: node_of(router, again.url)["up"] and held_by(router, again) == 0, "it is back, with nothing")
    other.complete(prompt, 1)
    wait_until(lambda: held_by(router, other) >= 40, "the router knows who has the prompt now")
    assert cached(router, prompt + tokens(97, 20)) >= 39 * BLOCK
    # And it is followed again.
    prompt = tokens(31, 40 * BLOCK)
    again.complete(prompt, 1)
    wait_until(lambda: held_by(router, again) >= 40, "events of its new life arrive")
    assert cached(router, prompt + tokens(96, 20)) >= 39 * BLOCK


def test_nodes_that_join_are_followed_without_being_told(start):
    router = start("--role", "router", "--port", "0", kind=Process)
    servers = [start("--role", role, "--router", router.url) for role in ("prefill", "decode", "decode")]
    plain = start("--router", router.url)
    servers.append(plain)
    wait_until(lambda: all(node_of(router, s.url).get("up") for s in servers), "all nodes are up")
    decode = servers[1]
    for owner in (decode, plain):
        prompt = tokens(40 + servers.index(owner), 40 * BLOCK)
        owner.complete(prompt, 1)
        wait_until(lambda: held_by(router, owner) >= 40, "the router knows who has the prompt")
        before = owner.metric("vllm:prompt_tokens_total")
        assert cached(router, prompt + tokens(95, 20)) >= 39 * BLOCK
        assert owner.metric("vllm:prompt_tokens_total") > before


def test_nodes_without_events_are_routed_as_before(start):
    servers = [start() for _ in range(2)]
    router = router_of(start, *servers)
    prompt = tokens(50, 40 * BLOCK)
    assert cached(router, prompt) == 0
    assert cached(router, prompt + tokens(94, 20)) >= 39 * BLOCK
    assert "kv_blocks" not in node_of(router, servers[0].url)
    assert router.metric("kvik:router_block_lookups_total") == 0
