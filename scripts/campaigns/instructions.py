"""Print how many products an instruction makes in the innermost loops of 4-bit weights, for each instruction set and compiler.

From the assembly, so no such processor is needed. A tile is 16 rows of weights by T tokens; MAC is one multiply-accumulate of
8-bit numbers; stack counts accesses to memory for registers that did not suffice. Exits 1 if a target is not reached.

With --cycles neoverse-n2, or another processor that LLVM has a model of, also how many cycles that takes for a round, and how
many products it makes in one, by llvm-mca of LLVM 16 or newer (older ones model all ARM processors as one).
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from campaigns import ROOT, campaign
from hybridge.runtime.kernels import library
from hybridge.runtime.kernels.compiling import instruction_sets

CROSS = ROOT / "tests" / "cross"
TARGETS = {  # MAC an instruction, at least, by tokens
    "avx2": {1: 5, 4: 7},
    "avxvnni": {1: 7, 4: 12},
    "avx512vnni": {1: 11, 8: 30, 12: 38},
    "dotprod": {1: 6, 4: 9, 8: 9},
    "i8mm": {1: 6, 4: 11, 8: 14},
}
MACS = {"sdot": 16, "smmla": 32, "vpdpbusd": 16, "vpmaddubsw": 16}  # x86's in 128 bits
WIDTHS = {"x": 1, "y": 2, "z": 4}
BRANCH = re.compile(r"^(?:j\w+|b\.?\w*|cbn?z|tbn?z)\s+(?:.*,\s*)?([.\w$]+)$")


@dataclass(frozen=True)
class Compiler:
    """A command that writes assembly for one kind of processor."""

    name: str
    machine: str
    command: tuple[str, ...]
    is_zig: bool = False

    def assembly(self, flags: tuple[str, ...], source: str) -> str:
        """Return what it makes of the source."""
        if self.is_zig:  # it knows processors by names of its own, and adds checks
            flags = (
                "-g0",
                "-fno-sanitize=all",
                *(re.sub(r"^-march=armv8\.2-a", "-mcpu=generic+v8_2a", flag) for flag in flags),
            )
            flags = tuple(flag for flag in flags if flag != "-march=x86-64")
        with tempfile.TemporaryDirectory() as folder:
            path, made = Path(folder) / "tiles.cpp", Path(folder) / "tiles.s"
            path.write_text(source, encoding="utf-8")
            headers = (f"-I{library.FOLDER}", "-include", str(CROSS / "stub_runtime.h"))
            options = [option for option in library.FLAGS if option != "-fPIC"]
            done = subprocess.run(
                [*self.command, *options, "-w", *flags, *headers, "-S", str(path), "-o", str(made)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{self.name} does not compile the kernels:\n{done.stderr[-2000:]}")
            return made.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Loop:
    """The instructions of an innermost loop."""

    lines: tuple[str, ...]
    stack: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one round."""
        return sum(map(macs_of, self.lines))


def compilers() -> list[Compiler]:
    """Return those that are here."""
    zig = (sys.executable, "-m", "ziglang", "c++", "-target")
    found = [
        Compiler("clang", machine, (*zig, f"{machine}-linux-musl"), True)
        for machine in ("x86_64", "aarch64")
        if find_spec("ziglang")
    ]
    installed = {each: shutil.which(f"{each}-linux-gnu-g++") for each in ("x86_64", "aarch64")}
    return found + [Compiler("g++", machine, (command,)) for machine, command in installed.items() if command]


def macs_of(line: str) -> int:
    """Return the products of one instruction."""
    name = next((word for word in MACS if re.search(rf"\b{word}\b", line)), None)
    if name is None:
        return 0
    registers = re.findall(r"%([xyz])mm", line)
    return MACS[name] * (max(WIDTHS[width] for width in registers) if registers else 1)


