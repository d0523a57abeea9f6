"""/proc/cpuinfo and /sys as Linux on ARM64 has them, for the processor that qemu shows.

g++ reads there what ``-march=native`` means, the kernels' cache which processor it is for, and PyTorch both: caches as this
machine's /sys has them kill it. qemu gives programs the bits that the kernel would (AT_HWCAP), but before 8.2 this machine's
/proc/cpuinfo, which names no instruction set of ARM64.
"""

from __future__ import annotations

from pathlib import Path

from campaigns.on_aarch64.emulation import Emulation

# Linux's names of the bits, from bit 0 on: arch/arm64/kernel/cpuinfo.c.
HWCAP = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4 "
    "asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg"
)
HWCAP2 = (
    "dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4 flagm2 frint svei8mm svef32mm svef64mm svebf16 i8mm bf16 dgh rng "
    "bti mte"
)
CORE = {
    **dict.fromkeys(("online", "possible", "present", "cpu0/topology/core_id", "cpu0/topology/physical_package_id"), "0"),
    "cpu0/regs/identification/midr_el1": "0x00000000000f0000",  # "see the instruction sets"
}
ASK = "import ctypes; ask = ctypes.CDLL(None).getauxval; ask.restype = ctypes.c_ulong; print(ask(16), ask(26))"  # AT_HWCAP, 2


def features(emulation: Emulation, cpu: str) -> list[str]:
    """Return the names of the instruction sets that programs see on ``cpu``."""
    first, second = map(int, emulation.run(["python3", "-c", ASK], cpu=cpu).split())
    return named(first, second)


def named(first: int, second: int) -> list[str]:
    """Return the names of the bits of AT_HWCAP and AT_HWCAP2."""
    both = ((first, HWCAP), (second, HWCAP2))
    return [name for bits, names in both for bit, name in enumerate(names.split()) if bits >> bit & 1]


def show(emulation: Emulation, cpu: str) -> list[str]:
    """Have programs see one core that is ``cpu``; returns its instruction sets."""
    names = features(emulation, cpu)
    _write(emulation.root / "opt" / f"cpuinfo-{cpu}", cpuinfo(names))
    for name, text in CORE.items():
        _write(emulation.root / "sys/devices/system/cpu" / name, f"{text}\n")
    emulation.describe(emulation.root / "opt" / f"cpuinfo-{cpu}")
    return names


def cpuinfo(names: list[str]) -> str:
    """Return /proc/cpuinfo of a core that no compiler knows by its number, so that the names decide."""
    fields = {
        "processor": "0",
        "BogoMIPS": "100.00",
        "Features": " ".join(names),
        "CPU implementer": "0x00",
        "CPU architecture": "8",
        "CPU variant": "0x0",
        "CPU part": "0x000",
        "CPU revision": "0",
    }
    return "".join(f"{name}\t: {value}\n" for name, value in fields.items()) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
