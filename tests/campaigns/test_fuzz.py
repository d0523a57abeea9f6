"""Hostile calls of kernels and hostile pictures: a slice of the inputs of ``scripts/trust fuzz``."""

from __future__ import annotations

import subprocess

import pytest
from campaigns.fuzz import pictures
from campaigns.fuzz.__main__ import TARGETS
from campaigns.fuzz.driver import Report, fuzz, run_batch
from campaigns.fuzz.kernel_arguments import CALLS
from campaigns.fuzz.kernels import Kernels

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
