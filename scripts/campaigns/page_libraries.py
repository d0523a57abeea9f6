"""Fetch the libraries of the chat page again: archives of exact versions, by hash, into runtime/server/page/vendor."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from campaigns import ROOT, campaign

VENDOR = ROOT / "runtime" / "server" / "page" / "vendor"


@dataclass(frozen=True)
class Library:
    """A package of npm's.

    Args:
        name: the package's.
        sha256: of its archive.
        files: our files by their paths in it.
        hashes: SHA-256 of our files, in the same order.
    """

    name: str
    version: str
    sha256: str
    files: dict[str, str]
    hashes: tuple[str, ...]


LIBRARIES = (
    Library(
        "marked", "18.2.1", "d66c5213fc203466186060105b01f51896764ba64b3797d2620d02e28e34b8ca",
        {"lib/marked.esm.js": "marked.esm.js", "LICENSE": "marked.LICENSE"},
        (
            "5371fea86fd0656b4fc7bea7c94c663109d82789b69433eeee78d42895aa44de",
            "8e3a3f82f59a60958f56ca08f445647c32a4733dc7ca6c2c46f6eb898471ab9c",
        ),
    ),
    Library(
        "dompurify", "3.5.0", "faa5f2bfe2814384b83d6edb4ed66812fbfdb2a654b4d59edd4b12304058ec20",
        {"dist/purify.min.js": "purify.min.js", "LICENSE": "purify.LICENSE"},
        (
            "f69a46022ab1f53e969c8ebbca98172c8995785a9b3be72ea4a12d25b1a1bf67",
            "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
        ),
    ),
    Library(
        "@highlightjs/cdn-assets", "11.12.0", "b8a006d30f45afe783072569f3d69c5b60c0e7b9ca28cd474e12f2584e2a3bd9",
        {"es/highlight.min.js": "highlight.min.js", "LICENSE": "highlight.LICENSE"},
        (
            "1ed8fc5256b738b8875b74e4d3f0754f60d6411fb034d618dfbc4e6e6c9999d7",
            "6c081431591d9df696c82dc598fe1423765b8a299b200ed00b281afd0f64c490",
        ),
    ),
)  # fmt: skip


def fetch(library: Library, folder: Path) -> dict[str, bytes]:
    """Return the files of a library by our names for them. Raises ValueError for an archive or a file with another hash."""
    wanted = f"{library.name}@{library.version}"
    subprocess.run(["npm", "pack", "--silent", "--ignore-scripts", wanted], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    archive = folder / f"{library.name.lstrip('@').replace('/', '-')}-{library.version}.tgz"
    check(wanted, archive.read_bytes(), library.sha256)
    found: dict[str, bytes] = {}
    with tarfile.open(archive) as opened:
        for (path, name), sha256 in zip(library.files.items(), library.hashes, strict=True):
            member = opened.extractfile(f"package/{path}")
            if member is None:
                raise ValueError(f"{wanted} has no file {path}.")
            found[name] = member.read()
            check(f"{path} of {wanted}", found[name], sha256)
    return found


def check(name: str, content: bytes, sha256: str) -> None:
    """Raise ValueError if a content has another hash."""
    if (actual := hashlib.sha256(content).hexdigest()) != sha256:
        raise ValueError(f"{name} has the SHA-256 {actual}, not {sha256}.")


def main() -> int:
    """Write the files, and print their sizes."""
    campaign.parser("page-libraries", __doc__).parse_args()
    VENDOR.mkdir(exist_ok=True)
    for library in LIBRARIES:
        with tempfile.TemporaryDirectory() as scratch:
            for name, content in fetch(library, Path(scratch)).items():
                (VENDOR / name).write_bytes(content)
                print(f"{name:20} {len(content):7,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
