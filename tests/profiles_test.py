#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The profile libraries in profiles/: sound, measured, small, and made from the texts that are here.

usage: profiles_test.py KVIK
"""
import hashlib
import json
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
KVIK = ""
LIBRARIES = sorted(p.parent for p in (ROOT / "profiles").glob("*/library.json"))


class ProfilesTest(unittest.TestCase):
    def library(self, folder):
        """As the program reads it: it refuses what is not sound."""
        done = subprocess.run([KVIK, "inspect", str(folder), "--json"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_there_are_some_and_they_are_small(self):
        self.assertGreaterEqual(len(LIBRARIES), 2)
        files = [f for folder in LIBRARIES for f in folder.iterdir()]
        self.assertLessEqual(sum(f.stat().st_size for f in files), 8 << 20)

    def test_profiles_are_measured(self):
        for folder in LIBRARIES:
            with self.subTest(folder.name):
                profiles = self.library(folder)["profiles"]
                self.assertGreaterEqual(len(profiles), 12)
                for profile in profiles:
                    self.assertGreaterEqual(len(profile["ratios"]), 3, profile["name"])
                    workloads = {r["workload"] for r in profile["quality"]}
                    if profile["fidelity"] == "exact":
                        self.assertEqual(workloads, set())
                    else:
                        self.assertLessEqual(
                            {"unified", "math", "code", "qa", "summarization"}, workloads)

    def test_the_texts_are_these(self):
        for folder in LIBRARIES:
            for text in self.library(folder)["calibration"]["texts"]:
                data = (ROOT / "data" / "calibration" / text["name"]).read_bytes()
                self.assertEqual(hashlib.sha256(data).hexdigest(), text["sha256"], text["name"])


if __name__ == "__main__":
    KVIK = sys.argv.pop(1)
    unittest.main()
