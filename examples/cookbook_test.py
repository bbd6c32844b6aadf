"""Executes the blocks of code of docs/cookbook.md on the current backend."""

import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
COOKBOOK = ROOT / "docs" / "cookbook.md"
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")


def blocks():
    text = COOKBOOK.read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_there_are_blocks():
    assert len(blocks()) > 8


@pytest.mark.skipif(
    BACKEND not in ("jax", "tensorflow", "torch"), reason="no gradients"
)
def test_all_blocks_run_in_order():
    names = {"__name__": "cookbook"}
    for k, source in enumerate(blocks()):
        code = compile(source, f"cookbook block {k}", "exec")
        exec(code, names)
