"""``tests/artifacts`` holds artifacts as older versions exported them: they still run, and say what they are.

format-2: two random layers of qwen3_5_text by ``--kernels hybridge`` and ExecuTorch 1.4.1; methods without a prefix.
"""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from hybridge.__main__ import app
from hybridge.runtime import Session

FORMAT_2 = Path(__file__).parent / "artifacts/format-2"
PROMPT = [5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41]
GREEDY = [
    24,
    104,
    35,
    65,
    104,
    76,
    97,
    112,
    7,
    11,
    0,
    127,
    22,
    15,
    12,
    48,
    67,
    127,
    22,
    15,
    12,
    65,
    17,
    96,
    35,
    91,
    114,
    42,
    127,
    113,
]
"""What the version that exported it generated."""


def test_a_session_gives_the_same_tokens() -> None:
    session = Session.load(FORMAT_2)
    assert list(session.generate(PROMPT, max_new_tokens=len(GREEDY))) == GREEDY
    session.reset()
    session.prefill(PROMPT)
    session.snapshot(0)
    session.verify([*GREEDY[:2], 1])
    session.commit(2)
    assert [int(session.decode(token).argmax()) for token in GREEDY[2:6]] == GREEDY[3:7]
    session.restore(0)
    assert int(session.decode(GREEDY[0]).argmax()) == GREEDY[1]


def test_inspect_says_what_it_is_and_what_to_do() -> None:
    shown = " ".join(CliRunner().invoke(app, ["inspect", str(FORMAT_2)]).stdout.split())
    assert (
        "Format version 2: the stock runners of ExecuTorch 1.5 give wrong text with it. Export the model again for them."
        in shown
    )
