"""The block length against made-up machines, whose costs are known."""

import gc
import random
import weakref

import pytest
from simulated import Machine, times_plain
from table import table_session

from hybridge.runtime import PromptLookup
from hybridge.runtime.generation.pace import Pace
from hybridge.runtime.generation.paces import Paces

LENGTHS = (2, 4, 8, 16)


def play(acceptance: float, cost_of_a_guess: float, rounds: int = 400, draft: float = 0.0) -> tuple[float, Pace]:
    """Tokens a decode's time, of a machine whose decode takes 1 and whose block of S takes 1 + (S - 1) x cost."""
    rng, pace, tokens, seconds = random.Random(0), Pace(LENGTHS), 0, 0.0
    for _ in range(rounds):
        length = pace.choose(100)
        accepted = 0
        while accepted < length - 1 and rng.random() < acceptance:
            accepted += 1
        took = 1 + (length - 1) * (cost_of_a_guess + draft)
        pace.round_done(length, length - 1, accepted, took)
        if length == 1:
            if pace.wants_shadow():
                pace.shadow([int(rng.random() < acceptance) for _ in range(LENGTHS[0] - 1)], draft)
                seconds += draft
            pace.compare(1)
        tokens, seconds = tokens + accepted + 1, seconds + took
    return tokens / seconds, pace


def best(acceptance: float, cost_of_a_guess: float) -> float:
    """What the best fixed block length reaches."""
    a = acceptance
    return max(sum(a**i for i in range(S)) / (1 + (S - 1) * cost_of_a_guess) for S in (1, *LENGTHS))


@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("cost", [0.02, 0.1, 0.3, 1.0])
def test_it_comes_close_to_the_best_fixed_length(acceptance: float, cost: float) -> None:
    reached, _ = play(acceptance, cost)
    assert reached >= 0.9 * best(acceptance, cost)


@pytest.mark.parametrize("draft", [0.0, 0.05, 0.3])
def test_text_that_cannot_be_guessed_costs_next_to_nothing(draft: float) -> None:
    reached, pace = play(0.0, 0.3, rounds=2000, draft=draft)
    assert reached >= 0.97
    assert pace.choose(100) == 1


def test_it_finds_back_to_guessing_by_shadow_guesses() -> None:
    _, pace = play(0.0, 0.1)
    assert pace.choose(100) == 1
    for _ in range(60):
        pace.round_done(1, 0, 0, 1.0)
        if pace.wants_shadow():
            pace.shadow([7], 0.0)
        pace.compare(7)
    assert pace.choose(100) > 1


def test_it_never_asks_for_more_than_there_is_room() -> None:
    pace = Pace(LENGTHS)
    for _ in range(5):
        pace.round_done(1, 0, 0, 1.0)
    for room in range(1, 20):
        assert pace.choose(room) <= room
    assert Pace(LENGTHS, fixed=8).choose(3) == 3


def test_one_interrupted_round_does_not_frighten_it() -> None:
    _, pace = play(1.0, 0.05)
    before = pace.choose(100)
    pace.round_done(before, before - 1, before - 1, 1000.0)
    assert pace.choose(100) == before


