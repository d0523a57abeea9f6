"""``scripts/trust fuzz``: a slice of its inputs, and that it finds what it is for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import pytest
from campaigns.fuzz import files, pictures
from campaigns.fuzz.__main__ import TARGETS
from campaigns.fuzz.driver import Input, Report, fuzz, run_batch
from campaigns.fuzz.kernel_arguments import CALLS
from campaigns.fuzz.kernels import Kernels

CHILD = """
import struct, sys, time
while length := sys.stdin.buffer.read(4):
    text = sys.stdin.buffer.read(struct.unpack("<I", length)[0]).decode()
    if text == "die":
        sys.exit("out of order")
    if text == "stop":
        time.sleep(60)
    print(text, flush=True)
"""


class Words:
    """A target whose inputs are words that say what its child does with them."""

    name = "words"

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def prepare(self) -> None:
        """Nothing."""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", CHILD]

    def environment(self) -> Mapping[str, str]:
        return {}

    def make(self, seed: int, index: int) -> Input:
        word = self._words[index]
        return Input(word.encode(), word, good=word.endswith("good"))


def test_crashes_hangs_and_wrong_answers_are_found_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaigns.fuzz.driver.HANG_SECONDS", 2.0)
    report = fuzz(Words(["accepted", "die", "refused: why", "stop", "wrong: two", "die", "accepted"]), 3, 0, 7, None)
    assert report.outcomes == {"accepted": 2, "crash": 2, "refused": 1, "hang": 1, "wrong": 1}
    assert [(each.kind, each.index) for each in report.findings] == [("crash", 1), ("hang", 3), ("wrong", 4), ("crash", 5)]
    assert "out of order" in str(report.findings[0])
    assert "--only words --seed 3 --first 1 --count 1" in str(report.findings[0])


def test_a_good_input_that_is_refused_is_wrong() -> None:
    """All 2,000 ONNX graphs were refused, the unchanged ones too, and that looked fine."""
    report = fuzz(Words(["refused: good", "refused: bad", "accepted"]), 3, 0, 3, None)
    assert report.outcomes == {"wrong": 1, "refused": 1, "accepted": 1}
    assert "a good input is refused" in str(report.findings[0])


def test_a_batch_begins_anywhere() -> None:
    report = Report("words")
    run_batch(Words(["die", "accepted"]), 0, range(1, 2), report)
    assert (report.inputs, report.findings) == (1, [])


def test_the_time_ends_a_batch_too() -> None:
    """Children that ended at every input kept a run of two minutes going for an hour."""
    report = fuzz(Words(["die"] * 500), 3, 0, None, time.monotonic() + 0.5)
    assert 1 <= report.inputs < 500


@pytest.mark.slow
def test_a_checkpoint_with_folders_in_it_is_opened() -> None:
    """Its drafters are folders, which have no hard links: every input was a crash."""
    configs = next(each for each in files.TARGETS if each.name == "configs")
    report = fuzz(configs, 0, 0, 3, None)
    assert report.findings == []
    assert report.outcomes["accepted"] >= 1


ALIKE = ("lfm3_vl", "gemma4", "glm5_next", "nemotron_h_omni")
"""Families whose pictures are much like those of another one; only the campaign has these."""
PICTURES = [each.name for each in pictures.TARGETS if not each.name.endswith(ALIKE)]


@pytest.mark.parametrize("name", ["native-picture-files", *PICTURES])
def test_hostile_pictures_are_taken_or_refused(name: str) -> None:
    """Pictures that numpy resized in more than 10 seconds were hangs, before the core did it."""
    target = TARGETS[name]()
    target.prepare()
    report = fuzz(target, 3, 0, 25 if name in PICTURES else 200, None)
    assert report.findings == [], "\n".join(map(str, report.findings))
    assert min(report.outcomes["accepted"], report.outcomes["refused"]) >= 3


@pytest.mark.parametrize(
    "options", [["--minutes", "1", "--count", "1"], ["--count", "0"], ["--only", "nothing"], ["--seed", "-1"]], ids=" ".join
)
def test_wrong_usage(options: Sequence[str]) -> None:
    command = [sys.executable, "-m", "campaigns.fuzz", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_an_input_is_its_seed_and_number() -> None:
    first, again = (Kernels().make(5, 17) for _ in range(2))
    assert first == again != Kernels().make(5, 18) != Kernels().make(6, 18)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    """The kernels under sanitizers; building them takes a minute or two, once."""
    target = Kernels()
    target.prepare()
    return target


def test_every_kernel_is_called(kernels: Kernels) -> None:
    names = subprocess.run([*kernels.command(), "names"], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(names) == sorted(CALLS)


def test_no_hostile_call_of_a_kernel_touches_other_memory(kernels: Kernels) -> None:
    """743 calls once gave 19 writes and 30 reads out of bounds, 11 segmentation faults and 6 divisions by zero."""
    report = fuzz(kernels, 0, 0, 600, None)
    assert report.findings == [], "\n".join(map(str, report.findings))
    assert report.outcomes["accepted"] > 100
    assert report.outcomes["refused"] > 100


def test_rows_in_the_memory_of_their_own_buffer_are_rounded_to_something(kernels: Kernels) -> None:
    """They change while they are written; a NaN of that once became a byte by a conversion that C++ does not define."""

    def is_such(index: int) -> bool:
        text = kernels.make(31, index).text
        return text.startswith("write_quantized_rows.out(") and "in the memory of tensor 0" in text

    own = sorted(CALLS).index("write_quantized_rows.out")
    found = list(filter(is_such, range(own, 20_000, len(CALLS))))
    assert len(found) >= 3
    for index in found:
        assert fuzz(kernels, 31, index, 1, None).findings == []


def test_good_calls_are_accepted(kernels: Kernels) -> None:
    """What is refused is refused for its hostile arguments."""
    good = [kernels.make(1, index) for index in range(1200)]
    texts = [each.text for each in good if each.text.endswith("hostile: []")]
    assert len(texts) > 60
    report = Report("good")
    run_batch(kernels, 1, [index for index, each in enumerate(good) if each.text in texts], report)
    assert set(report.outcomes) == {"accepted"}
