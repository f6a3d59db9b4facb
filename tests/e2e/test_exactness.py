# SPDX-License-Identifier: Apache-2.0
"""What a request says does not depend on what ran before it or beside it."""
import concurrent.futures

import pytest
from conftest import INSTRUMENTED, tokens, wait_until

BLOCK = 16


@pytest.mark.parametrize("cache", ["--enable-prefix-caching", "--no-enable-prefix-caching"])
@pytest.mark.parametrize("length", [31 * BLOCK - 1, 31 * BLOCK, 31 * BLOCK + 1])
def test_the_first_request_of_a_server_equals_its_repeats(start, cache, length):
    server = start(cache)
    replies = [server.complete(tokens(3, length), 24, ignore_eos=True, logprobs=3) for _ in range(5)]
    for reply in replies[1:]:
        assert reply.choices[0].text == replies[0].choices[0].text
        assert reply.choices[0].logprobs == replies[0].choices[0].logprobs
        assert reply.usage.completion_tokens == replies[0].usage.completion_tokens
    cached = replies[-1].usage.prompt_tokens_details.cached_tokens
    # The last token is always computed, so its block is not reused.
    assert cached == ((length - 1) // BLOCK * BLOCK if cache == "--enable-prefix-caching" else 0)


def test_preempted_requests_say_what_they_say_alone(start):
    # Three long answers fill the pool, more wait behind them, when seven more important requests arrive.
    server = start("--num-blocks", "300", "--max-num-seqs", "8", "--policy", "random")
    prompts = [tokens(10 + i, 40) for i in range(8)]
    lengths = [1500] + [200] * 7
    alone = [server.streamed(p, n, ignore_eos=True, cache_salt="alone") for p, n in zip(prompts, lengths)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        long = pool.submit(server.complete, prompts[0], 1500, n=5 if INSTRUMENTED else 20, ignore_eos=True)
        wait_until(lambda: server.metric("vllm:num_requests_running"), "the long request runs")
        important = [pool.submit(server.streamed, prompts[i], 200, ignore_eos=True, priority=-i)
                     for i in range(1, 8)]
        assert [future.result() for future in important] == alone[1:]
        assert {(c.text, c.finish_reason) for c in long.result().choices} == {alone[0]}
    assert server.metric("vllm:num_preemptions_total") > 0
    assert alone == [(server.text(p, n, ignore_eos=True), "length") for p, n in zip(prompts, lengths)]


def test_reused_segments_with_gaps_change_nothing(start):
    server = start("--num-blocks", "80", "--policy", "random")
    prompts = [tokens(30 + i, 500) for i in range(4)]
    cold = [server.text(p, 12, ignore_eos=True, cache_salt=f"cold{i}") for i, p in enumerate(prompts)]
    gaps = 0
    for turn in range(6):
        for i, prompt in enumerate(prompts):
            reply = server.complete(prompt, 12, ignore_eos=True)
            assert reply.choices[0].text == cold[i], (turn, i)
            told = reply.model_extra["kvik"]
            gaps += told["prefix_tokens"] < reply.usage.prompt_tokens_details.cached_tokens
    assert gaps > 0


def test_a_seed_repeats_a_draw_and_n_draws_differ(server):
    def draw(seed):
        reply = server.complete(tokens(5, 20), 12, n=3, seed=seed, temperature=1.5, ignore_eos=True)
        return [choice.text for choice in reply.choices]
    assert draw(7) == draw(7)
    assert len(set(draw(7))) == 3
    assert draw(7) != draw(8)
