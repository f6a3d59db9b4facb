# SPDX-License-Identifier: Apache-2.0
"""The store that a server has when nobody says anything of one: memory, and a folder of its model in the cache folder."""
import pathlib
import re

import pytest

from conftest import MODEL, run, tokens, wait_until
from roles import CHUNK, complete, external, sources, stored, text_of

LONG = 4 * CHUNK + 5


@pytest.fixture
def cache(tmp_path):
    """The variables of a user whose cache folder is here."""
    return {"XDG_CACHE_HOME": str(tmp_path)}


def store_folders(cache):
    return sorted(path for path in (pathlib.Path(cache["XDG_CACHE_HOME"]) / "kvik").glob("kv-store/*") if path.is_dir())


def log_line(server, words):
    return next(line for line in server.stderr().splitlines() if words in line)


def test_a_restarted_server_answers_the_same_from_its_disk(start, alone, cache):
    prompts = [tokens(7000 + i, LONG) for i in range(4)]
    how = [{}, {}, {"temperature": 1, "seed": 5}, {"logprobs": 3}]
    ask = lambda server: [complete(server, prompt, 24, **more) for prompt, more in zip(prompts, how, strict=True)]
    said = lambda replies: [(text_of(reply), reply["choices"][0]["logprobs"]) for reply in replies]
    expected = said(ask(alone))
    server = start(own_store=True, env=cache)
    assert said(ask(server)) == expected
    server.stop()  # at once: what was computed is stored before it ends
    [folder] = store_folders(cache)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())

    server = start(own_store=True, env=cache)
    line = log_line(server, "KV store:")
    assert str(folder) in line and "--no-kv-store" in line
    # 4 chunks of a prompt that is asked for, and what comes behind is its tail and its answer's.
    assert int(re.search(r"\((\d+) objects found\)", line)[1]) >= 16
    replies = ask(server)
    assert said(replies) == expected
    assert sum(map(external, replies)) >= CHUNK
    assert server.metric("vllm:external_prefix_cache_hits_total") == sum(map(external, replies))
    assert stored(server, "memory") > 0


def test_what_the_cache_lost_comes_back_from_memory(start, alone, cache):
    server = start(own_store=True, env=cache)
    replies = []

    def came_back():
        prompt = tokens(7100 + len(replies), LONG)
        expected = text_of(complete(alone, prompt, 24))
        assert text_of(complete(server, prompt, 24)) == expected
        wait_until(lambda: stored(server, "memory") >= 4, "KV is stored")
        assert server.request("POST", "/reset_prefix_cache")[0] == 200
        replies.append(complete(server, prompt, 24))
        assert text_of(replies[-1]) == expected
        return external(replies[-1]) > 0
    wait_until(came_back, "KV comes from the store")


def test_of_two_servers_of_one_model_the_second_keeps_memory_only(start, alone, cache):
    first = start(own_store=True, env=cache)
    second = start(own_store=True, env=cache)
    assert "in use by another process" in log_line(second, "no KV is kept on disk")
    assert "disk" not in log_line(second, "KV store:")
    prompt = tokens(7200, LONG)
    assert len({text_of(complete(server, prompt, 16)) for server in (first, second, alone)}) == 1
    # The folder is free for whoever comes next.
    first.stop()
    third = start(own_store=True, env=cache)
    assert "objects found" in log_line(third, "KV store:")


def test_servers_that_share_the_work_have_one_too(start, cache):
    assert "disk" in log_line(start("--role", "prefill", own_store=True, env=cache), "KV store:")
    assert "KV store: memory" in log_line(start("--role", "decode", own_store=True, env=cache), "KV store:")


@pytest.mark.parametrize("variables, why", [
    ({"XDG_CACHE_HOME": "", "HOME": ""}, "neither XDG_CACHE_HOME nor HOME"),
    ({"XDG_CACHE_HOME": MODEL}, "Not a directory"),
    ({"XDG_CACHE_HOME": "/proc/none"}, "cannot make folder"),
])
def test_where_there_is_no_folder_there_is_memory(start, alone, tmp_path, monkeypatch, variables, why):
    monkeypatch.chdir(tmp_path)  # what is kept elsewhere then
    server = start(own_store=True, env=variables)
    assert why in log_line(server, "no KV is kept on disk")
    prompt = tokens(7300, LONG)
    assert text_of(complete(server, prompt)) == text_of(complete(alone, prompt))
    wait_until(lambda: stored(server, "memory") >= 4, "KV is stored")
    assert not list(tmp_path.glob("**/segment-*"))


def test_a_folder_that_was_asked_for_is_needed(cache):
    done = run("serve", "--model", MODEL, "--port", "0", "--cost-model", "default", "--num-blocks", "64", "--kv-store-disk",
               MODEL + "/x")
    assert done.returncode == 1 and "Not a directory" in done.stderr


def test_one_flag_keeps_nothing(start, cache):
    server = start("--no-kv-store", own_store=True, env=cache)
    complete(server, tokens(7400, LONG))
    assert "kvik:kv_store" not in server.request("GET", "/metrics")[1]
    assert "KV store" not in server.stderr() and not store_folders(cache)


def test_kv_that_cannot_be_stored_is_not(start, cache):
    for flags in (["--kv-cache-dtype", "f32"], ["--no-enable-prefix-caching"]):
        server = start(*flags, own_store=True, env=cache)
        assert sources(complete(server, tokens(7500, LONG)))["external"] == 0
        assert "KV store" not in server.stderr() and not store_folders(cache)


def test_a_kill_loses_nothing_that_was_written(start, alone, cache):
    server = start(own_store=True, env=cache)
    prompt = tokens(7600, LONG)
    expected = text_of(complete(server, prompt, 24))
    wait_until(lambda: stored(server, "disk") >= 4, "KV is on the disk")
    server.kill()
    # The folder is not locked any more, and what was torn is left out.
    server = start(own_store=True, env=cache)
    assert int(re.search(r"\((\d+) objects found\)", log_line(server, "KV store:"))[1]) >= 4
    assert text_of(complete(server, prompt, 24)) == expected == text_of(complete(alone, prompt, 24))
