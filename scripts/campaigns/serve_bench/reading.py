"""How long the first token of a text takes that was read before, and what keeping it costs."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from campaigns.serve_bench.running import Row, Running, conversation, serving, words
from hybridge.runtime.core.session import Session


def turns(one: Running, tokens: int, rounds: int) -> Iterator[Row]:
    """Yield the rows of a conversation's next turn, an edit, and a branch."""
    cold, again, edits = [], [], []
    for i in range(rounds):
        talk = conversation(tokens, 1000 * i)
        cold.append(one.ask(talk)[0])
        answer = {"role": "assistant", "content": one.ask(talk)[2]}
        again.append(one.ask([*talk, answer, {"role": "user", "content": f"go on {i}"}])[0])
        edits.append(one.ask([*talk[:2], {"role": "user", "content": f"something else {i}"}])[0])
        edits.append(one.ask([*talk, answer, {"role": "user", "content": f"back {i}"}])[0])
    base = statistics.median(cold)
    yield f"first token of {tokens} tokens that nobody has read", f"{base * 1000:.1f} ms", ""
    yield "the next turn, against reading it again", f"{statistics.median(again) / base:.1%}", "≤ 3 %"
    yield "an edited message and back, against reading it again", f"{statistics.median(edits) / base:.1%}", "≤ 3 %"


def bytes_of_a_checkpoint(session: Session, tokens: int) -> Iterator[Row]:
    """Yield the row of a checkpoint's bytes."""
    session.prefill(list(words(tokens, 5).encode()))
    made, state = session.checkpoint(), session.state()
    slots = {name for name in state if name.endswith("_slots")}
    bounded = {name.removesuffix("_slots") for name in slots}
    states = sum(state[name].nbytes for name in bounded)
    own = takewhile(lambda name: not name.endswith("drafted_length"), state)  # a drafter behind them has read nothing
    by_position = [state[name] for name in own if state[name].ndim > 1 and state[name].shape[1] > session.max_seq_len]
    rows = sum(each.nbytes // each.shape[1] * session.length for each in by_position)
    what = f"bytes of a checkpoint at {tokens} tokens ÷ bounded states and rows"
    yield what, f"{made.nbytes / (states + rows):.3f}", "≤ 1.02"


def restart(artifact: Path, tokens: int, rounds: int) -> Iterator[Row]:
    """Yield the row of a restart with a folder of checkpoints."""
    cold, warm = [], []
    for i in range(rounds):
        talk = conversation(tokens, 77 * i)
        with tempfile.TemporaryDirectory() as folder:
            for seconds in (cold, warm):
                with serving(artifact, "--cache-dir", folder) as one:
                    one.ask([{"role": "user", "content": f"warm up {i}"}])
                    seconds.append(one.ask(talk)[0])
    share = statistics.median(warm) / statistics.median(cold)
    yield "the same conversation after a restart with --cache-dir", f"{share:.1%}", "≤ 10 %"
