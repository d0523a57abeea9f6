"""Soak one subject in this process: SUBJECT WORK SEED FIRST_ROUND SECONDS; a line of JSON before and after each round."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from hybridge.export.reference.oracle import load_oracle
from soaking.program import play_round
from soaking.subjects import SUBJECTS, opened


def main(subject: str, work: Path, seed: int, first: int, seconds: float) -> None:
    checkpoint, artifact = SUBJECTS[subject].prepare(work)
    with opened(SUBJECTS[subject], artifact) as sessions, tempfile.TemporaryDirectory() as folder:
        oracle = load_oracle(checkpoint, sessions[0].manifest)
        number, end = first, time.monotonic() + seconds
        while number == first or time.monotonic() < end:
            print(json.dumps({"begins": number}), flush=True)
            print(json.dumps(vars(play_round(sessions, oracle, seed, number, Path(folder)))), flush=True)
            number += 1


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    name, work, *numbers = sys.argv[1:]
    main(name, Path(work), int(numbers[0]), int(numbers[1]), float(numbers[2]))
