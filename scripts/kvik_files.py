# SPDX-License-Identifier: Apache-2.0
"""Where what scripts use is found."""
import os
import pathlib

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "kvik"
DEMO_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def find_model(name):
    """The file of this name in KVIK_MODELS or where `kvik pull` puts models; None: in neither."""
    for folder in filter(None, (os.environ.get("KVIK_MODELS"), CACHE / "models")):
        path = pathlib.Path(folder) / name
        if path.is_file():
            return path.resolve()
    return None


def demo_model(command):
    """The demo's model; without it `command` ends."""
    path = find_model(DEMO_MODEL)
    if path is None:
        raise SystemExit(f"{command}: {DEMO_MODEL} not found; run 'build/kvik pull demo' or set KVIK_MODELS")
    return path
