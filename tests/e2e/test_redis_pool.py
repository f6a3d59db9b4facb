# SPDX-License-Identifier: Apache-2.0
"""--pool redis://: KV that servers share through Redis or Redis Cluster, and what breaks there."""
import contextlib
import random

import pytest
from conftest import tokens, wait_until
from redis_servers import Redis, RedisCluster, needs_redis
from roles import check_nothing_left, check_sources, complete, external, text, text_of
from wire import Wire, flip_bits, once_back

pytestmark = needs_redis
LENGTH = 1024 + 5
OBJECTS = 4  # of a prompt of that length, at least


@pytest.fixture
def redis(tmp_path):
    server = Redis(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def cluster(tmp_path):
    running = RedisCluster(tmp_path)
    yield running
    running.stop()


@contextlib.contextmanager
def wire_to(redis, tamper):
    """The URL of a Redis server behind a wire."""
    cable = Wire(redis.port, tamper)
    try:
        yield f"redis://127.0.0.1:{cable.port}"
    finally:
        cable.close()


def put(start, url, prompts, expected, objects):
    """Has a server store the KV of prompts, and waits until objects() of them are there."""
    writer = start("--pool", url)
    before = objects()
    assert [text(writer, prompt) for prompt in prompts] == expected
    wait_until(lambda: objects() >= before + OBJECTS * len(prompts), "KV is in Redis")
    return writer


def test_what_one_server_computed_another_finds_in_redis_also_after_a_restart(start, alone, redis):
    url = f"redis://{redis.address}"
    prompts = [tokens(2100 + i, LENGTH) for i in range(2)]
    expected = [text(alone, prompt) for prompt in prompts]
    put(start, url, prompts, expected, redis.objects).stop()
    for _ in range(2):
        reader = start("--pool", url)
        replies = [complete(reader, prompt) for prompt in prompts]
        assert [text_of(reply) for reply in replies] == expected
        assert external(replies[0]) > 0
        # What is in the server's own cache is not fetched.
        assert external(complete(reader, prompts[0])) == 0
        assert reader.metric("kvik:kv_store_read_bytes_total", tier="redis") > 0
        check_sources(reader)
        check_nothing_left(reader)
        reader.stop()


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_a_redis_server_that_is_lost_while_it_sends_is_a_miss_and_used_again(start, alone, redis, how):
    prompts = [tokens(2200 + i, LENGTH) for i in range(2)]
    expected = [text(alone, prompt) for prompt in prompts]
    put(start, f"redis://{redis.address}", prompts, expected, redis.objects)
    lost = []

    def lose():
        lost.append(redis.kill() if how == "kill" else redis.freeze())
    with wire_to(redis, once_back(64 << 10, lose)) as url:
        reader = start("--pool", url)
        assert [text(reader, prompt) for prompt in prompts] == expected
        assert lost, "KV was on its way"
        check_nothing_left(reader)
        redis.start() if how == "kill" else redis.thaw()
        more = iter(range(2300, 10000))

        def stored_again():
            prompt = tokens(next(more), LENGTH)
            assert text(reader, prompt) == text(alone, prompt)
            return redis.objects() >= OBJECTS * (1 if how == "kill" else 3)
        wait_until(stored_again, "new KV is stored in it again")


def test_bits_that_flip_between_redis_and_server_reach_nobody(start, alone, redis):
    prompts = [tokens(2400 + i, LENGTH) for i in range(6)]
    expected = [text(alone, prompt) for prompt in prompts]
    put(start, f"redis://{redis.address}", prompts, expected, redis.objects)
    flips = flip_bits(random.Random(7), 100_000)
    with wire_to(redis, flips) as url:
        reader = start("--pool", url)
        assert [text(reader, prompt) for prompt in prompts] == expected
        assert flips.flipped > 0
        check_nothing_left(reader)


def test_a_killed_primary_of_a_redis_cluster_is_misses_until_its_replica_takes_over(start, alone, cluster):
    def objects():
        return sum(node.objects() for node in cluster.primaries() if node.process.poll() is None)
    prompts = [tokens(2500 + i, LENGTH) for i in range(3)]
    expected = [text(alone, prompt) for prompt in prompts]
    put(start, cluster.url, prompts, expected, objects)
    cluster.wait_replicated()
    assert all(node.objects() > 0 for node in cluster.primaries())
    # Whichever is first in the midst of an object.
    killed = []

    def kill(node):
        if not killed:
            killed.append(node)
            node.kill()
    reader = start("--pool", cluster.url)
    for wire, node in zip(cluster.wires, cluster.primaries()):
        wire.tamper = once_back(32 << 10, lambda node=node: kill(node))
    replies = [complete(reader, prompt) for prompt in prompts]
    assert killed, "KV was on its way"
    assert [text_of(reply) for reply in replies] == expected
    check_nothing_left(reader)

    def all_found():
        fresh = start("--pool", cluster.url)
        replies = [complete(fresh, prompt) for prompt in prompts]
        assert [text_of(reply) for reply in replies] == expected
        read = fresh.metric("vllm:kv_offload_tiering_block_hits_total", tier="redis")
        asked = fresh.metric("vllm:kv_offload_tiering_block_queries_total", tier="redis")
        fresh.stop()
        return read == asked and all(external(reply) > 0 for reply in replies)
    wait_until(all_found, "the replica has taken over with all that there was")
    # And takes new KV.
    later = [tokens(2600 + i, LENGTH) for i in range(3)]
    live = [node for node in cluster.nodes if node not in killed]
    before = sum(node.objects() for node in live)
    assert [text(reader, prompt) for prompt in later] == [text(alone, prompt) for prompt in later]
    wait_until(lambda: sum(node.objects() for node in live) >= before + OBJECTS * 3, "new KV is in the cluster")
