"""Press Ctrl-C at every line of a writer's work, as Python sees it: a KeyboardInterrupt in the frame that runs."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from interrupts import Interrupt

from campaigns.faults.kills import fresh
from campaigns.faults.writers import Broken, Writer, leftovers
from hybridge.cache.errors import HybridgeError


def press_ctrl_c(writer: Writer, work: Path, most: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return what was found how often, and what was wrong: after an interrupt at each line, or at ``most`` of them."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for place in places(writer, work, most, seed):
        try:
            outcomes[struck(writer, fresh(work), place)] += 1
        except Broken as error:
            wrong.append(f"{writer.name}, Ctrl-C at line {place}: {error}")
    return outcomes, wrong


def places(writer: Writer, work: Path, most: int, seed: int) -> Iterable[int]:
    """Return the numbers of the lines to strike at: all that a write runs, where there are no more than ``most``."""
    folder = fresh(work)
    writer.before(folder)
    counting = Interrupt(-1)
    counting.struck(lambda: writer.write(folder))
    every = range(1, counting.places + 1)
    return every if len(every) <= most else sorted(random.Random(f"{seed} {writer.name}").sample(every, most))


def struck(writer: Writer, folder: Path, place: int) -> str:
    """Return what is found once a write was interrupted and another one came to its end. Raises Broken."""
    writer.before(folder)
    expected = writer.found(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # files that were just opened, and are closed when they are forgotten
        was_struck = Interrupt(place).struck(lambda: writer.write(folder))
    outcome = writer.check(folder, expected)
    if not was_struck and outcome != "new":
        raise Broken("it was written to its end, and is not there")
    try:
        writer.write(folder)
    except HybridgeError as error:
        raise Broken(f"the next writer fails: {error}") from None
    if writer.found(folder) != "new" or leftovers(writer, folder):
        raise Broken(f"the next writer leaves {leftovers(writer, folder) or writer.found(folder)}")
    return outcome if was_struck else "finished"
