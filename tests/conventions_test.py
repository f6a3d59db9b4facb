#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules that a compiler does not know and a reviewer forgets. Each says why it exists."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"


def code(path):
    """[(line number, line)] without comments and string literals: rules are about code."""
    text = path.read_text()
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])
    token = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
    keep = lambda match: match[0] if re.search(r"#\s*include\s*$", text[: match.start()].rsplit("\n", 1)[-1]) else blank(match)
    return list(enumerate(re.sub(token, keep, text, flags=re.S).splitlines(), 1))


def cpp_files(*folders):
    roots = [SRC / f for f in folders] if folders else [SRC, ROOT / "tests"]
    return sorted(p for root in roots for p in root.rglob("*") if p.suffix in (".h", ".cc"))


class Conventions(unittest.TestCase):
    def complain(self, files, pattern, allowed=lambda path: False):
        """Fails with every line of `files` that matches."""
        wrong = [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
            for path in files
            if not allowed(path)
            for number, line in code(path)
            if re.search(pattern, line)
        ]
        self.assertFalse(wrong, "\n" + "\n".join(wrong))

    def test_every_file_names_its_licence(self):
        paths = cpp_files() + sorted((ROOT / "scripts").glob("*")) + sorted((ROOT / "tests").rglob("*.py"))
        wrong = [
            str(p.relative_to(ROOT))
            for p in paths
            if p.is_file() and "SPDX-License-Identifier: Apache-2.0" not in "\n".join(p.read_text().splitlines()[:3])
        ]
        self.assertFalse(wrong, wrong)

    def test_the_pure_modules_have_no_locks_threads_or_files(self):
        # One thread owns their state and the simulator drives them with its own time: a lock would
        # hide a second owner, a file a second input.
        pure = [
            p
            for p in cpp_files("kv", "codec", "control", "sched", "workload")
            if not p.name.endswith(("_test.cc", "_bench.cc")) and p.parent.name != "testing"
        ]
        self.complain(
            pure,
            r"\bstd::(mutex|thread|jthread|atomic\w*|condition_variable)\b|\b(fopen|ifstream|ofstream|fstream)\b"
            r"|#\s*include\s*[<\"](mutex|thread|fstream|iostream|filesystem|base/mutex\.h|base/thread_pool\.h"
            r"|base/mapped_file\.h|base/bounded_queue\.h)",
            # A codec is immutable and shared by threads; what it makes on first use is the same for all.
            lambda p: p.name.startswith("rans_models."),
        )

    def test_every_stage_and_preset_of_compression_is_documented(self):
        text = (ROOT / "docs" / "compression.md").read_text()
        names = set()
        for path in (SRC / "codec" / "stages").glob("*_stage.cc"):
            names.update(re.findall(r'(?:module\.name = |Module\()"([a-z0-9-]+)"', path.read_text()))
        presets = re.findall(r'^      \{"([a-z0-9-]+)",', (SRC / "codec" / "presets.cc").read_text(), re.M)
        self.assertGreaterEqual(len(names), 8)
        self.assertGreaterEqual(len(presets), 12)
        self.assertFalse([name for name in sorted(names) + presets if f"`{name}`" not in text])

    def test_time_and_chance_are_injected(self):
        # Clock& and Rng are parameters, so that a test or the simulator owns them.
        self.complain(
            cpp_files(),
            r"\bstd::(random_device|mt19937\w*)\b|\bs?rand\s*\(\s*\)|\b(system|high_resolution)_clock\b|\bsleep_for\b|\busleep\s*\(",
        )
        self.complain(
            cpp_files(),
            r"\bsteady_clock::now\b",
            lambda p: p.name in ("clock.cc", "bounded_queue.h") or p.name.endswith("_bench.cc"),
        )
        # The time of day jumps: it is told to clients and models, and nothing depends on it.
        self.complain(
            cpp_files(),
            r"\bstd::time\b|\bgettimeofday\b|\bCLOCK_REALTIME\b|\btimespec_get\b|\btime\s*\(\s*(nullptr|NULL|0|&)",
            lambda p: p in [SRC / "app" / name for name in ("serve.cc", "generate.cc", "kv_events.cc")],
        )

    def test_the_environment_is_read_at_the_edges_only(self):
        self.complain(
            cpp_files(),
            r"\bgetenv\b",
            lambda p: p in (SRC / "base" / "isa.cc", SRC / "base" / "planted_defect.cc")  # KVIK_KERNELS, KVIK_DEFECT
            or p.relative_to(ROOT).parts[:2] in (("src", "app"), ("src", "cli"))
            or p.relative_to(ROOT).parts[0] == "tests"
            or p.name.endswith(("_test.cc", "_bench.cc")),
        )

    def test_heavy_third_party_headers_stay_in_sources(self):
        # They cost seconds per include, and their types would become part of our contracts. A header
        # may have them only if it says it is private and nobody but its module's sources includes it.
        headers = [p for p in cpp_files() if p.suffix == ".h" and SRC in p.parents]
        private = [p for p in headers if "Private to the module" in p.read_text()[:600]]
        self.complain(
            headers,
            r"#\s*include\s*[<\"](httplib|nlohmann|CLI/|spdlog|fmt/|prometheus/|pcre2|utf8proc|openssl|zmq|msgpack)",
            lambda p: p in private,
        )
        for header in private:
            self.complain(
                cpp_files(),
                rf'#\s*include\s*"{re.escape(str(header.relative_to(SRC)))}"',
                lambda p, header=header: p.suffix == ".cc" and p.parent == header.parent,
            )

    def test_headers_open_with_what_they_are(self):
        wrong = []
        for path in cpp_files():
            if path.suffix == ".h":
                lines = path.read_text().splitlines()
                name = str(path.relative_to(SRC if SRC in path.parents else ROOT))
                if not lines[1].startswith(f"// {name}: ") or "#pragma once" not in lines:
                    wrong.append(f"{path.relative_to(ROOT)}: line 2 is '// {name}: what it is', then #pragma once")
        self.assertFalse(wrong, "\n" + "\n".join(wrong))

    def test_nothing_is_left_undone(self):
        wrong = [
            f"{path.relative_to(ROOT)}:{number}"
            for path in cpp_files()
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if re.search(r"\b(TODO|FIXME)\b", line)
        ]
        self.assertFalse(wrong, wrong)


if __name__ == "__main__":
    unittest.main()