def functions(assembly: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the tokens of each tile with the lines of its function."""
    for part in re.split(r"^(?=_ZN\w*12integer_tileILi4ELi\d+E\w*:)", assembly, flags=re.MULTILINE)[1:]:
        tokens = re.match(r"\w*?ILi4ELi(\d+)E", part)
        assert tokens
        lines = (
            re.split(r"//|(?:^|\s)#(?:\s|[A-Z])", line)[0].strip() for line in part.split(".cfi_endproc")[0].splitlines()[1:]
        )
        yield int(tokens[1]), [line for line in lines if line]


def hottest(lines: list[str]) -> Loop:
    """Return the innermost loop with the most products."""
    code, labels = [], {}
    for line in lines:
        if label := re.match(r"^([.\w$]+):", line):
            labels[label[1]] = len(code)
        elif not line.startswith("."):
            code.append(line)
    ends = [(labels[found[1]], at + 1) for at, line in enumerate(code) if (found := BRANCH.match(line)) and found[1] in labels]
    loops = {(begin, end) for begin, end in ends if begin < end}
    inner = [
        loop for loop in loops if not any(loop != other and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)
    ]
    stack = re.compile("|".join(frame_pointers(code)))
    made = [Loop(body := tuple(code[slice(*loop)]), sum(bool(stack.search(line)) for line in body)) for loop in inner]
    return max(made, key=lambda loop: (loop.macs, -len(loop.lines)))


def frame_pointers(code: list[str]) -> Iterator[str]:
    """Yield patterns of accesses to the stack."""
    yield from (r"\(%rsp", r"\[sp")
    if any(re.match(r"movq\s+%rsp, %rbp", line) for line in code):
        yield r"\(%rbp"
    if any(re.match(r"(mov\s+x29, sp|add\s+x29, sp)", line) for line in code):
        yield r"\[x29"


def loops_of(compiler: Compiler, name: str, flags: tuple[str, ...]) -> list[tuple[str, str, int, Loop]]:
    """Return instruction set, compiler, tokens and loop of each tile."""
    tiles = "".join(
        f"template void integer_tile<4, {tokens}>(const Product&, int64_t, int64_t, float*);" for tokens in TARGETS[name]
    )
    assembly = compiler.assembly(flags, f'#include "packed_product.h"\nnamespace hybridge {{ {tiles} }}\n')
    return [(name, compiler.name, tokens, hottest(lines)) for tokens, lines in functions(assembly)]


def cycles_of(loop: Loop, analyzer: str, machine: str, cpu: str) -> float:
    """Return the cycles of one round on a processor, as LLVM models it."""
    rounds = 200
    options = [
        f"-mtriple={machine}",
        f"-mcpu={cpu}",
        f"-iterations={rounds}",
        *(["-mattr=+dotprod,+i8mm"] if machine == "aarch64" else []),
    ]
    done = subprocess.run(
        [analyzer, *options, "-"], input="\n".join(loop.lines) + "\n", capture_output=True, text=True, check=False
    )
    found = re.search(r"^Total Cycles:\s+(\d+)", done.stdout, flags=re.MULTILINE)
    if not found:
        raise SystemExit(f"{analyzer} does not understand a loop for {cpu}:\n{done.stderr[-500:]}")
    return int(found[1]) / rounds


def analyzer_of(cpu: str) -> tuple[str, str]:
    """Return the newest llvm-mca and the kind of machine for which it knows the processor. Exits with 2 where there is none."""
    newest = next(
        (found for version in range(30, 15, -1) if (found := shutil.which(f"llvm-mca-{version}"))), shutil.which("llvm-mca")
    )
    if not newest:
        print(
            "--cycles needs llvm-mca of LLVM 16 or newer, and there is none (Debian's package llvm-19 has it)", file=sys.stderr
        )
        raise SystemExit(2)
    for machine in ("aarch64", "x86_64"):
        asked = subprocess.run(
            [newest, f"-mtriple={machine}", f"-mcpu={cpu}", "-"], input="nop\n", capture_output=True, text=True, check=False
        )
        if asked.returncode == 0 and "not a recognized processor" not in asked.stderr:
            return newest, machine
    print(f"{newest} knows no processor {cpu!r}", file=sys.stderr)
    raise SystemExit(2)


def arguments() -> argparse.Namespace:
    """Parse the arguments."""
    parser = campaign.parser("instructions", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", metavar="CPU", help="also the cycles that this processor takes, as LLVM models it")
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    cpu = arguments().cycles
    analyzer, machine = analyzer_of(cpu) if cpu else ("", "")
    work = [
        (compiler, each.name, each.flags)
        for compiler in compilers()
        for each in instruction_sets(compiler.machine)
        if each.name in TARGETS and machine in ("", compiler.machine)
    ]
    if not work:
        raise SystemExit("neither the ziglang wheel nor g++ is here")
    with ThreadPoolExecutor(2) as pool:
        rows = [row for rows in pool.map(lambda job: loops_of(*job), work) for row in rows]
    more = f" cycles on {cpu} | MAC a cycle |" if cpu else ""
    print(f"| instruction set | compiler | T | instructions | stack | MAC an instruction | target |{more}")
    print(f"{'|---' * (9 if cpu else 7)}|")
    missed = False
    for name, compiler, tokens, loop in sorted(rows, key=lambda row: (list(TARGETS).index(row[0]), row[2], row[1])):
        reached, target = loop.macs / len(loop.lines), TARGETS[name][tokens]
        missed |= reached < target or loop.stack > 0
        row = f"| {name} | {compiler} | {tokens} | {len(loop.lines)} | {loop.stack} | {reached:.1f} | {target} |"
        if cpu:
            cycles = cycles_of(loop, analyzer, machine, cpu)
            row += f" {cycles:.1f} | {loop.macs / cycles:.1f} |"
        print(row)
    if missed:
        raise SystemExit("a target is not reached, or registers did not suffice")


if __name__ == "__main__":
    main()
