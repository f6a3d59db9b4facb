# SPDX-License-Identifier: Apache-2.0
"""The load generator against a real server, and against servers that are not kvik or not there."""
import http.server
import json
import threading

import pytest
from conftest import run

RANDOM = ["--workload", "random", "--requests", "12", "--input-tokens", "60", "--output-tokens", "5"]


def bench(url, *args, code=0):
    done = run("bench", "--base-url", url, "--quiet", *args)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def result(url, *args, code=0):
    return json.loads(bench(url, "--json", *args, code=code).stdout)


@pytest.mark.parametrize("load, requests", [
    (RANDOM, 12),
    (["--workload", "shared-prefix", "--requests", "9", "--input-tokens", "20", "--prefix-tokens", "64"], 9),
    (["--workload", "shared-docs", "--requests", "9", "--input-tokens", "48"], 9),
    (["--workload", "longbench:5", "--requests", "7", "--scale", "128", "--rate", "200"], 7),
    (["--workload", "loogle:10", "--requests", "7", "--scale", "128", "--rate", "400", "--speedup", "2"], 7),
])
def test_every_request_of_a_plan_is_answered_as_planned(server, load, requests):
    told = result(server.url, *load, "--cold")
    assert (told["requests"], told["failed"], told["cached_tokens"]) == (requests, 0, 0)
    again = result(server.url, *load, "--cold")
    assert (again["prompt_tokens"], again["completion_tokens"]) == (told["prompt_tokens"], told["completion_tokens"])


def test_what_is_shared_is_found_again(server):
    load = ["--workload", "shared-prefix", "--requests", "20", "--input-tokens", "10", "--prefix-tokens", "160",
            "--prefixes", "2", "--output-tokens", "4", "--concurrency", "1", "--seed", "41"]
    told = result(server.url, *load)
    # All but the first of each of the two beginnings find its ten blocks.
    assert told["cached_tokens"] == told["prefix_hit_rate"] * told["prompt_tokens"] == 18 * 160
    assert told["request_hit_rate"] == 0.9


def test_an_open_loop_keeps_its_times_and_its_goals(server):
    told = result(server.url, *RANDOM, "--rate", "100", "--arrival", "constant", "--slo-ttft-ms", "60000",
                  "--slo-tpot-ms", "60000", "--warmup-sessions", "2")
    assert told["requests"] == 10
    assert told["seconds"] >= 0.09
    assert told["goodput_share"] == 1
    none = result(server.url, *RANDOM, "--rate", "100", "--slo-ttft-ms", "0.0001")
    assert none["goodput_share"] == 0


def test_what_is_sent_late_is_counted_and_not_dropped(server):
    told = result(server.url, *RANDOM[:2], "--requests", "40", "--input-tokens", "200", "--output-tokens", "60",
                  "--rate", "100000", "--max-connections", "1", "--cold")
    assert (told["requests"], told["failed"]) == (40, 0)
    assert told["late_sends"] > 0
    assert told["e2e_ms"]["p99"] > told["max_late_ms"]


def test_outputs_are_recorded_once_and_forced_afterwards(server, tmp_path):
    outputs = tmp_path / "outputs"
    load = ["--workload", "multi-turn", "--sessions", "2", "--turns", "2", "--turn-words", "10", "--system-words", "0",
            "--max-tokens", "6", "--outputs", str(outputs)]
    bench(server.url, *load)
    assert result(server.url, *load)["differing_outputs"] == 0
    lines = [json.loads(line) for line in outputs.read_text().splitlines()]
    for line in lines:
        line["token_ids"] = [ord(c) for c in "forced"]
        line["text"] = server.request("POST", "/detokenize", {"tokens": line["token_ids"]})[1]["prompt"]
    outputs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = result(server.url, *load)
    assert (told["differing_outputs"], told["completion_tokens"]) == (0, 4 * 6)
    outputs.write_text('{"session": 0, "turn": 0}\n')
    assert f"{outputs}:1" in bench(server.url, *load, code=1).stderr


@pytest.mark.parametrize("load, flag", [
    (RANDOM, "--outputs"), (RANDOM, "--answers"), (["--workload", "multi-turn", "--sessions", "2", "--turns", "2"], "--answers")])
def test_logprobs_show_what_forced_answers_hide(server, tmp_path, load, flag):
    answers = tmp_path / "answers"
    load = [*load, flag, str(answers), "--logprobs"]
    bench(server.url, *load)
    assert result(server.url, *load)["differing_outputs"] == 0
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    lines[0]["logprobs"][0] -= 1e-6
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert result(server.url, *load, code=1)["differing_outputs"] == 1


