"""What comes of a native harness that ends, or is left, in the middle of an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.cache.errors import NativeError
from hybridge.runtime import open_artifact
from hybridge.runtime.native import NativeProcess, command

ENDS: dict[str, tuple[str, str]] = {
    "in its logits": ("echo ok 3 100; printf 12345678", r"ended after 8 of 400 bytes of its logits with exit code 3: gone"),
    "in its line": ("printf 'ok 3'", r"ended with exit code 3: gone"),
    "before it": ("true", r"ended with exit code 3: gone"),
}


@pytest.mark.parametrize("where", ENDS)
def test_an_answer_that_is_cut_off_is_said(where: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "harness"
    script.write_text(f"#!/bin/sh\necho ready\nread line\n{ENDS[where][0]}\necho gone >&2\nexit 3\n")
    script.chmod(0o700)
    monkeypatch.setattr(command, "build", lambda: script)
    process = NativeProcess(open_artifact(small))
    with pytest.raises(NativeError, match=ENDS[where][1]):
        process.ask("0 reset")


def test_an_answer_that_nobody_waited_for_is_not_taken_for_another(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "harness"
    script.write_text("#!/bin/sh\necho ready\nwhile read line; do echo ok 3 0; done\n")
    script.chmod(0o700)
    monkeypatch.setattr(command, "build", lambda: script)

    def interrupted() -> list[str]:
        raise KeyboardInterrupt

    with NativeProcess(open_artifact(small)) as process:
        assert process.ask("0 reset").length == 3
        with monkeypatch.context() as patch:
            patch.setattr(process, "_read", interrupted)
            with pytest.raises(KeyboardInterrupt):
                process.ask("0 reset")
        with pytest.raises(NativeError, match="interrupted before its answer"):
            process.ask("0 reset")
