"""Turns of sessions, cancels, closes, and texts that C would cut: what does not wait, what is not lost, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_programs import native_program
from numpy.typing import NDArray
from store import demo_folder

from hybridge.errors import DraftError, UsageError
from hybridge.runtime import AutoDrafter, Model, OwnDrafter, PrefixCache, PromptLookup, Session, open_artifact
from hybridge.runtime.binding.chat import Chat, chat_options
from hybridge.runtime.binding.interface import FUNCTIONS, CText, CTextArgument, SessionHandle
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.library import load
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.grammars import Grammars

PROMPT = [100, 101, 102, 103, 104, 100, 101, 102, 103, 104]


@pytest.fixture(scope="module")
def model(demo: Path) -> Model:
    return Model.open(open_artifact(demo))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer's options are those of Linux")
@pytest.mark.parametrize("program", ["turns", pytest.param("turns_sanitized", marks=pytest.mark.thorough)])
def test_turns_cancels_and_closes_of_two_models(demo: Path, program: str) -> None:
    """In C, plain and under the thread sanitizer; each step would wait for ever if it waited for another session."""
    words = [native_program(program), demo, demo_folder() / "hybridge-demo-draft/model.pte", *map(str, PROMPT)]
    environment = os.environ | {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1 halt_on_error=1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=400, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]


def in_a_round(session: Session, work: Callable[[], object]) -> None:
    """Run ``work`` in another thread while a generation of the session is in the middle of a round."""
    ended: list[bool] = []

    def watch(logits: NDArray[np.float32], token: int) -> None:
        if not ended:
            worker = threading.Thread(target=work)
            worker.start()
            worker.join(20)
            ended.append(not worker.is_alive())

    assert len(list(session.generate(PROMPT, max_new_tokens=3, watch=watch))) == 3
    assert ended == [True]


def test_what_is_looked_at_or_closed_waits_for_no_other_session(model: Model, session: Session) -> None:
    other, closed = Session(model), Session(model)
    other.prefill(PROMPT)
    kept, cache = other.checkpoint(), PrefixCache(model, 1 << 20)
    seen: list[object] = []

    def look() -> None:
        seen.extend([other.tokens, other.length, other.slots, other.note, other.room, len(other.hidden), len(other.state())])
        seen.extend([kept.parts(), kept.part(0)])
        closed.close()
        kept.close()
        cache.close()

    in_a_round(session, look)
    assert seen[0] == PROMPT
    assert len(seen) == 9


TEXTS: dict[str, Callable[[Session, Path], object]] = {
    "the path": lambda session, folder: session.save(f"{folder}/victim\0.state"),
    "the note": lambda session, folder: session.save(folder / "state", "noted\0and lost"),
    "the path ": lambda session, folder: session.load_state(f"{folder}/victim\0.state"),
    "the system prompt": lambda session, folder: Chat.open(folder, system="Be brief.\0Never lie."),
    "the path  ": lambda session, folder: Chat.open(folder).save(Path(f"{folder}/victim\0.state")),
    "the path   ": lambda session, folder: Chat.open(folder).load(Path(f"{folder}/victim\0.state")),
    "a stop string": lambda session, folder: Chat.open(folder).send("a", lambda *_: None, stop=["b\0c"]),
    "the time": lambda session, folder: JinjaTemplate("{{ strftime_now('%Y') }}").render({}, "2026-01-31T12:00:00\0"),
    "the time  ": lambda session, folder: chat_options(now="2026-01-31T12:00:00\0"),
    "the choice of a tool": lambda session, folder: Grammars.of(open_artifact(folder)).calls(
        [{"name": "a"}], AnswerFormat.named("hermes"), "a\0b"
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_nul_in_a_text_that_c_would_cut_is_refused_by_name(session: Session, demo: Path, tmp_path: Path, name: str) -> None:
    for file in demo.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "victim").write_text("mine")
    session.prefill(PROMPT)
    with pytest.raises(UsageError, match=f"{name.strip()} has a NUL character"):
        TEXTS[name](session, tmp_path)
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "state").exists()


def test_every_text_without_a_length_is_checked() -> None:
    """An argument that C reads as bytes has its length beside it; any other takes a ``CText``."""
    for name, takes in FUNCTIONS.items():
        for place, each in enumerate(takes):
            if getattr(each, "__name__", "") == "c_char_p":
                assert takes[place + 1].__name__ == "c_ulong", name
    assert load().hybridge_save.argtypes[1:] == [CTextArgument, CTextArgument]
    with pytest.raises(Exception, match="may have a NUL character"):
        load().hybridge_load(SessionHandle(), b"a path")
    assert CText("a text", b"whole") == b"whole"


class WithoutPropose:
    needs_hidden = is_cheap = False


NO_DRAFTERS: dict[str, Any] = {"a name": "lookup", "a number": 3, "a class": PromptLookup, "no propose": WithoutPropose()}


@pytest.mark.parametrize("name", NO_DRAFTERS)
def test_what_is_no_drafter_is_refused(session: Session, name: str) -> None:
    given = NO_DRAFTERS[name]
    for drafter in (lambda: given, lambda: AutoDrafter(session, given)):
        with pytest.raises(UsageError, match=r"is no drafter; give PromptLookup|(drafter|beside) is .*, but must be"):
            session.generate(PROMPT, drafter=drafter())
    assert session.tokens == []


def test_hidden_states_of_another_width_are_refused_by_their_number(model: Model) -> None:
    """Also in a session that has run nothing yet, and so has seen none."""
    width = 0
    for prompt in ([], PROMPT):
        session = Session(model)
        if prompt:
            session.prefill(prompt)
            width = session.hidden.shape[1]
        for wrong in (1, 7, 2 * width + 64):
            with pytest.raises(DraftError, match=rf"have {wrong} numbers for each token, and this model's have {width or ''}"):
                session.draft(np.zeros((1, wrong)), [5])
    fresh = Session(model)
    assert len(fresh.draft(np.zeros((1, width)), [5]).tokens) > 0
    OwnDrafter(fresh)