def test_a_slow_first_decode_does_not_make_guessing_look_cheap() -> None:
    pace = Pace(LENGTHS)
    for seconds in (5.0, 1.0, 1.0, 1.0):
        assert pace.choose(100) == 1
        pace.round_done(1, 0, 0, seconds)
    for _ in range(20):
        length = pace.choose(100)
        pace.round_done(length, length - 1, (length - 1) // 2, 2.0 * length if length > 1 else 1.0)
    assert pace.choose(100) == 1


def test_it_measures_decoding_again_now_and_then() -> None:
    _, pace = play(1.0, 0.02)
    lengths = []
    for _ in range(120):
        lengths.append(pace.choose(100))
        pace.round_done(lengths[-1], lengths[-1] - 1, lengths[-1] - 1, 1.0)
    assert lengths.count(1) in (4, 6), "two in a row: the first one, behind a block, takes longer than decoding does"


def test_a_decode_behind_a_block_is_not_what_decoding_costs() -> None:
    """It takes up to twice as long. By and by blocks that were slower than decoding looked good."""
    pace, lengths = Pace((4,)), [1]
    for number in range(1200):
        length = pace.choose(100)
        seconds = 2.2 if length > 1 else 2.0 if lengths[-1] > 1 else 1.0
        right = min(length - 1, 3 if number < 1000 else 1)
        pace.round_done(length, length - 1, right, seconds, 0.8 if length > 1 else 0.0)
        lengths.append(length)
    assert lengths[:1000].count(4) > 900
    assert pace.cost[1] < 1.1
    assert lengths[-150:].count(4) < 10


@pytest.mark.slow
def test_what_was_measured_lives_as_long_as_its_drafter() -> None:
    session, kept = table_session(), PromptLookup()
    mine = session.pace(kept)
    references = []
    for _ in range(50):
        session.reset()
        drafter = PromptLookup()
        references.append(weakref.ref(drafter))
        list(session.generate([1, 2, 3], max_new_tokens=3, drafter=drafter))
    del drafter
    gc.collect()
    assert not [each for each in references if each() is not None]
    assert len(session._paces._known) == 1
    assert session.pace(kept) is mine


def test_a_drafter_that_cannot_be_referred_to_weakly_is_measured_anew() -> None:
    class Slotted:
        __slots__ = ()
        needs_hidden = is_free = False

    drafter, paces = Slotted(), Paces(LENGTHS)
    assert paces.of(drafter) is not paces.of(drafter)  # type: ignore[arg-type]


def measured() -> Pace:
    """A pace that knows what rounds cost: 1 for a decode, 0.3 of which a proposal takes besides."""
    pace = Pace((4, 8))
    for length, seconds in ((4, 1.6), (8, 2.4), (1, 1.0)):
        for _ in range(60):
            pace.round_done(length, length - 1, length - 1, seconds, drafting=0.3 if length > 1 else 0.0)
    return pace


@pytest.mark.parametrize(
    ("chances", "wanted"),
    [([0.99] * 7, 7), ([0.95, 0.95, 0.95, 0.1, 0.9, 0.9, 0.9], 3), ([0.02] * 7, 0), ([0.9, 0.9], 2), ([], 0)],
)
def test_as_much_of_a_block_is_verified_as_its_chances_are_worth(chances: list[float], wanted: int) -> None:
    assert measured().cut(chances) == wanted


def test_a_fixed_length_is_verified_whole() -> None:
    assert Pace((4, 8), 8).cut([0.0] * 7) == 7


def test_proposals_that_are_slower_than_decoding_are_left_out_until_some_are_right() -> None:
    pace = measured()
    assert pace.choose(100) == 8
    for _ in range(30):
        pace.round_done(1, 0, 0, 1.3, drafting=0.3)  # proposed, and thought better of
    assert pace.cost[1] == pytest.approx(1.0, abs=0.05), "what the proposal took is no part of a decode"
    assert pace.choose(100) == 1
    for _ in range(40):
        pace.shadow([1], 0.0)
        pace.compare(1)
    assert pace.choose(100) == 8


def test_what_is_surely_right_is_verified_unless_that_is_slower_and_then_tried_again() -> None:
    pace = Pace([4, 8])
    assert pace.sure(7) == 7  # nothing was measured
    for _ in range(5):
        pace.round_done(1, 0, 0, 0.010)
    pace.round_done(8, 0, 0, 0.020)
    assert pace.sure(7) == 7
    assert pace.acceptance == Pace([4, 8]).acceptance
    for _ in range(40):
        pace.round_done(8, 0, 0, 0.200)
        pace.round_done(4, 0, 0, 0.200)
    tries = [pace.sure(7) for _ in range(40)]
    assert tries.count(0) == 38
    assert tries.count(7) == 2


# Whole generations of 64 tokens over made-up machines. The costs, in decodes, are those of drafters at Qwen3.5-0.8B's shape
# (docs/benchmarks.md); everything takes twice as long the first time, and now and then for a while.

VERIFY = {"verify_4": 1.2, "verify_8": 1.75, "verify_16": 3.2, "commit": 0.07, "decode": 1.0}
DRAFTERS = {
    "mtp": {"decode": 1.0, "verify_4": 1.2, "draft_4": 1.2, "commit": 0.07},
    "dflash": {**VERIFY, "draft_4": 0.24, "draft_8": 0.31, "draft_16": 0.51},
    "dspark": {"decode": 1.0, "verify_8": 2.4, "draft_8": 0.6, "commit": 0.2},
}


def machine(drafter: str, slow: float = 2.0) -> Machine:
    return Machine(costs=DRAFTERS[drafter], cold=2.0, slow=slow)


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_short_text_that_cannot_be_guessed_costs_next_to_nothing_from_the_first_on(drafter: str, *, sure: bool) -> None:
    assert min(times_plain(machine(drafter), 0.0, sure=sure, texts=3)) >= 0.97


@pytest.mark.parametrize(("drafter", "share", "floor"), [("mtp", 0.5, 0.95), ("dflash", 0.5, 0.97), ("dspark", 0.5, 0.95)])
def test_a_text_that_is_guessed_half_the_time_costs_little(drafter: str, share: float, floor: float) -> None:
    assert min(times_plain(machine(drafter), share, sure=False, texts=3)) >= floor


@pytest.mark.parametrize(("drafter", "share", "wanted"), [("mtp", 0.9, 1.1), ("dflash", 0.7, 1.25), ("dspark", 0.9, 1.2)])
def test_one_slow_first_round_with_a_block_does_not_end_speculation(drafter: str, share: float, wanted: float) -> None:
    assert min(times_plain(machine(drafter, slow=1.0), share, sure=False, texts=3)[1:]) >= wanted
