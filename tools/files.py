"""Plain files: reading a folder, writing one file whole or not at all."""

import dataclasses
import fnmatch
import hashlib
import os
import pathlib

from upstream import ForkError

# What editors and test runs leave behind: no part of a patch set or a tree.
JUNK = ("__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis")
JUNK += ("*.pyc", "*.part", "*.orig", "*.rej", "*.swp", "*~", ".DS_Store")


def is_junk(path):
    parts = pathlib.PurePath(path).parts
    return any(fnmatch.fnmatch(x, row) for x in parts for row in JUNK)


@dataclasses.dataclass(frozen=True)
class File:
    data: bytes
    executable: bool = False


def scan(root, folder):
    """Returns {path relative to root: File} of the files under a folder."""
    root = pathlib.Path(root)
    found = {}
    for path in sorted(pathlib.Path(root, folder).rglob("*")):
        name = path.relative_to(root).as_posix()
        if is_junk(name):
            continue
        if path.is_symlink():
            raise ForkError(
                "A patch set holds plain files. "
                f"Received: a symbolic link, {name}. Put a file there."
            )
        if path.is_file():
            executable = bool(path.stat().st_mode & 0o100)
            found[name] = File(path.read_bytes(), executable)
    return found


def marks(files):
    """Returns {path: mark}; a mark changes when its file does."""
    return {
        name: hashlib.sha256(file.data).hexdigest() + "x" * file.executable
        for name, file in files.items()
    }


def write(path, data, executable=False):
    """Writes a file whole or not at all, and only if it must change."""
    mode = 0o755 if executable else 0o644
    path = pathlib.Path(path)
    if path.is_file() and path.read_bytes() == data:
        if bool(path.stat().st_mode & 0o100) == executable:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    os.chmod(part, mode)
    os.replace(part, path)
    return True
