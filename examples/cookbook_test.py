"""Executes the blocks of code of pages in docs/ on the current backend."""

import os
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGES = ("cookbook.md", "policies.md")
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")


def blocks(page):
    text = (DOCS / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_there_are_blocks():
    assert len(blocks("cookbook.md")) > 8
    assert len(blocks("policies.md")) == 3


@pytest.mark.skipif(
    BACKEND not in ("jax", "tensorflow", "torch"), reason="no gradients"
)
@pytest.mark.parametrize("page", PAGES)
def test_all_blocks_run_in_order(page):
    names = {"__name__": page}
    for k, source in enumerate(blocks(page)):
        code = compile(source, f"{page} block {k}", "exec")
        exec(code, names)
