# SPDX-License-Identifier: Apache-2.0
"""What breaks while KV moves: processes, links, disks, leases, clients. Whatever it is, answers are those of one server
that does everything by itself, nothing is left behind, and what broke is used again when it is back."""
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import random
import resource
import socket

import pytest
from conftest import Server, tokens, wait_until
from roles import (SLOW, check_nothing_left, check_sources, complete, external, free_port, kv_port, kv_url, nodes, pair,
                   pool_of, router_of, stored, text, text_of, until_external, wait_found, wait_stored, wait_up)
from wire import Wire, at_first_get, flip_bits, once_back

PREFILL_FOR_A_PEER = {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.fixture
def wire():
    """wire(target port, tamper) -> Wire; all are closed at the end."""
    with contextlib.ExitStack() as wires:
        def make(*args):
            cable = Wire(*args)
            wires.callback(cable.close)
            return cable
        yield make


def while_kv_moves(ask, readers, act, prompts=3):
    """Asks for some prompts at once and calls act(reader) while KV is on its way to that reader. [(prompt, answer)]."""
    for attempt in itertools.count():
        asked = [tokens(7000 + 100 * attempt + i, 1500) for i in range(prompts)]
        with concurrent.futures.ThreadPoolExecutor(prompts) as threads:
            answers = [threads.submit(ask, prompt) for prompt in asked]

            def moving():
                return [reader for reader in readers if reader.metric("kvik:kv_loading_blocks") > 0]
            found = []
            wait_until(lambda: found.extend(moving()) or found or all(answer.done() for answer in answers),
                       "KV is on its way")
            if found:
                act(found[0])
                return [(prompt, answer.result()) for prompt, answer in zip(asked, answers)]


def through(prefill, decode, prompt, max_tokens=16, **params):
    """The reply of a decode node whose prompt a prefill node has computed, as a router arranges it."""
    arranged = complete(prefill, prompt, 1, kv_transfer_params=PREFILL_FOR_A_PEER)["kv_transfer_params"]
    return complete(decode, prompt, max_tokens, kv_transfer_params={**arranged, **params})


# ---- Processes that die or stand still ----


def test_a_prefill_node_killed_while_it_sends_is_used_again_at_its_address(start, alone):
    port, listen = free_port(), free_port()
    args = ("--role", "prefill", "--port", str(port), "--kv-listen", f"127.0.0.1:{listen}")
    prefill = start(*args, "--kv-link", SLOW)
    decode = start("--role", "decode")
    router = router_of(start, "--prefill", prefill.url, "--decode", decode.url)
    wait_up(router, prefill.url, decode.url)
    for prompt, answer in while_kv_moves(lambda prompt: text(router, prompt, 12), [decode],
                                         lambda _: prefill.kill()):
        assert answer == text(alone, prompt, 12)
    # The decode node goes on alone.
    prompt = tokens(30, 900)
    assert text(router, prompt) == text(alone, prompt)
    check_nothing_left(decode)
    wait_until(lambda: not nodes(router)[prefill.url]["up"], "the router notices")
    prefill = start(*args)
    wait_up(router, prefill.url)

    def ask(seed):
        prompt = tokens(seed + 5000, 900)
        reply = complete(router, prompt)
        assert text_of(reply) == text(alone, prompt)
        return reply
    until_external(ask)
    check_sources(decode)
    check_nothing_left(decode)


@pytest.mark.long
def test_a_prefill_node_frozen_while_it_sends_costs_nothing_but_time(start, alone):
    router, prefill, decode = pair(start, prefill=("--kv-link", SLOW))
    for prompt, answer in while_kv_moves(lambda prompt: text(router, prompt, 12), [decode],
                                         lambda _: prefill.freeze()):
        assert answer == text(alone, prompt, 12)
    check_nothing_left(decode)
    prefill.thaw()
    wait_up(router, prefill.url)
    wait_found(decode, lambda seed: complete(router, tokens(seed + 5000, 900)))


@pytest.mark.long
def test_a_prefill_node_frozen_before_it_accepts_is_done_without(start, alone):
    router, prefill, decode = pair(start)
    prefill.freeze()
    prompt = tokens(31, 900)
    reply = complete(router, prompt)
    assert text_of(reply) == text(alone, prompt)
    assert not nodes(router)[prefill.url]["up"]
    prefill.thaw()
    wait_up(router, prefill.url)


def test_a_request_whose_prefill_node_dies_fails_when_told_to_and_nothing_else_does(start, alone):
    prefill = start("--role", "prefill", "--kv-link", SLOW)
    decode = start("--role", "decode", "--kv-failure-policy", "fail")

    def ask(prompt):
        arranged = complete(prefill, prompt, 1, kv_transfer_params=PREFILL_FOR_A_PEER)["kv_transfer_params"]
        return decode.request("POST", "/v1/completions", {
            "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "kv_transfer_params": arranged})
    replies = while_kv_moves(ask, [decode], lambda _: prefill.kill(), prompts=1)
    assert [status for _, (status, _) in replies] == [503]
    check_nothing_left(decode)
    prompt = tokens(32, 900)
    assert text(decode, prompt) == text(alone, prompt)


def events_of(server, body):
    """The events of a stream, as far as they came."""
    return [event.removeprefix("data: ") for event in server.request("POST", "/v1/completions", body)[1].split("\n\n")]


@pytest.mark.parametrize("how", ["kill", pytest.param("freeze", marks=pytest.mark.long)])
def test_a_decode_node_that_is_lost_while_it_loads_is_replaced(start, alone, how):
    prefill = start("--role", "prefill", "--kv-link", SLOW)
    port = free_port()
    decodes = [start("--role", "decode", "--port", str(port)), start("--role", "decode")]
    router = router_of(start, "--prefill", prefill.url, *(f for d in decodes for f in ("--decode", d.url)))
    wait_up(router, prefill.url, *(d.url for d in decodes))
    lost = []

    def lose(node):
        lost.append(node)
        node.kill() if how == "kill" else node.freeze()
    streams = itertools.count()

    def ask(prompt):
        if next(streams) % 2 == 0:
            return text(router, prompt, 12)
        return events_of(router, {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
                                  "stream": True})
    for prompt, answer in while_kv_moves(ask, decodes, lose, prompts=4):
        expected = text(alone, prompt, 12)
        if isinstance(answer, str):
            assert answer == expected
            continue
        # A stream that had begun ends with an error, and what it said until then is right.
        assert answer[-2:] == ["[DONE]", ""]
        parts = [json.loads(event) for event in answer[:-2] if event.strip()]
        said = "".join(part["choices"][0]["text"] for part in parts if part.get("choices"))
        assert said == expected or ("error" in parts[-1] and expected.startswith(said)), answer
    wait_until(lambda: not nodes(router)[lost[0].url]["up"], "the router notices")
    check_nothing_left(*(d for d in decodes if d is not lost[0]))
    if how == "freeze":
        lost[0].thaw()
        wait_up(router, lost[0].url)
        check_nothing_left(prefill, lost[0])
    assert all(node["requests_running"] == 0 for node in nodes(router).values())


@pytest.mark.long
def test_requests_of_a_router_that_dies_end_and_its_nodes_find_the_next_one(start, alone):
    port = free_port()
    router = router_of(start, "--port", str(port))
    prefill = start("--role", "prefill", "--router", router.url, "--kv-link", SLOW)
    decode = start("--role", "decode", "--router", router.url)
    wait_up(router, prefill.url, decode.url)

    def ask(prompt):
        with pytest.raises((OSError, http.client.HTTPException)):
            text(router, prompt, 500)
    while_kv_moves(ask, [decode], lambda _: router.kill())
    check_nothing_left(prefill, decode)
    router = router_of(start, "--port", str(port))
    wait_up(router, prefill.url, decode.url)
    prompt = tokens(33, 900)
    assert text(router, prompt) == text(alone, prompt)


@pytest.mark.parametrize("when, how", [("between look-up and get", "kill"), ("while it sends", "kill"),
                                       ("while it sends", "freeze")])
def test_a_pool_that_is_lost_is_a_miss_and_used_again(start, alone, wire, tmp_path, when, how):
    listen = f"127.0.0.1:{free_port()}"
    store = ("--kv-listen", listen, "--kv-store-disk", f"{tmp_path}:256MiB")
    pool = pool_of(start, *store)
    writer = start("--pool", kv_url(pool))
    prompt = tokens(95, 1100)
    expected = text(alone, prompt, 12)
    assert text(writer, prompt, 12) == expected
    wait_stored(pool, "disk", 4)
    lost = []

    def lose():
        lost.append(pool.kill() if how == "kill" else pool.freeze())
    cable = wire(kv_port(pool) if how == "freeze" else int(listen.split(":")[1]),
                 once_back(64 << 10, lose) if when == "while it sends" else at_first_get(lose))
    reader = start("--pool", f"kvik://127.0.0.1:{cable.port}")
    reply = complete(reader, prompt, 12)
    wait_until(lambda: lost, "KV was on its way")  # the reader may hear of the end before whoever caused it
    assert text_of(reply) == expected
    if when == "between look-up and get":  # later, all of it may have been on its way
        given_up = reader.metric("kvik:kv_exchange_blocks_total", what="given_up")  # computing it was over first
        assert reader.metric("vllm:nixl_num_failed_transfers_total") + given_up > 0
    # Nothing of what came of it is used for the same prompt.
    again = complete(reader, prompt, 12)
    assert text_of(again) == expected and external(again) == 0
    # As long as it is away.
    prompt = tokens(99, 700)
    assert text(reader, prompt) == text(alone, prompt)
    check_nothing_left(reader)
    if how == "kill":
        pool = pool_of(start, *store)
        assert stored(pool, "disk") >= 4
    else:
        pool.thaw()

    def puts(node):
        return node.metric("kvik:kv_store_puts_total", tier="memory")

    def ask(seed):
        prompt = tokens(seed, 1100)
        expected = text(alone, prompt)
        # Counted as they come: a tier that is full holds no more of them.
        before = puts(pool)
        assert text(writer, prompt) == expected
        wait_until(lambda: puts(pool) >= before + 4 or puts(pool) == before, "KV is stored")
        reply = complete(reader, prompt)
        assert text_of(reply) == expected
        return reply
    until_external(ask)
    check_sources(reader)
    check_nothing_left(reader, writer)


# ---- Damage ----


def test_bits_that_flip_between_prefill_and_decode_reach_nobody(start, alone, wire):
    prefill = start("--role", "prefill")
    decode = start("--role", "decode")
    flips = flip_bits(random.Random(4), 100_000)
    cable = wire(kv_port(prefill), flips)

    def ask(seed):
        prompt = tokens(seed, 1500)
        reply = through(prefill, decode, prompt, remote_port=cable.port)
        assert text_of(reply) == text(alone, prompt)
        return reply
    damaged = itertools.count(3000)
    wait_until(lambda: ask(next(damaged)) and flips.flipped >= 8, "enough bits are flipped")
    assert decode.metric("vllm:nixl_num_failed_transfers_total") > 0
    cable.tamper = lambda back, data: data
    until_external(ask)
    check_sources(decode)
    check_nothing_left(decode)


def test_bits_that_flip_between_pool_and_server_reach_nobody_and_cost_the_pool_nothing(start, alone, wire):
    pool = pool_of(start)
    writer = start("--pool", kv_url(pool))
    prompts = [tokens(4000 + i, 1100) for i in range(8)]
    expected = [text(alone, prompt) for prompt in prompts]
    assert [text(writer, prompt) for prompt in prompts] == expected
    wait_stored(pool, "memory", 4 * len(prompts))
    objects = stored(pool, "memory")
    flips = flip_bits(random.Random(5), 100_000)
    cable = wire(kv_port(pool), flips)
    reader = start("--pool", f"kvik://127.0.0.1:{cable.port}")
    assert [text(reader, prompt) for prompt in prompts] == expected
    assert flips.flipped > 0
    check_nothing_left(reader)
    # The link was damaged, not what is stored.
    assert reader.metric("kvik:kv_damaged_objects_total") == 0
    assert stored(pool, "memory") >= objects
    reader = start("--pool", kv_url(pool))
    replies = [complete(reader, prompt) for prompt in prompts]
    assert [text_of(reply) for reply in replies] == expected
    assert external(replies[0]) > 0


def test_bits_that_flip_on_the_disk_are_never_served(start, alone, tmp_path):
    store = ("--kv-store-disk", f"{tmp_path}:256MiB")
    prompts = [tokens(92 + i, 1024 + 5) for i in range(4)]
    expected = [text(alone, prompt, 24) for prompt in prompts]
    server = start(*store)
    assert [text(server, prompt, 24) for prompt in prompts] == expected
    server.stop()
    rng = random.Random(3)
    for name in os.listdir(tmp_path):
        path = os.path.join(tmp_path, name)
        with open(path, "rb") as file:
            data = bytearray(file.read())
        for _ in range(len(data) // 200_000):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with open(path, "wb") as damaged:
            damaged.write(data)
    server = start(*store)
    replies = [complete(server, prompt, 24) for prompt in prompts]
    assert [text_of(reply) for reply in replies] == expected
    # What is whole is still there.
    assert sum(external(reply) for reply in replies) > 0
    check_nothing_left(server)


@pytest.mark.parametrize("other", ["arithmetic", pytest.param("kernels", marks=pytest.mark.long)])
def test_kv_of_another_arithmetic_is_never_used(start, alone, other):
    """Such peers connect and share a pool, and find nothing of each other's."""
    args, env = {"arithmetic": (("--dtype", "f32"), {}), "kernels": ((), {"KVIK_KERNELS": "scalar"})}[other]
    there = Server(*args, env=env)
    prompts = [tokens(5000 + i, 1100) for i in range(2)]
    of_here = [text(alone, prompt, 24) for prompt in prompts]
    of_there = [text(there, prompt, 24) for prompt in prompts]
    there.stop()
    pool = pool_of(start)
    writer = start(*args, "--pool", kv_url(pool), env=env)
    assert [text(writer, prompt, 24) for prompt in prompts] == of_there
    wait_stored(pool, "memory", 4 * len(prompts))
    reader = start("--pool", kv_url(pool))
    replies = [complete(reader, prompt, 24) for prompt in prompts]
    assert [text_of(reply) for reply in replies] == of_here
    assert [external(reply) for reply in replies] == [0, 0]
    assert reader.metric("vllm:external_prefix_cache_hits_total") == 0
    # Nor from a prefill node.
    prefill = start("--role", "prefill", *args, env=env)
    decode = start("--role", "decode")
    replies = [through(prefill, decode, prompt, 24) for prompt in prompts]
    assert [text_of(reply) for reply in replies] == of_here
    assert [external(reply) for reply in replies] == [0, 0]
    # Their like use it.
    like = start(*args, "--pool", kv_url(pool), env=env)
    replies = [complete(like, prompt, 24) for prompt in prompts]
    assert [text_of(reply) for reply in replies] == of_there
    assert external(replies[0]) > 0


def test_a_full_disk_stores_nothing_more_and_serves_what_it_has(start, alone, tmp_path):
    store = ("--kv-store-disk", f"{tmp_path}:256MiB")
    kept, lost, later = [[tokens(6000 + 10 * i + j, 1100) for j in range(2)] for i in range(3)]
    expected = {id(prompt): text(alone, prompt) for prompt in kept + lost + later}
    server = start(*store)

    def say(prompts):
        for prompt in prompts:
            assert text(server, prompt) == expected[id(prompt)]
    say(kept)
    wait_stored(server, "disk", 8)
    # No file may grow beyond what there is: as on a full disk, writes fail.
    largest = max(entry.stat().st_size for entry in os.scandir(tmp_path))
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    say(lost)
    wait_until(lambda: server.metric("kvik:kv_store_errors_total", tier="disk") +
               server.metric("kvik:kv_store_rejected_total", tier="disk") > 0, "writes fail")
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
    before = stored(server, "disk")
    say(later)
    wait_until(lambda: stored(server, "disk") >= before + 8, "there is room again")
    server.stop()
    server = start(*store)
    replies = [complete(server, prompt) for prompt in kept + lost + later]
    assert [text_of(reply) for reply in replies] == [expected[id(prompt)] for prompt in kept + lost + later]
    assert external(replies[0]) > 0 and sum(external(reply) for reply in replies[-2:]) > 0
    check_nothing_left(server)


# ---- Leases ----


def test_blocks_of_a_reader_that_stands_still_are_let_go_after_their_lease(start, alone):
    router, prefill, decode = pair(start, prefill=("--kv-link", SLOW))

    def stand_still(_):
        decode.freeze()
        # What nobody comes for is let go likewise.
        complete(prefill, tokens(34, 900), 1, kv_transfer_params=PREFILL_FOR_A_PEER)
        assert prefill.metric("kvik:kv_held_blocks") > 0
        check_nothing_left(prefill)
        assert prefill.metric("vllm:nixl_num_kv_expired_reqs_total") > 0
        decode.thaw()
    for prompt, answer in while_kv_moves(lambda prompt: text(decode, prompt, 12, kv_transfer_params=complete(
            prefill, prompt, 1, kv_transfer_params=PREFILL_FOR_A_PEER)["kv_transfer_params"]), [decode], stand_still):
        assert answer == text(alone, prompt, 12)
    check_nothing_left(decode)
    wait_up(router, decode.url)
    wait_found(decode, lambda seed: complete(router, tokens(seed, 900)))


# ---- Clients that leave, prompts that are refused ----


def test_a_prefill_that_is_broken_off_after_it_was_announced_leaves_nothing_to_answer_from(start, alone):
    prefill = start("--role", "prefill", "--max-model-len", "1200")
    decode = start("--role", "decode")
    address = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": kv_port(prefill)}
    # Refused there, and announced all the same.
    prompt = tokens(35, 1300)
    status, error = prefill.request("POST", "/v1/completions", {
        "prompt": prompt, "max_tokens": 1, "kv_transfer_params": PREFILL_FOR_A_PEER})
    assert status == 400 and error["error"]["code"] == "context_length_exceeded"
    reply = complete(decode, prompt, kv_transfer_params=address)
    assert text_of(reply) == text(alone, prompt) and external(reply) == 0
    # The client of the prefill leaves at any moment while the decode node waits for its KV.
    rng = random.Random(6)
    host, port = prefill.address.split(":")
    for i in range(8):
        prompt = tokens(3500 + i, rng.randrange(300, 1150))
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "kv_transfer_params": PREFILL_FOR_A_PEER})
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                               f"{body}".encode())
            if i % 2 == 0:
                connection.close()
            assert text(decode, prompt, kv_transfer_params=address) == text(alone, prompt)
    check_nothing_left(decode)


def test_two_hundred_clients_that_leave_leave_nothing_behind(start):
    """While the prompt waits, is computed, loaded from the prefill node or from a pool, or is there already; and
    requests that are refused."""
    pool = pool_of(start)
    small = ("--num-blocks", "400", "--pool", kv_url(pool))
    router, prefill, decode = pair(start, prefill=(*small, "--kv-link", "rate=40Mbit"), decode=small)

    def files(node):
        return len(os.listdir(f"/proc/{node.process.pid}/fd"))
    opened = {node: files(node) for node in (prefill, decode, router)}
    rng = random.Random(5)
    host, port = router.address.split(":")
    plan = [(i, rng.randrange(1, 1200), rng.randrange(8), rng.randrange(1, 2000)) for i in range(200)]
    refused = ["{", json.dumps({"prompt": tokens(1, 5000), "max_tokens": 4}), json.dumps({"prompt": [-1]}),
               json.dumps({"prompt": "x", "kv_transfer_params": {"do_remote_prefill": True}})]

    def one(request):
        number, length, kind, some = request
        body = refused[number // 8 % len(refused)] if kind == 0 else json.dumps({
            "prompt": tokens(number % 9, length), "max_tokens": 200, "ignore_eos": True, "stream": kind % 2 == 0})
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                               f"{body}".encode())
            if kind < 3:
                connection.recv(some)

    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        list(clients.map(one, plan))
    check_nothing_left(prefill, decode)
    assert all(node["requests_running"] == 0 for node in nodes(router).values())
    for node, before in opened.items():  # but for what asked for metrics just now
        wait_until(lambda: files(node) <= before + 8, "connections are closed")
    check_sources(decode)


