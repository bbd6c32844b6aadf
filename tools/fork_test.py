"""Tests of assembling, exporting, checking and building."""

import subprocess
import time
import zipfile

import pytest

import checker
import exporting
import gitcmd
import patchset
import upstream
import wheel
from fake import MODULE
from fake import archive
from fake import call
from fake import contents
from fake import edit
from fake import patched
from fake import put
from fake import tree


def test_round_trip_changes_nothing(root, capsys):
    patched(root)
    before = contents(root)
    assert set(before) == {"keras/src/a.py.patch", "keras/src/new.py"}
    assert call(root, "export") == 0
    assert contents(root) == before
    assert call(root, "check") == 0
    assert "+1 -1: all rules kept" in capsys.readouterr().out


def test_patch_is_small_and_has_full_blob_ids(root):
    patched(root)
    text = (root / "keras/src/a.py.patch").read_text()
    assert len(checker.INDEX.findall(text)) == 1
    assert "--- a/keras/src/a.py\n" in text
    assert text.count("\n ") == 2


def test_base_commit_is_the_same_everywhere(root):
    patched(root)
    first = gitcmd.text(tree(root), "rev-parse", "base", "made")
    assert call(root, "checkout", "--force") == 0
    assert gitcmd.text(tree(root), "rev-parse", "base", "made") == first


def test_new_patch_needs_a_header(root, capsys):
    patched(root)
    edit(tree(root) / "keras/src/b.py", "y = x\n", "y = 3 * x\n")
    assert call(root, "export") == 0
    assert call(root, "check") == 1
    said = capsys.readouterr().out
    assert "b.py.patch: needs a line `Purpose:" in said
    assert "b.py.patch: needs a line `Upstream-Status:`" in said
    assert "a.py.patch: needs" not in said


def test_export_keeps_headers_and_removes_stale_files(root):
    patched(root)
    edit(tree(root) / "keras/src/a.py", "y = 2 * x\n", "y = 4 * x\n")
    (tree(root) / "keras/src/new.py").unlink()
    assert call(root, "export") == 0
    assert set(contents(root)) == {"keras/src/a.py.patch"}
    assert "Purpose: test." in (root / "keras/src/a.py.patch").read_text()
    edit(tree(root) / "keras/src/a.py", "y = 4 * x\n", "y = x\n")
    assert call(root, "export") == 0
    assert contents(root) == {}


def test_replaced_file_needs_its_blob(root, capsys):
    put(root / "keras/src/b.py", "# nothing is exported here now\n")
    assert call(root, "checkout") == 1
    assert "may not stand in" in capsys.readouterr().err
    (root / "replaced.txt").write_text(f"keras/src/b.py {'0' * 40}\n")
    assert call(root, "checkout") == 0
    api_file = tree(root) / "keras/api/ops/__init__.py"
    assert "keras.src.b" not in api_file.read_text()
    assert call(root, "check") == 1
    assert "replaced.txt names blob 000" in capsys.readouterr().out
    blob = gitcmd.listing(tree(root), "base")["keras/src/b.py"][1]
    (root / "replaced.txt").write_text(f"keras/src/b.py {blob}\n")
    assert call(root, "check") == 0


def test_checkout_keeps_unexported_work(root, capsys):
    patched(root)
    put(tree(root) / "keras/src/deep/.gitignore", "*.py\n")
    put(tree(root) / "keras/src/deep/late.py", "x = 1\n")
    (root / "upstream.txt").touch()
    put(root / "keras/src/other.py", "x = 1\n")
    assert call(root, "checkout") == 1
    assert "keras/src/deep/late.py" in capsys.readouterr().err
    assert call(root, "checkout", "--force") == 0
    assert not (tree(root) / "keras/src/deep").exists()


def test_quick_edit_of_the_same_size_is_seen(root):
    """git compares sizes and whole seconds, unless the index is as old."""
    patched(root)
    edit(tree(root) / "keras/src/new.py", "y = x\n", "z = x\n")
    time.sleep(1.1)
    assert set(patchset.unexported(tree(root))) == {"keras/src/new.py"}


def test_caches_are_no_edits(root):
    patched(root)
    put(tree(root) / "keras/src/__pycache__/a.pyc", "x")
    put(tree(root) / ".pytest_cache/x/y", "x")
    assert patchset.unexported(tree(root)) == {}


def test_export_keeps_newer_files_of_the_repository(root, capsys):
    patched(root)
    put(root / "keras/src/new.py", MODULE.format("newer"))
    edit(tree(root) / "keras/src/b.py", "y = x\n", "y = 3 * x\n")
    assert call(root, "export") == 0
    assert "newer" in (root / "keras/src/new.py").read_text()
    assert (root / "keras/src/b.py.patch").exists()
    assert "run `make tree`: keras/src/new.py" in capsys.readouterr().out
    edit(tree(root) / "keras/src/new.py", "y = x\n", "y = 5 * x\n")
    assert call(root, "export") == 1
    assert "changed there and in build/tree" in capsys.readouterr().err
    assert "newer" in (root / "keras/src/new.py").read_text()


def test_export_refuses_what_it_cannot_keep(root, capsys):
    patched(root)
    put(tree(root) / "conftest.py", "# edited\n")
    assert call(root, "export") == 1
    assert "Received: conftest.py" in capsys.readouterr().err
    gitcmd.git(tree(root), "checkout", "made", "--", "conftest.py")
    (tree(root) / "keras/src/b.py").unlink()
    assert call(root, "export") == 1
    assert "cannot delete" in capsys.readouterr().err


