"""hybridge-cli as one file: its size, the time to its first text, and its texts beside those of ``hybridge run``.

It is built for this processor and for ARM64, where qemu emulates two processors with other kernels. The embedded model's texts
must all be the same. Those of --artifact are only counted: where two tokens are almost as likely, each instruction set's sums
may choose another.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import cross_cli

from campaigns import campaign
from hybridge.export.cli.embedded import export_embedded

HERE, ARM = f"{platform.machine()}-linux", "aarch64-linux"
CPUS = ("max,sve=off", "neoverse-n1")
"""Processors of ARM64 for qemu: all instructions but SVE, whose emulation is slow, and dot products without matrix products."""
PROMPTS = ("def open_file(name", "The capital of France is", "import ", "Zwölf große Boxkämpfer, 漢字 and\n\n")
OPTIONS: tuple[tuple[str, ...], ...] = ((), ("--temperature", "0.8", "--top-p", "0.95", "--seed", "7"))
LIMIT, FIRST_TEXT = 25e6, 0.2
"""Bytes, and seconds to the first text of the embedded model."""
STARTS = 21


Command = Sequence[str | Path]


def main() -> int:
    """Print tables; exit code 1 for another text of the embedded model, a larger file or a later first text."""
    parser = campaign.parser("one-file-cli", __doc__)
    parser.add_argument("--artifact", type=Path, action="append", default=[], help="another artifact to try, repeatable")
    parser.add_argument("--tokens", type=int, default=48, help="new tokens of each text (default: 48)")
    parser.add_argument("--build", type=Path, default=Path.home() / ".cache/hybridge/cross-cli", help="folder to compile in")
    options = parser.parse_args()
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        parser.error("there is no emulator; install Debian's package qemu-user-static")
    with tempfile.TemporaryDirectory(prefix="hybridge-one-file-") as scratch:
        here, arm = (
            cross_cli.build(cross_cli.target_of(target), options.build / target, Path(scratch) / target)
            for target in (HERE, ARM)
        )
        embedded = Path(scratch) / "embedded"
        export_embedded(*(embedded / name for name in ("target", "draft", "dspark")))
        programs = {HERE: [here], **{f"{ARM}, {cpu}": [emulator, "-cpu", cpu, arm] for cpu in CPUS}}
        same, *_ = [compare(folder, programs, options.tokens) for folder in (embedded / "target", *options.artifact)]
        sizes = {target: made.stat().st_size for target, made in ((HERE, here), (ARM, arm))}
        first = median(seconds_to_first_text([here], embedded / "target") for _ in range(STARTS))
    print("\n| one file for | MB |\n|---|---|")
    for target, size in sizes.items():
        print(f"| {target} | {size / 1e6:.1f} |")
    print(f"\nFirst text of the embedded model on {HERE}: {first:.3f} s, median of {STARTS} starts")
    return 0 if same and max(sizes.values()) <= LIMIT and first <= FIRST_TEXT else 1


def compare(artifact: Path, programs: Mapping[str, Command], tokens: int) -> bool:
    """Print how many texts of each program are those of ``hybridge run``; return whether all are."""
    texts = [[*words, "--prompt", prompt, "--max-new-tokens", str(tokens)] for prompt in PROMPTS for words in OPTIONS]
    hybridge = [Path(sys.executable).with_name("hybridge")]
    wanted = [text_of(hybridge, artifact, words) for words in texts]
    print(f"\n| {artifact.name} | the texts of hybridge run |\n|---|---|")
    counts = []
    for name, program in programs.items():
        counts.append(sum(text_of(program, artifact, words) == text for words, text in zip(texts, wanted, strict=True)))
        print(f"| {name} | {counts[-1]} of {len(texts)} |", flush=True)
    return set(counts) == {len(texts)}


def text_of(program: Command, artifact: Path, words: Sequence[str]) -> bytes:
    """Return what ``run`` prints. Raises CalledProcessError if it fails."""
    return subprocess.run([*program, "run", artifact, *words], check=True, stdout=subprocess.PIPE).stdout


def seconds_to_first_text(program: Command, artifact: Path) -> float:
    """Return the seconds from the start of the process to the first byte, which comes with the first token."""
    words = [*program, "run", artifact, "--prompt", PROMPTS[0], "--max-new-tokens", "1"]
    began = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
