"""Soak one subject in this process: SUBJECT WORK SEED FIRST_ROUND SECONDS; a line of JSON before and after each round."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import torch

from campaigns.soak.program import nearby, none_nearby, play_round
from campaigns.soak.subjects import EXPERTS, SUBJECTS, opened
from hybridge.export.check.oracle import load_original, round_as, uncached


def main(subject: str, work: Path, seed: int, first: int, seconds: float) -> None:
    checkpoint, artifact = SUBJECTS[subject].prepare(work)
    with opened(SUBJECTS[subject], artifact) as sessions, tempfile.TemporaryDirectory() as folder:
        original = load_original(checkpoint, sessions[0].manifest)
        round_as(original, sessions[0].manifest.options)
        near = partial(nearby, original.model) if SUBJECTS[subject].family in EXPERTS else none_nearby
        play = partial(play_round, sessions, uncached(original.model), seed, folder=Path(folder), nearby=near)
        number, end = first, time.monotonic() + seconds
        while number == first or time.monotonic() < end:
            print(json.dumps({"begins": number}), flush=True)
            print(json.dumps(vars(play(number))), flush=True)
            number += 1


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    name, work, *numbers = sys.argv[1:]
    main(name, Path(work), int(numbers[0]), int(numbers[1]), float(numbers[2]))