def test_export_refuses_a_tree_it_did_not_make(root, capsys):
    put(tree(root) / "keras/src/a.py", "x = 1\n")
    assert call(root, "export") == 1
    assert call(root, "checkout") == 1
    assert "that `checkout` made" in capsys.readouterr().err


def test_interrupted_swap_is_mended(root):
    patched(root)
    tree(root).rename(tree(root).with_name("tree.old"))
    assert call(root, "status") == 0
    assert call(root, "checkout") == 0
    assert patchset.unexported(tree(root)) == {}
    assert not list((root / "build").glob("scratch-*"))


def test_interrupted_assembly_leaves_the_tree(root, monkeypatch):
    patched(root)
    before = gitcmd.snapshot(tree(root))
    put(root / "keras/src/other.py", "x = 1\n")

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(patchset, "complete", stop)
        call(root, "checkout")
    assert gitcmd.snapshot(tree(root)) == before
    assert not list((root / "build").glob("scratch-*"))
    assert call(root, "checkout") == 0
    assert (tree(root) / "keras/src/other.py").exists()


def test_interrupted_export_can_be_repeated(root, monkeypatch):
    patched(root)
    edit(tree(root) / "keras/src/new.py", "y = x\n", "y = 2 * x\n")
    put(tree(root) / "keras/src/third.py", "x = 1\n")
    saved = []

    def stop(*args):
        if saved:
            raise KeyboardInterrupt
        saved.append(args)
        save(*args)

    save = exporting.save
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(exporting, "save", stop)
        call(root, "export")
    assert call(root, "checkout") == 1
    assert call(root, "export") == 0
    assert "2 * x" in (root / "keras/src/new.py").read_text()
    assert (root / "keras/src/third.py").exists()
    assert call(root, "checkout") == 0


def test_budget_can_be_lifted_by_a_note(root, capsys):
    patched(root)
    edit(
        tree(root) / "keras/src/a.py", "    y = 2 * x\n", "    y = 2 * x\n" * 13
    )
    assert call(root, "export") == 0
    assert call(root, "check") == 1
    assert "adds 13 and removes 1 lines" in capsys.readouterr().out
    path = root / "keras/src/a.py.patch"
    edit(path, "Purpose: test.\n", "Purpose: test.\nNote: why not.\n")
    assert call(root, "check") == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a/keras/src/a.py b/keras/src/a.py", "a/x b/x", "named after"),
        ("y = x\n", "y = z\n", "without fuzz"),
        ("Pending", "Soon", "Received: 'Soon'"),
        ("Pending", "Submitted", "Received: 'Submitted'"),
        ("Purpose:", "Reason:", "needs a line `Purpose"),
        (" 100644", "", "full blob ids"),
    ],
)
def test_bad_patch_is_named(root, capsys, old, new, said):
    patched(root)
    edit(root / "keras/src/a.py.patch", old, new)
    assert call(root, "check") == 1
    shown = capsys.readouterr()
    assert said in shown.out + shown.err


def test_patch_without_its_file_is_refused(root, capsys):
    patched(root)
    (root / "keras/src/a.py.patch").rename(root / "keras/src/z.py.patch")
    assert call(root, "check") == 1
    assert "z.py is not in the archive" in capsys.readouterr().err


def test_wrong_hash_stops_before_unpacking(root, capsys, monkeypatch):
    pin = upstream.read_pin(root)
    (root / "upstream.txt").write_text(str(upstream.Pin("1.0", "0" * 64)))
    refused = f"DO NOT MATCH THE HASHES\n  Got        {pin.sha256}\n"

    def pip(command, **options):
        assert "--require-hashes" in command
        return subprocess.CompletedProcess(command, 1, "", refused)

    monkeypatch.setattr(upstream.subprocess, "run", pip)
    assert call(root, "checkout") == 1
    assert f"Received: {pin.sha256}" in capsys.readouterr().err
    assert not tree(root).exists()


def test_no_network_is_one_clear_line(root, capsys, monkeypatch):
    (root / "build/cache/keras-1.0.tar.gz").unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert call(root, "checkout") == 1
    said = capsys.readouterr().err
    assert "put the archive into build/cache/" in said
    assert said.count("\n") == 1


def test_archive_may_not_leave_its_folder(root, capsys):
    pin = archive(root / "build/cache", "1.0", {"../../x": "x"}.items())
    (root / "upstream.txt").write_text(str(pin))
    assert call(root, "checkout") == 1
    assert "outside the destination" in capsys.readouterr().err
    assert not tree(root).exists()


def test_wheel_must_equal_the_tree(root, tmp_path):
    patched(root)
    source = tmp_path / "source"
    wheel.copy(tree(root), "made", source)
    want = wheel.expected(source)
    assert "keras/ops/__init__.py" in want and "keras/src/new.py" in want
    packed = tmp_path / "x.whl"
    with zipfile.ZipFile(packed, "w") as file:
        for name, data in want.items():
            file.writestr(name, data)
    wheel.compare(packed, source)
    with zipfile.ZipFile(packed, "a") as file:
        file.writestr("keras/conftest.py", "")
    with pytest.raises(upstream.ForkError, match="keras/conftest.py"):
        wheel.compare(packed, source)
