"""Tests of the pages in docs/ that must follow the patches."""

import re

import fork
import patchset
import seams
from fake import call
from fake import edit
from fake import patched
from fake import put
from fake import tree

PAGE = f"before\n{seams.BEGIN}{seams.END}after\n"


def test_the_table_follows_the_headers(root, capsys):
    patched(root)
    put(root / seams.PAGE, PAGE)
    assert call(root, "check") == 1
    assert "Run `make seams`" in capsys.readouterr().out
    assert call(root, "seams") == 0
    text = (root / seams.PAGE).read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "| `a.py` | test. | - | Pending |\n" in text
    assert call(root, "check") == 0
    patch = root / "keras/src/a.py.patch"
    edit(patch, "Pending\n", "Submitted [#7]\nReported: #5\n")
    assert call(root, "check") == 1
    assert call(root, "checkout") == 0
    edit(tree(root) / "keras/src/a.py", "y = 2 * x\n", "y = 4 * x\n")
    assert call(root, "export") == 0
    row = "| `a.py` | test. | #5 | Submitted [#7] |\n"
    assert row in (root / seams.PAGE).read_text()
    assert call(root, "check") == 0


def test_a_page_without_a_place_for_the_table_is_refused(root, capsys):
    patched(root)
    put(root / seams.PAGE, "no lines\n")
    assert call(root, "seams") == 1
    assert "the two lines" in capsys.readouterr().err


def test_our_page_lists_each_seam():
    text = (fork.ROOT / seams.PAGE).read_text()
    for name in patchset.read(fork.ROOT):
        if name.endswith(".patch"):
            path = name.removesuffix(".patch").removeprefix("keras/src/")
            assert f"| `{path}` | " in text
    for name in patchset.replaced(fork.ROOT):
        assert f"`{name.removeprefix('keras/src/')}`" in text


def test_the_page_of_policies_lists_the_names_that_layers_give():
    patches = patchset.read(fork.ROOT)
    code = b"".join(x.data for name, x in patches.items() if "patch" in name)
    given = set(re.findall(r'remat_name\(\w+, "(.+)"\)', code.decode()))
    text = (fork.ROOT / "docs/policies.md").read_text()
    assert set(re.findall(r'^\| `"(\w+/\w+)"` \|', text, re.M)) == given
    op = patches["keras/src/remat/name_op.py"].data.decode()
    assert all(f'`"{name}"`' in op for name in given)
