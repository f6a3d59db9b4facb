# SPDX-License-Identifier: Apache-2.0
"""kvik calibrate makes a library that kvik inspect shows, and measures it once."""
import json
import subprocess

from conftest import KVIK, MODEL, check_ended_well, environment

PROFILES = """
exact = none -> none -> rans
joint = k:prerope+center+jklt|v:center+jklt -> ecsq -> rans   # of all heads
mixed = hadamard -> uniform(levels=mix(0.5,16,4),per=token) -> pack
"""


def run(*args, expected=0):
    done = subprocess.run([KVIK, *args], capture_output=True, text=True, env=environment())
    check_ended_well(done.returncode, done.stderr, [expected])
    return done


def test_a_library_is_made_measured_and_shown(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Line {i} is about {i * i} things.\n" for i in range(200)))
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"workload": "other", "prompt": f"Tell me of {i}."}) + "\n" for i in range(6)))
    profiles = tmp_path / "profiles.txt"
    profiles.write_text(PROFILES)
    common = ["calibrate", "--model", MODEL, "--threads", "1", "--out", str(tmp_path / "library"),
              "--data", str(data), "--cells", "other", "--positions", "32", "--cache", str(tmp_path / "cache")]
    made = run(*common, "--texts", str(text), "--profiles", str(profiles), "--sequences", "3")
    assert "calibrating 3 profiles" in made.stderr and "about" in made.stderr
    shown = run("inspect", str(tmp_path / "library"))
    assert "joint" in shown.stdout and "unified" not in shown.stderr
    library = json.loads(run("inspect", str(tmp_path / "library"), "--json").stdout)
    by_name = {profile["name"]: profile for profile in library["profiles"]}
    assert list(by_name) == ["exact", "joint", "mixed"]
    assert by_name["exact"]["fidelity"] == "exact" and by_name["exact"]["quality"] == []
    for name in ("joint", "mixed"):
        assert [record["workload"] for record in by_name[name]["quality"]] == ["other", "unified"]
    assert library["calibration"]["texts"][0]["name"] == "text.txt"
    assert str(text) in library["calibration"]["command"]

    results = (tmp_path / "cache" / "results.jsonl").read_bytes()
    run(*common)  # without texts: what is there is measured anew, from what is known
    again = json.loads(run("inspect", str(tmp_path / "library"), "--json").stdout)
    assert again["profiles"] == library["profiles"] and again["hash"] == library["hash"]
    assert (tmp_path / "cache" / "results.jsonl").read_bytes() == results


def test_what_cannot_be_calibrated_is_told_in_a_line(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("short\n")
    out = ["--model", MODEL, "--out", str(tmp_path / "library")]
    failed = run("calibrate", *out, "--texts", str(text), expected=1)
    assert failed.stderr.count("\n") == 1 and "too short to calibrate with" in failed.stderr
    profiles = tmp_path / "profiles.txt"
    profiles.write_text("bad = hadamard+hadamard -> none\n")
    failed = run("calibrate", *out, "--texts", str(text), "--profiles", str(profiles), expected=1)
    assert "profile bad: " in failed.stderr
    failed = run("calibrate", *out, expected=1)
    assert "library" in failed.stderr and "--texts makes a library" in failed.stderr