def test_strangers_at_the_kv_port_keep_nobody_out(start, alone):
    """More connections than there may be that say nothing, and some that say something else."""
    pool = pool_of(start)
    port = int(kv_url(pool).rsplit(":", 1)[1])
    with contextlib.ExitStack() as open_ones:
        for _ in range(400):
            open_ones.enter_context(socket.create_connection(("127.0.0.1", port)))
        with socket.create_connection(("127.0.0.1", port)) as web:
            web.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                while web.recv(4096):  # until it hangs up
                    pass
        wait_until(lambda: pool.metric("kvik:kv_port_accepted_total") == 401, "all have come")
        assert pool.metric("kvik:kv_port_connections") <= 256
        assert pool.metric("kvik:kv_port_over_limit_total") > 0
        server = start("--pool", kv_url(pool))
        prompt = tokens(7, 1024 + 5)
        assert text(server, prompt) == text(alone, prompt)
        wait_until(lambda: pool.metric("kvik:kv_store_objects", tier="memory") >= 4, "KV is in the pool")
        said = pool.stderr()
        assert "KV port" in said and said.count("KV port") < 20, said
    # Who has said nothing for long enough is gone; who has said hello stays.
    wait_until(lambda: pool.metric("kvik:kv_port_connections") == 1, "strangers are gone")
    assert server.metric("kvik:kv_link_up") == 1
