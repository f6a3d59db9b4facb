#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The module DAG is the architecture, and three places tell it: what src/CMakeLists.txt lets a module
link, what its files include, and the table in docs/architecture.md. They must agree. Linking alone
proves little, because all modules share one include root: a header-only include would go unseen."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"


def cmake_dag():
    """{module: set of modules it may link} from the kvik_module() calls."""
    text = re.sub(r"#[^\n]*", "", (SRC / "CMakeLists.txt").read_text())
    dag = {}
    for call in re.findall(r"kvik_module\(([^)]*)\)", text):
        words = call.split()
        deps = set()
        section = None
        for word in words[1:]:
            if word in ("DEPS", "LINK", "PRIVATE", "TEST_LINK"):
                section = word
            elif section == "DEPS":
                deps.add(word)
        dag[words[0]] = deps
    return dag


def documented_dag():
    """The same from the table of docs/architecture.md: | `module` | sentence | `dep` `dep` |."""
    dag = {}
    for line in (ROOT / "docs" / "architecture.md").read_text().splitlines():
        row = re.fullmatch(r"\|\s*`(\w+)`\s*\|.*\|([^|]*)\|", line)
        if row:
            dag[row[1]] = set(re.findall(r"`(\w+)`", row[2]))
    return dag


def sources(module):
    return sorted(p for p in (SRC / module).rglob("*") if p.suffix in (".h", ".cc"))


class ModuleDag(unittest.TestCase):
    def setUp(self):
        self.dag = cmake_dag()

    def test_is_acyclic_and_every_dependency_is_a_module(self):
        done = set()
        # The file lists modules bottom up, so that reading it from the top never meets a stranger.
        for module, deps in self.dag.items():
            self.assertLessEqual(deps, done, f"{module} depends on a module listed after it")
            done.add(module)
        self.assertGreater(len(done), 8)

    def test_every_folder_is_a_module(self):
        folders = {p.name for p in SRC.iterdir() if p.is_dir() and sources(p.name)}
        self.assertLessEqual(folders, set(self.dag) | {"cli"})

    def test_includes_stay_within_the_declared_dependencies(self):
        modules = set(self.dag) | {"cli"}
        wrong = []
        for module, deps in self.dag.items():
            for path in sources(module):
                for number, line in enumerate(path.read_text().splitlines(), 1):
                    include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
                    if not include:
                        continue
                    other = include[1].split("/")[0]
                    where = f"{path.relative_to(ROOT)}:{number} includes {include[1]}"
                    if other not in modules or not (SRC / include[1]).is_file():
                        wrong.append(where + ": write the path from src/, as an existing file")
                    elif other != module and other not in deps:
                        wrong.append(where + f": {module} does not depend on {other}")
        self.assertFalse(wrong, "\n" + "\n".join(wrong))

    def test_the_documented_table_is_the_built_one(self):
        documented = documented_dag()
        documented.pop("cli", None)
        self.assertEqual(documented, self.dag)


if __name__ == "__main__":
    unittest.main()
