"""``scripts/trust on-aarch64`` without the hours that it takes: it refuses wrong machines, and does each step once."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from campaigns.on_aarch64 import __main__ as on_aarch64
from campaigns.on_aarch64 import machine, root
from campaigns.on_aarch64.journal import Journal, StepError
from packaging.markers import Marker


def test_a_step_is_done_once_for_a_key(tmp_path: Path) -> None:
    calls: list[int] = []

    def work(number: int) -> dict[str, int]:
        calls.append(number)
        return {"number": number}

    journal = Journal(tmp_path)
    assert journal.step("a/b", "key", work, 1) == {"number": 1}
    assert Journal(tmp_path).step("a/b", "key", work, 2) == {"number": 1}
    assert Journal(tmp_path).step("a/b", "another key", work, 3) == {"number": 3}
    assert calls == [1, 3]
    journal.forget()
    journal.step("a/b", "another key", work, 4)
    assert calls == [1, 3, 4]


def test_a_step_that_fails_is_done_again_and_says_what_failed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    words = [sys.executable, "-c", "import sys; sys.exit('no such wheel')"]
    for _ in range(2):
        with pytest.raises(StepError, match=r"ended with 1: (.|\n)*no such wheel\n(.|\n)*log\.txt"):
            journal.step("packages", "key", journal.run, words)
    assert not list((tmp_path / "steps").iterdir())
    assert "no such wheel" in journal.log.read_text(encoding="utf-8")


def test_what_a_command_prints_comes_apart_from_its_errors(tmp_path: Path) -> None:
    words = [sys.executable, "-c", r"import sys; print('aside', file=sys.stderr); sys.stdout.buffer.write(b'\xffanswer')"]
    journal = Journal(tmp_path)
    assert journal.run(words) == "\xffanswer"
    assert "aside" in journal.log.read_text(encoding="utf-8")


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine that has everything but what is said."""

    def without(*missing: str) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(machine.os, "geteuid", lambda: 0)
        monkeypatch.setattr(shutil, "which", lambda name: None if name in missing else f"/usr/bin/{name}")
        listed = "Available CPUs:\n  cortex-a53\n  max\n"
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=listed))

    return without


QEMU = ("qemu-aarch64-static", "qemu-aarch64")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (QEMU, "install Debian's package qemu-user-static"),
        (("debootstrap",), "there is no debootstrap here; install Debian's package debootstrap"),
        (("unshare", "nsenter", "gpgv"), "there is no gpgv and no unshare and no nsenter here; install .* gpgv and util-linux"),
    ],
)
def test_it_says_what_to_install(
    ready: Callable[..., None], missing: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ready(*missing)
    with pytest.raises(SystemExit, match="2"):
        machine.check(["max"])
    assert_said(message, capsys)


def test_it_refuses_what_cannot_work(
    ready: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ready()
    machine.check(["max", "max,sve=off", "cortex-a53"])
    with pytest.raises(SystemExit, match="2"):
        machine.check(["max", "m4"])
    assert_said("qemu has no processor 'm4'; choose of: cortex-a53, max", capsys)
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="2"):
        machine.check(["max"])
    assert_said("can only be made by root; run it with sudo", capsys)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(SystemExit, match="2"):
        machine.check(["max"])
    assert_said("is ARM64 itself", capsys)


def assert_said(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(message, capsys.readouterr().err)


def test_a_folder_of_others_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(SystemExit, match="2"):
        on_aarch64.claimed(tmp_path)
    assert_said("has files that this script has not made", capsys)
    assert on_aarch64.claimed(on_aarch64.claimed(tmp_path / "own")) == tmp_path / "own"


def test_the_mirror_is_that_of_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    def says(text: str) -> None:
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=text))

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    says("http://mirror.example/debian\nhttp://mirror.example/debian\n")
    assert root.mirror() == "http://mirror.example/debian"
    says("")  # Ubuntu
    assert root.mirror() is None
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert root.mirror() is None


def test_the_bits_of_a_processor_have_linux_names() -> None:
    # AT_HWCAP and AT_HWCAP2 of a Neoverse N1 and N2: Linux's asm/hwcap.h has asimddp as bit 20, i8mm as bit 13 of the second.
    assert machine.named(1 << 0 | 1 << 1 | 1 << 8 | 1 << 20, 0) == ["fp", "asimd", "atomics", "asimddp"]
    assert machine.named(1 << 22 | 1 << 31, 1 << 1 | 1 << 13 | 1 << 18) == ["sve", "pacg", "sve2", "i8mm", "mte"]


def test_pip_chooses_for_the_root_and_not_for_this_machine() -> None:
    # executorch requires coremltools on x86-64 alone: there is no wheel of it for ARM64, and nothing could be installed.
    program = root.PIP.replace("sys.exit(main())", "").strip() + "\n" + MARKED
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == [False, True]
    assert Marker('platform_machine == "x86_64"').evaluate() is (platform.machine() == "x86_64")


MARKED = """
import json
from pip._vendor.packaging.markers import Marker
print(json.dumps([Marker(f'platform_machine == "{name}"').evaluate() for name in ("x86_64", "aarch64")]))
"""


def test_what_is_unpacked_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "packages"
    (target / "earlier").mkdir(parents=True)
    with pytest.raises(StepError):
        root.unpack_hybridge(target, Journal(tmp_path), tmp_path / "no-such-1.0-py3-none-any.whl")
    assert [each.name for each in target.iterdir()] == ["earlier"]
