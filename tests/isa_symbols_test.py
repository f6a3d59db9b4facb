#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files named *_avx2.cc, *_avx512.cc, *_avx512bf16.cc, *_avx512vbmi.cc are compiled for that ISA. Should such an
object hold a weak symbol that another object may hold too (an inline function, a std container's member), the linker is
free to keep the AVX-512 copy for everybody, and an older CPU dies of an illegal instruction far from here.
So they have none: kernels are templates over an ISA type of an unnamed namespace, which makes them local."""
import pathlib
import re
import subprocess
import sys
import unittest

SRC = pathlib.Path(__file__).resolve().parent.parent / "src"
BUILD = pathlib.Path(sys.argv.pop())
ISA_FILE = re.compile(r"_(avx2|avx512|avx512bf16|avx512vbmi)\.cc$")


class IsaSymbols(unittest.TestCase):
    def test_isa_objects_have_no_weak_functions(self):
        sources = {str(p.relative_to(SRC)) for p in SRC.rglob("*.cc") if ISA_FILE.search(p.name)}
        objects = {}
        for path in BUILD.rglob("*.cc.o"):
            source = path.as_posix().split(".dir/", 1)[-1][:-2]
            if source in sources:
                objects[source] = path
        self.assertEqual(set(objects), sources, f"not built in {BUILD}; build everything first")
        wrong = []
        for source, path in sorted(objects.items()):
            listing = subprocess.run(["nm", "-C", "--defined-only", str(path)], check=True, capture_output=True,
                                     text=True).stdout
            wrong += [f"{source}: {symbol}" for symbol in re.findall(r"^[0-9a-f]+ W (.*)$", listing, re.M)]
        self.assertFalse(wrong, "\n" + "\n".join(wrong))


if __name__ == "__main__":
    unittest.main()
