"""Programs of ARM64 started like any other, in a Debian root of that processor, and nothing of it outside of ours.

Linux starts a foreign program through the interpreter that is registered for its first bytes (binfmt_misc). Since 6.7 a user
namespace has registrations of its own. So qemu is registered in one that a process of ours holds open, together with the mounts
that the root needs and all that runs there. When this script ends, however it does, that process ends, and all of it is gone.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from campaigns.on_aarch64.journal import Journal, StepError
from campaigns.on_aarch64.needs import emulator

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
