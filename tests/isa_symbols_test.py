#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files named *_avx2.cc, *_avx512.cc, *_avx512bf16.cc are compiled for that ISA. Should such an object hold a
weak symbol that another object may hold too (an inline function, a std container's member), the linker is
free to keep the AVX-512 copy for everybody, and an older CPU dies of an illegal instruction far from here.
So they have none: kernels are templates over an ISA type of an unnamed namespace, which makes them local."""
import pathlib
import re
import subprocess
import sys
import unittest

SRC = pathlib.Path(__file__).resolve().parent.parent / "src"
LIBRARIES = pathlib.Path(sys.argv.pop())


def weak_functions():
    """([(library, object, demangled symbol)], number of objects) of the ISA-specific objects."""
    found, objects = [], 0
    for library in sorted(LIBRARIES.glob("libkvik_*.a")):
        listing = subprocess.run(["nm", "-C", "--defined-only", str(library)], check=True,
                                 capture_output=True, text=True).stdout
        member = None
        specific = False
        for line in listing.splitlines():
            header = re.fullmatch(r"(\S+\.o):", line)
            if header:
                member = header[1]
                specific = re.search(r"_(avx2|avx512|avx512bf16)\.cc\.o$", member) is not None
                objects += specific
            elif specific:
                symbol = re.fullmatch(r"[0-9a-f]+ W (.*)", line)
                if symbol:
                    found.append((library.name, member, symbol[1]))
    return found, objects


class IsaSymbols(unittest.TestCase):
    def test_isa_objects_have_no_weak_functions(self):
        found, objects = weak_functions()
        sources = [p for p in SRC.rglob("*.cc") if re.search(r"_(avx2|avx512|avx512bf16)\.cc$", p.name)]
        self.assertEqual(objects > 0, len(sources) > 0, f"no ISA-specific object in {LIBRARIES}; build first")
        wrong = [f"{library}({member}): {symbol}" for library, member, symbol in found]
        self.assertFalse(wrong, "\n" + "\n".join(wrong))


if __name__ == "__main__":
    unittest.main()
