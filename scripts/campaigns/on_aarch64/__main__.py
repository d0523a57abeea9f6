"""Run hybridge on Linux for ARM64, emulated: Debian 12 with Python 3.11, PyTorch's and ExecuTorch's wheels for that processor.

What is exported on this machine runs there: hybridge run, hybridge validate, an app in C++ and one in C, each compared with
what this machine gives. Every step is done once; run it again after a failure, and it goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from campaigns import campaign
from campaigns.on_aarch64 import checks, machine, root
from campaigns.on_aarch64.checks import Here, There
from campaigns.on_aarch64.journal import ANSWER, Journal, StepError, shown
from campaigns.on_aarch64.machine import Emulation

MADE = "made-by-on-aarch64"
WITHOUT_SVE = "max,sve=off"
"""All that qemu has but SVE: its emulation is slow, and PyTorch's products of a few rows are wrong with qemu 7.2's."""
STOCK = {"demo-llm": ("demo-llm",)}
VALIDATED = {"demo": ("demo",), "demo-8da4w": ("demo-8da4w",)}
"""What is validated: an artifact, and options of the command. The first of these on the first processor alone."""
SAME = {"hybridge run": checks.demo, "examples/native": checks.native_app, "C program": checks.c_program}


def main() -> None:
    """Do all steps, and print a table of them."""
    options = arguments()
    machine.check(options.cpu)
    folder = claimed(options.root.resolve())
    journal = Journal(folder)
    try:
        steps(folder, journal, options)
    except StepError as error:
        print(f"scripts/trust on-aarch64: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    print(table(journal))


def arguments() -> argparse.Namespace:
    """Parse the arguments."""
    parser = campaign.parser(
        "on-aarch64", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=(
            "pip's own settings hold: where PIP_EXTRA_INDEX_URL is PyTorch's index of CPU wheels, 4 GB of CUDA's libraries,\n"
            "which its wheel for ARM64 needs otherwise, are left out."
        ),
    )  # fmt: skip
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/tmp/aarch64-root"),
        help="folder for the Debian root and all else (10 GB); %(default)s",
    )
    parser.add_argument("--mirror", help="of Debian; the one that apt uses here, else debootstrap's own")
    parser.add_argument(
        "--cpu", action="append", help="processor for qemu, repeatable; the first does all, the others compile and validate; "
        "max without SVE and neoverse-n1, which has dot products and no matrix products (i8mm)",
    )  # fmt: skip
    options = parser.parse_args()
    options.cpu = options.cpu or [WITHOUT_SVE, "neoverse-n1"]
    return options


def claimed(folder: Path) -> Path:
    """Return the folder, ours from now on. Exits with 2 for one with other files in it."""
    if folder.exists() and not (folder / MADE).exists() and (not folder.is_dir() or any(folder.iterdir())):
        machine.refuse(f"{folder} has files that this script has not made; give it a folder of its own by --root.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MADE).touch()
    return folder


def steps(folder: Path, journal: Journal, options: argparse.Namespace) -> None:
    """Make the root and the artifacts, then run everything in both places. Raises StepError."""
    debian, here = folder / "debian", Here(folder / "work", journal)
    if not debian.exists():
        journal.forget()
    key = digest(root.SUITE, *root.PACKAGES)
    journal.step("Debian root", key, root.make, debian, journal, options.mirror)
    key = digest(key, root.key())
    journal.step("Python packages", key, root.unpack, debian / "opt/packages", journal)
    wheel = root.wheel(folder / "wheel", journal)
    key = digest(key, wheel.read_bytes().hex())
    journal.step("hybridge's wheel", key, root.unpack_hybridge, debian / "opt/hybridge", journal, wheel)
    journal.step("exports, on this machine", key, checks.exports, here)
    with Emulation(debian, journal) as emulation:
        first, *others = (There(emulation, cpu) for cpu in options.cpu)
        for name in checks.EXPORTED:
            first.copy(here.folder / name, name)
        journal.step("requirements, by pip check", key, checks.requirements, first)
        for there in (first, *others):
            check_oracle(there, journal, key)
        validate(first, journal, key, STOCK)
        for there in (first, *others):
            build(there, journal, key)
            validate(there, journal, key, VALIDATED)
            if there is first:
                compare(here, first, journal, key)


def digest(*parts: str) -> str:
    """Return a key of the parts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def check_oracle(there: There, journal: Journal, key: str) -> None:
    """Have PyTorch multiply on a processor: what is validated is held against it. Raises StepError where it is wrong."""
    journal.step(f"PyTorch's products, {there.cpu}", digest(key, there.cpu), checks.products, there)


def build(there: There, journal: Journal, key: str) -> None:
    """Compile the kernels for a processor. Raises StepError."""
    names = machine.show(there.emulation, there.cpu)
    journal.step(f"kernels, {there.cpu}", digest(key, there.cpu, *names), checks.kernels, there)


def validate(there: There, journal: Journal, key: str, artifacts: dict[str, tuple[str, ...]]) -> None:
    """Validate artifacts on a processor. Raises StepError."""
    names = machine.show(there.emulation, there.cpu)
    for name, words in artifacts.items():
        journal.step(f"validate {name}, {there.cpu}", digest(key, there.cpu, *names), checks.validated, there, *words)


def compare(here: Here, there: There, journal: Journal, key: str) -> None:
    """Build the native SDK and run the same in both places. Raises StepError where the answers differ."""
    journal.step("C++ library, on this machine", key, checks.sdk, here)
    journal.step(f"C++ library, {there.cpu}", digest(key, there.cpu), checks.sdk, there)
    for name, run in SAME.items():
        kept = journal.step(f"{name}, on this machine", key, checks.answer, run, here)
        journal.step(f"{name}, {there.cpu}", digest(key, there.cpu), checks.same, kept[ANSWER], run, there)


def table(journal: Journal) -> str:
    """Return the steps as a table for docs/on-device.md."""
    rows = [
        f"| {name} | {done['seconds']:,.0f} | {shown(done['figures']).removeprefix(', ')} |"
        for name, done in journal.done.items()
    ]
    return "\n".join(["| step | seconds | found |", "|---|---|---|", *rows])


if __name__ == "__main__":
    main()
