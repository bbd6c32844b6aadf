import pytest

import checker
from fake import archive
from fake import put


@pytest.fixture
def root(tmp_path, monkeypatch):
    # A hostile user configuration must change nothing.
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\n autocrlf = true\n excludesFile = ~/.ignore\n"
        "[apply]\n whitespace = fix\n[commit]\n gpgSign = true\n"
        "[diff]\n noprefix = true\n context = 9\n"
    )
    (home / ".ignore").write_text("*.py\n*.patch\nbuild\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setattr(checker, "ruff", lambda: None)
    root = tmp_path / "repo"
    pin = archive(root / "build" / "cache", "1.0")
    (root / "upstream.txt").write_text(str(pin))
    put(root / "devtree" / "conftest.py", "# ours\n")
    return root
