# SPDX-License-Identifier: Apache-2.0
"""kvik eval on made data: what it reports, and that a run goes on where an ended one was."""
import json
import re

import pytest
from conftest import MODEL, run

FINE = "none -> uniform(levels=256,per=token,group=32) -> pack"
COARSE = "none -> uniform(levels=3,per=token,group=32) -> pack"


@pytest.fixture
def data(tmp_path):
    """Eight items of two workloads."""
    lines = []
    for i in range(8):
        lines.append({"workload": "math", "prompt": f"What is {i} + 1?", "reference": f"It is {i + 1}.\n#### {i + 1}"})
        lines.append({"workload": "qa", "prompt": f"who is number {i}", "title": f"Title {i}",
                      "context": f"Number {i} is called Ann{i}.", "answers": [f"Ann{i}"]})
    path = tmp_path / "made.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def evaluate(data, *args, code=0):
    done = run("eval", "--model", MODEL, "--data", str(data), "--threads", "1", "--continuation", "16",
               "--cache", str(data.parent / "cache"), *args)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def results(done):
    return {(r["name"], r["cell"]): r for r in json.loads(done.stdout)["results"]}


def test_numbers_say_what_a_pipeline_costs(data):
    done = evaluate(data, "--json", "--positions", "0", "--cell", "math,qa:512",
                    "--pipeline", f"lossless, {FINE}", "--pipeline", COARSE, "--metric", "top1,task")
    rows = results(done)
    assert set(rows) == {(p, c) for p in ("lossless", FINE, COARSE) for c in ("math", "qa:512")}
    for cell in ("math", "qa:512"):
        exact, fine, coarse = (rows[p, cell] for p in ("lossless", FINE, COARSE))
        assert exact["prompts"] == 8 and 8 <= exact["positions"] <= 8 * 16
        assert exact["positions"] == fine["positions"] == coarse["positions"]
        assert (exact["q"], exact["q_low"], exact["top1"], exact["mse"]) == (1, 1, 1, 0)
        assert exact["kl"] < 1e-6 and exact["ppl"] == pytest.approx(exact["ppl_raw"])
        assert exact["output_error"] == 0 == exact["logit_error"]
        assert 0 < fine["kl"] < coarse["kl"] and fine["mse"] < coarse["mse"]
        assert coarse["top1_low"] <= coarse["top1"] <= 1 and coarse["q_low"] <= coarse["q"]
        assert coarse["intervals"]["kl"][0] <= coarse["kl"] <= coarse["intervals"]["kl"][1]
        for row in (exact, fine, coarse):
            assert row["cr"] == pytest.approx(16 / row["bits_per_value"])
        assert 8 < fine["bits_per_value"] < 12 and coarse["bits_per_value"] < 4
        assert exact["task"]["score"]["value"] == exact["task"]["score_raw"]["value"]
    assert rows["lossless", "math"]["ppl_text"] == "reference"
    assert rows["lossless", "qa:512"]["ppl_text"] == "raw answer"


def test_a_run_goes_on_where_it_was(data):
    args = ["--cell", "math", "--positions", "60", "--json"]
    first = evaluate(data, *args, "--pipeline", FINE)
    again = evaluate(data, *args, "--pipeline", FINE)
    assert again.stdout == first.stdout
    assert re.search(r"\b0 evaluations, [1-9]\d* known", again.stderr)
    more = evaluate(data, *args, "--pipeline", f"{FINE},{COARSE}")
    assert results(more)[FINE, "math"] == results(first)[FINE, "math"]
    assert re.search(r"raw prompts: 0 computed", more.stderr)
    # What was measured with other frames is another measurement, and so is a fresh one.
    other = evaluate(data, *args, "--pipeline", FINE, "--frame-tokens", "16")
    assert results(other)[FINE, "math"]["bits_per_value"] > results(first)[FINE, "math"]["bits_per_value"]
    fresh = evaluate(data, *args, "--pipeline", FINE, "--fresh")
    assert fresh.stdout == first.stdout
    assert " 0 known" in fresh.stderr


def test_threads_change_nothing_and_the_table_is_readable(data):
    args = ["--cell", "qa:512", "--positions", "60", "--pipeline", f"kivi-2,{COARSE}", "--every-block"]
    one = evaluate(data, *args)
    two = run("eval", "--model", MODEL, "--data", str(data), "--threads", "2", "--continuation", "16",
              "--cache", str(data.parent / "other"), "--quiet", *args)
    assert two.stdout == one.stdout and two.stderr == ""
    assert "KL" in one.stdout and "kivi-2" in one.stdout and COARSE in one.stdout
    assert "about" in one.stderr


@pytest.mark.parametrize("args, words", [
    (["--pipeline", "nothing"], ["nothing", "presets"]),
    (["--pipeline", "none -> uniform(levels=1) -> pack"], ["levels"]),
    (["--pipeline", "kvtc"], ["kvtc", "center/k/prerope", "--profiles"]),
    ([], ["--pipeline", "--profiles"]),
    (["--pipeline", "lossless", "--profile", "x"], ["x", "--profiles"]),
    (["--pipeline", "lossless", "--cell", "poetry:1K"], ["poetry"]),
    (["--pipeline", "lossless", "--cell", "qa:x"], ["qa:x"]),
    (["--pipeline", "lossless", "--profiles", "/nowhere"], ["/nowhere"]),
    (["--pipeline", "lossless", "--kv-cache-dtype", "f32"], ["bf16"]),
])
def test_errors_say_what_is_wrong(data, args, words):
    done = evaluate(data, *args, code=1)
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr


def test_bad_data_is_named(data):
    data.write_text('{"workload": "math"}\n')
    assert f"{data}:1" in evaluate(data, "--pipeline", "lossless", code=1).stderr
