"""Calls git so that no setting of the user or the machine changes a result.

Every call goes through `git()`: it drops the `GIT_*` variables, reads no
global or system configuration and sets what patches and commit ids depend on.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile

from files import JUNK

SETTINGS = {
    "core.autocrlf": "false",
    "core.fileMode": "true",
    "core.excludesFile": os.devnull,
    "core.attributesFile": os.devnull,
    "core.hooksPath": os.devnull,
    "core.quotePath": "false",
    "apply.whitespace": "nowarn",
    "diff.algorithm": "myers",
    "diff.indentHeuristic": "true",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "user.name": "fork.py",
    "user.email": "fork.py@localhost",
}
DATE = "2000-01-01T00:00:00+0000"


class GitError(Exception):
    """A git command failed; the text is what git said."""


def git(folder, *args, data=None, own=False, env=None):
    """Runs git in `folder` and returns its output as bytes.

    With `own` the user's configuration stays in force, for commits that are
    made in the user's name.
    """
    keep = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    settings = {"core.autocrlf": "false", "apply.whitespace": "nowarn"}
    if not own:
        settings = SETTINGS
        keep.update(
            GIT_CONFIG_GLOBAL=os.devnull,
            GIT_CONFIG_NOSYSTEM="1",
            GIT_AUTHOR_DATE=DATE,
            GIT_COMMITTER_DATE=DATE,
        )
    options = [x for row in settings.items() for x in ("-c", "=".join(row))]
    done = subprocess.run(
        ["git", *options, *args],
        cwd=folder,
        input=data,
        capture_output=True,
        env=keep | {"LC_ALL": "C"} | (env or {}),
    )
    if done.returncode:
        said = (done.stderr + done.stdout).decode("utf-8", "replace").strip()
        raise GitError(f"git {' '.join(args[:2])}: {said}")
    return done.stdout


def text(folder, *args, **options):
    return git(folder, *args, **options).decode().strip()


def fields(output):
    """Splits the output of a `-z` command."""
    return [part for part in output.decode().split("\0") if part]


def init(folder):
    """Makes a repository that behaves the same when a person works in it."""
    git(folder, "init", "-q", "--template=", "-b", "remat")
    for key, value in SETTINGS.items():
        git(folder, "config", key, value)
    info = pathlib.Path(folder, ".git", "info")
    info.mkdir()
    # Highest rank: no .gitattributes in the tree may change bytes or diffs.
    rule = "* -text !diff !merge !eol !filter !ident !working-tree-encoding\n"
    (info / "attributes").write_text(rule)
    (info / "exclude").write_text("".join(f"{row}\n" for row in JUNK))


def stage(folder, env=None):
    """Puts every file of the work tree into the index, junk excepted.

    `--force`, since a .gitignore in the tree must not hide a file.
    """
    globs = [f"**/{row}{end}" for row in JUNK for end in ("", "/**")]
    skip = [f":(exclude,glob){row}" for row in globs]
    git(folder, "add", "--all", "--force", "--", ".", *skip, env=env)


def commit(folder, message, tag):
    """Commits the whole work tree and points `tag` at the result."""
    stage(folder)
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    git(folder, "tag", "-f", tag)
    return text(folder, "rev-parse", "HEAD")


def snapshot(folder):
    """Returns the tree id of the work tree, and leaves the index alone."""
    with tempfile.TemporaryDirectory() as scratch:
        index = pathlib.Path(scratch, "index")
        # With its time: git takes an entry as old as the index for suspect and
        # reads the file; by size and time alone it would miss a quick edit.
        shutil.copy2(pathlib.Path(folder, ".git", "index"), index)
        env = {"GIT_INDEX_FILE": str(index)}
        stage(folder, env=env)
        return text(folder, "write-tree", env=env)


def changed(folder, old, new, *paths):
    """Returns {path: letter} (A, M, D or T) of what differs from old to new."""
    args = ["--name-status", "--no-renames", "-z", old, new, "--", *paths]
    row = fields(git(folder, "diff", *args))
    return dict(zip(row[1::2], row[0::2]))


def listing(folder, tree):
    """Returns {path: (mode, blob id)} of a tree or commit."""
    rows = fields(git(folder, "ls-tree", "-r", "-z", "--full-tree", tree))
    files = {}
    for row in rows:
        facts, path = row.split("\t", 1)
        mode, _, blob = facts.split()
        files[path] = (mode, blob)
    return files
