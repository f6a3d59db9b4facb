# SPDX-License-Identifier: Apache-2.0
"""Conversations whose KV moves between prefill, decode and pool at every turn: what was approximated once is not
approximated again, says what it is, and never reaches a request that is exact."""
from conftest import tokens
from roles import CHUNK, complete, kv_url, pair, pool_of, sources, stored, text

TURNS = 4
MOVES = 2  # the turn before which the conversation goes to other servers
ANSWER = 20


def session(seed, servers):
    """The replies of a conversation whose answers are given; servers() is called at first and when it moves."""
    replies, history = [], []
    for turn in range(TURNS):
        if turn in (0, MOVES):
            server = servers()
        history = history + tokens(seed + turn, CHUNK + 40)
        answer = tokens(seed + 500 + turn, ANSWER)
        replies.append(complete(server, history, ANSWER, logprobs=2, kvik={"forced_token_ids": answer}))
        history = history + answer
    return replies


def said(reply):
    """What the model thought of every position, to the last digit."""
    return reply["choices"][0]["text"], reply["choices"][0]["logprobs"]


class Pairs:
    """Prefill and decode nodes of one pool. Those that come next know only what the pool has."""

    def __init__(self, start, *args):
        self.start, self.args = start, args
        self.pool = pool_of(start, "--kv-store-memory", "64MiB")
        self.nodes = ()

    def next(self):
        if self.nodes:
            self.stored_by_decode = self.nodes[2].metric("kvik:kv_stored_objects_total")
            for node in self.nodes:
                node.stop()  # what it has computed is stored
            assert stored(self.pool, "memory") > 0
        node = ("--pool", kv_url(self.pool), *self.args)
        self.nodes = pair(self.start, prefill=node, decode=node)
        return self.nodes[0]


def test_an_exact_session_is_that_of_one_server(start, alone):
    replies = session(4000, Pairs(start).next)
    assert [said(reply) for reply in replies] == [said(reply) for reply in session(4000, lambda: alone)]
    assert all(reply["kvik"]["quality"] == 1 for reply in replies)
    assert sum(sources(reply)["external"] for reply in replies) > 0


def test_a_session_is_approximated_once_and_says_so(start, alone):
    for seed in range(5000, 5100, 10):
        pairs = Pairs(start, "--kv-profile", "kivi-4", "--default-quality", "0")
        replies = session(seed, pairs.next)
        external = [sources(reply)["external"] for reply in replies]
        approximated = False
        for turn, (reply, loaded) in enumerate(zip(replies, external)):
            approximated = loaded > 0 or (approximated and turn != MOVES)
            # Nobody has measured this profile on this model. Of what was loaded before, the label stays.
            assert reply["kvik"]["quality"] == (0 if approximated else 1), (turn, external, reply["kvik"])
        if external[0] > 0:
            break  # on a busy machine the tiny model may have computed it before anybody answered
    assert external[0] > 0
    # What the decode node computed stands behind approximated KV: in a lossy profile it went nowhere.
    assert pairs.stored_by_decode == 0

    # An exact request finds KV of the same tokens in the same pool, and computes.
    reader = start("--pool", kv_url(pairs.pool))
    prompt = tokens(seed, CHUNK + 40)
    reply = complete(reader, prompt, ANSWER)
    assert sources(reply)["external"] == 0 and reply["kvik"]["quality"] == 1
    assert reply["choices"][0]["text"] == text(alone, prompt, ANSWER)