def test_recorded_agents_are_answered_as_they_were(server, tmp_path):
    trace = tmp_path / "agent.jsonl"
    calls = [{"timestamp": 1000, "session_id": "a", "input": "user: one", "output": "two"},
             {"timestamp": 9000, "session_id": "a", "input": "user: one\nassistant: two\nuser: three", "output": "four"}]
    trace.write_text("".join(json.dumps(call) + "\n" for call in calls))
    answers = tmp_path / "answers"
    told = result(server.url, "--workload", "trace", "--trace", str(trace), "--answers", str(answers))
    assert (told["requests"], told["jobs"]) == (2, 1)
    assert [json.loads(line)["text"] for line in answers.read_text().splitlines()] == ["two", "four"]


def test_blocks_of_a_trace_are_found_by_their_ids(server, tmp_path):
    trace = tmp_path / "blocks.jsonl"
    calls = [{"timestamp": i * 10, "input_length": 1100, "output_length": 8, "hash_ids": [91, 92, 93 + i]} for i in range(3)]
    trace.write_text("".join(json.dumps(call) + "\n" for call in calls))
    told = result(server.url, "--workload", "trace", "--trace", str(trace), "--concurrency", "1")
    assert told["cached_tokens"] == 2 * 1024
    left = result(server.url, "--workload", "trace", "--trace", str(trace), "--scale", "4", "--context", "2000")
    assert left["prompt_tokens"] == 3 * 275


def test_results_are_compared_request_by_request(server, tmp_path):
    files = [str(tmp_path / name) for name in ("a", "b")]
    for file in files:
        bench(server.url, *RANDOM, "--save", file)
    done = run("bench", "compare", *files, "--json")
    assert done.returncode == 0, done.stderr
    metrics = {m["metric"]: m for m in json.loads(done.stdout)}
    ttft = metrics["ttft_ms mean"]
    assert (ttft["paired"], ttft["samples"]) == (True, 12)
    assert ttft["low"] <= ttft["ratio"] <= ttft["high"]
    assert "ttft_ms p99" in run("bench", "compare", *files).stdout
    broken = tmp_path / "broken"
    broken.write_text("{}")
    assert str(broken) in run("bench", "compare", files[0], str(broken)).stderr


class PlainServer(http.server.BaseHTTPRequestHandler):
    """Speaks OpenAI's API as far as needed, ignores what it does not know, and notes what it was sent."""
    protocol_version = "HTTP/1.1"
    bodies = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        chunk = {"choices": [{"index": 0, "text": "x"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
        text = json.dumps(chunk)
        if body.get("stream"):
            text = f"data: {text}\n\ndata: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def plain_server():
    PlainServer.bodies = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), PlainServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_other_servers_get_plain_requests_or_nothing(plain_server):
    load = [*RANDOM, "--model", "m", "--token-ids", "5-90"]
    refused = bench(plain_server, *load, code=1)
    assert "kvik.forced_token_ids" in refused.stderr and "--no-kvik-fields" in refused.stderr
    assert len(PlainServer.bodies) == 1, "only asked whether it knows the field"
    told = result(plain_server, *load, "--no-kvik-fields")
    assert (told["requests"], told["failed"], told["hit_rate"]) == (12, 0, None)
    for body in PlainServer.bodies[1:]:
        assert set(body) == {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options"}


def test_a_server_that_is_not_there_fails_every_request():
    told = result("http://127.0.0.1:9", "--workload", "multi-turn", "--sessions", "2", "--turns", "3", "--model", "m", code=1)
    assert (told["requests"], told["failed"]) == (6, 6)


def test_flags_that_do_not_go_together_are_refused(server):
    for wrong in (["--workload", "longbench:5"], ["--workload", "trace"],
                  [*RANDOM, "--rate", "1", "--concurrency", "1"], [*RANDOM, "--cv", "2"],
                  [*RANDOM, "--warmup-sessions", "12"]):
        done = bench(server.url, *wrong, code=1)
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert run("bench").returncode == 2
    assert run("bench", "--workload", "longbench:x").returncode == 2
    assert run("bench", *RANDOM, "--turns", "3").returncode == 2
    assert run("bench", *RANDOM, "--token-ids", "9-3").returncode == 2
