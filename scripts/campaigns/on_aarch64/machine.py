"""Run programs of ARM64 like any other in a Debian root of that processor, and leave nothing of it outside.

Linux starts a foreign program through the interpreter that is registered for its first bytes (binfmt_misc). Since 6.7 a user
namespace has registrations of its own. So qemu is registered in one that a process of ours holds open, together with the mounts
that the root needs and all that runs there. When this script ends, however it does, that process ends, and all of it is gone.

The root also gets a /proc/cpuinfo and a /sys as Linux on ARM64 has them: g++ reads there what ``-march=native`` means, the
kernels' cache which processor it is for, and PyTorch both; this machine's caches in /sys end PyTorch's process. qemu gives
programs the bits that the kernel would (AT_HWCAP), but before 8.2 this machine's /proc/cpuinfo, which names no instruction set.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from campaigns.on_aarch64.journal import Journal, StepError

COMMANDS = {
    "debootstrap": "debootstrap",
    "gpgv": "gpgv",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "chroot": "coreutils",
    "g++": "g++",
}
"""Commands, and Debian's packages that have them."""


def refuse(text: str) -> NoReturn:
    """End with exit code 2."""
    print(f"scripts/trust on-aarch64: {text}", file=sys.stderr)
    raise SystemExit(2)


def emulator() -> str:
    """Return qemu's path; Debian 13 has it without the suffix, and static as well. Exits with 2 where there is none."""
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    return found or refuse("there is no qemu-aarch64-static here; install Debian's package qemu-user-static.")


def check(cpus: Sequence[str]) -> None:
    """Exit with 2, saying what to do, where something is missing or a processor is unknown to qemu."""
    if platform.machine() == "aarch64":
        refuse("this machine is ARM64 itself; scripts/test runs the tests on it, and scripts/demo the rest.")
    if os.geteuid() != 0:
        refuse("a Debian root can only be made by root; run it with sudo.")
    if missing := [name for name in COMMANDS if not shutil.which(name)]:
        packages = dict.fromkeys(COMMANDS[name] for name in missing)
        refuse(f"there is no {' and no '.join(missing)} here; install Debian's package {' and '.join(packages)}.")
    known = processors()
    if unknown := [cpu for cpu in cpus if cpu.split(",")[0] not in known]:
        refuse(f"qemu has no processor {unknown[0]!r}; choose of: {', '.join(known)}.")


def processors() -> list[str]:
    """Return what qemu knows. It ends with 1 behind the list."""
    listed = subprocess.run([emulator(), "-cpu", "help"], capture_output=True, text=True, check=False).stdout
    return listed.partition(":")[2].split() or refuse("qemu does not list its processors; install qemu-user-static again.")


# ELF, 64 bits, little endian, any ABI, executable or shared object, for machine 183 (AArch64); after qemu's own registration.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
ALL_IDS = "0 0 4294967295"
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}


class Emulation:
    """A context in which ``run`` starts programs of the Debian in ``root``."""

    def __init__(self, root: Path, journal: Journal) -> None:
        self.root, self._journal = root, journal

    def __enter__(self) -> Emulation:
        self._holder = subprocess.Popen(["unshare", "--user", "--mount", "--pid", "--fork", "cat"], stdin=subprocess.PIPE)
        try:
            self._name_users()
            self._register()
            self._mount("-t", "proc", "proc", self.root / "proc")
            self._try()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the namespaces."""
        self._holder.communicate()

    def run(self, words: Sequence[str | Path], *, cpu: str = "max", environment: Mapping[str, str] | None = None) -> str:
        """Return what a program of the root prints, on the processor that qemu calls ``cpu``. Raises StepError."""
        return self._journal.run([*self._inside(), "chroot", self.root, *words], env=self._environment(cpu, environment or {}))

    def describe(self, cpuinfo: Path) -> None:
        """Have programs read ``cpuinfo`` as /proc/cpuinfo."""
        self._mount("--bind", cpuinfo, self.root / "proc/cpuinfo")

    def _environment(self, cpu: str, more: Mapping[str, str]) -> dict[str, str]:
        return {**ENVIRONMENT, "QEMU_CPU": cpu, **more}

    def _inside(self) -> list[str]:
        holder = self._holder.pid
        return ["nsenter", "--target", str(holder), "--user", "--mount", f"--pid=/proc/{holder}/ns/pid_for_children"]

    def _mount(self, *words: str | Path) -> None:
        self._journal.run([*self._inside(), "mount", *words])

    def _name_users(self) -> None:
        """Give the new namespace all users of this machine, once it is there: packages have files of several."""
        own, theirs = (f"/proc/{pid}/ns/user" for pid in ("self", self._holder.pid))
        while self._holder.poll() is None and os.readlink(own) == os.readlink(theirs):
            time.sleep(0.01)
        if self._holder.poll() is not None:
            raise StepError(
                "this machine allows no user namespaces (a container?); sysctl user.max_user_namespaces says how many."
            )
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{self._holder.pid}/{kind}").write_text(ALL_IDS)

    def _register(self) -> None:
        """With F the emulator's file is opened here and now: the root needs no copy."""
        line = f":hybridge-aarch64:M::{MAGIC}:{MASK}:{emulator()}:F"
        try:
            self._mount("-t", "binfmt_misc", "binfmt_misc", BINFMT)
            self._journal.run([*self._inside(), "sh", "-c", 'printf %s "$0" > "$1"', line, BINFMT / "register"])
        except StepError:  # Linux before 6.7: this machine's registration will do, if it has one
            self._journal.say("no registration of our own is possible here; this machine's is used, if there is one")

    def _try(self) -> None:
        try:
            self.run(["/bin/true"])
        except StepError as error:
            raise StepError(
                f"programs of ARM64 do not start here. Linux before 6.7 needs qemu registered for the whole machine: install "
                f"Debian's package binfmt-support beside qemu-user-static.\n{error}"
            ) from None


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
