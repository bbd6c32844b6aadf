"""Gets the pinned source archive of Keras and unpacks it.

`upstream.txt` holds the only pin, in pip's own format, so pip does the download
and the verification. A verified archive in the cache needs no network.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

PIN = re.compile(r"keras==(\S+) --hash=sha256:([0-9a-f]{64})\s*")


class ForkError(Exception):
    """The rule that was broken, what was received, and the way out."""


@dataclasses.dataclass(frozen=True)
class Pin:
    version: str
    sha256: str

    def __str__(self):
        return f"keras=={self.version} --hash=sha256:{self.sha256}\n"

    @property
    def archive(self):
        return f"keras-{self.version}.tar.gz"


def read_pin(root):
    path = pathlib.Path(root, "upstream.txt")
    content = path.read_text() if path.exists() else ""
    found = PIN.fullmatch(content)
    if not found:
        raise ForkError(
            "upstream.txt must hold one line, "
            "`keras==VERSION --hash=sha256:DIGEST`. "
            f"Received: {content[:120]!r}"
        )
    return Pin(*found.groups())


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def fetch(pin, cache):
    """Returns the verified archive of `pin`, from the cache if it is there."""
    kept = pathlib.Path(cache, pin.archive)
    if kept.exists() and digest(kept) == pin.sha256:
        return kept
    return _download(str(pin), cache, ["--require-hashes"])


def latest(version, cache):
    """Downloads a release that has no pin yet; returns its new pin.

    `version` is a version number, or "latest".
    """
    wanted = "keras\n" if version == "latest" else f"keras=={version}\n"
    archive = _download(wanted, cache, [])
    found = archive.name.removeprefix("keras-").removesuffix(".tar.gz")
    return Pin(found, digest(archive))


def _download(requirement, cache, options):
    """Downloads with pip; the file enters the cache whole or not at all."""
    os.makedirs(cache, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        wanted = pathlib.Path(scratch, "wanted.txt")
        wanted.write_text(requirement)
        command = [sys.executable, "-m", "pip", "download", "--quiet"]
        command += ["--retries", "2", "--no-deps", "--no-binary", "keras"]
        command += [*options, "--dest", scratch, "--requirement", str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True)
        found = list(pathlib.Path(scratch).glob("keras-*.tar.gz"))
        if done.returncode or len(found) != 1:
            raise ForkError(_why(requirement, done))
        kept = pathlib.Path(cache, found[0].name)
        os.replace(found[0], kept)
        return kept


def _why(requirement, done):
    said = done.stderr + done.stdout
    name = requirement.split()[0]
    if "DO NOT MATCH THE HASHES" in said:
        got = re.search(r"Got\s+([0-9a-f]{64})", said)
        return (
            f"The archive of {name} must have the hash in upstream.txt. "
            f"Received: {got.group(1) if got else 'another hash'}. Nothing "
            "was unpacked. Restore upstream.txt, or ask why the registry's "
            "file changed."
        )
    errors = [x for x in said.splitlines() if x.startswith("ERROR:")]
    return (
        f"The archive of {name} could not be downloaded "
        f"(pip said: {(errors or ['nothing'])[-1].removeprefix('ERROR: ')}). "
        "With a network, try again; without one, put the archive into "
        "build/cache/ yourself: its hash will be verified."
    )


def unpack(archive, folder):
    """Unpacks the archive's single top folder as `folder`."""
    folder = pathlib.Path(folder)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
        except tarfile.TarError as error:
            raise ForkError(
                "A source archive must unpack into its own folder. "
                f"Received: {archive}: {error}"
            ) from None
        tops = list(pathlib.Path(scratch).iterdir())
        if len(tops) != 1 or not tops[0].is_dir():
            raise ForkError(
                "A source archive must hold one top folder. "
                f"Received: {sorted(x.name for x in tops)} in {archive}"
            )
        os.rename(tops[0], folder)
