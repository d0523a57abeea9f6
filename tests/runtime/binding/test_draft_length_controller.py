"""The block length against made-up machines, whose costs are known."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence

import pytest
from native_programs import native_program
from simulated import Machine, times_plain
from store import demo_folder
from table import Table, table_session

from hybridge.runtime import (
    AutoDrafter,
    Context,
    Drafter,
    DraftModel,
    GenerationStats,
    Model,
    OwnDrafter,
    PromptLookup,
    Proposal,
    Sampling,
    Session,
    open_artifact,
)


class Player:
    """A process that answers calls of controllers, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [native_program("draft_length_controller")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="ascii",
        )

    def tell(self, name: str, *values: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {' '.join(map(repr, values))}\n")

    def ask(self, name: str, *values: float) -> float:
        self.tell(name, *values)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class DraftLengthController:
    """``hybridge::DraftLengthController``; of one player one controller is played at a time."""

    def __init__(self, player: Player, lengths: Sequence[int]) -> None:
        self._player = player
        player.tell("controller", *lengths)
        player.tell("text")

    def choose(self, room: int, confidence: float | None = None) -> int:
        return int(self._player.ask("plan", room, *(() if confidence is None else (confidence,))))

    def tokens_worth_verifying(self, confidences: Sequence[float], spent: float) -> int:
        return int(self._player.ask("worth", spent, *confidences))

    def certain_tokens_worth_verifying(self, count: int) -> int:
        return int(self._player.ask("certain", count))

    def round_done(self, length: int, proposed: int, accepted: int, seconds: float, drafting: float = 0.0) -> None:
        self._player.tell("done", length, proposed, accepted, seconds, drafting)

    def shadow(self, tokens: Sequence[int], seconds: float) -> None:
        self._player.tell("shadow", seconds, *tokens)

    def begin(self) -> None:
        self._player.tell("text")

    def set_unread(self, tokens: int) -> None:
        self._player.tell("unread", tokens)

    def compare(self, token: int) -> None:
        self._player.tell("compare", token)

    def wants_shadow(self, longest: int = 100) -> bool:
        return bool(self._player.ask("wants", longest))

    @property
    def shadow_length(self) -> int:
        return int(self._player.ask("shadowing"))

    @property
    def acceptance(self) -> float:
        return self._player.ask("acceptance")


MakeController = Callable[..., DraftLengthController]
LENGTHS = (2, 4, 8, 16)


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    made = Player()
    yield made
    made.close()


@pytest.fixture
def controller_of(player: Player) -> MakeController:
    return lambda lengths: DraftLengthController(player, lengths)


def play(
    controller: DraftLengthController, acceptance: float, cost_of_a_guess: float, rounds: int = 400, draft: float = 0.0
) -> float:
    """Tokens a decode's time, of a machine whose decode takes 1 and whose block of S takes 1 + (S - 1) x cost."""
    rng, tokens, seconds = random.Random(0), 0, 0.0
    for _ in range(rounds):
        length = controller.choose(100)
        accepted = 0
        while accepted < length - 1 and rng.random() < acceptance:
            accepted += 1
        took = 1 + (length - 1) * (cost_of_a_guess + draft)
        controller.round_done(length, length - 1, accepted, took)
        if length == 1:
            if controller.wants_shadow():
                controller.shadow([int(rng.random() < acceptance) for _ in range(LENGTHS[0] - 1)], draft)
                seconds += draft
            controller.compare(1)
        tokens, seconds = tokens + accepted + 1, seconds + took
    return tokens / seconds


def best(acceptance: float, cost_of_a_guess: float) -> float:
    """Return what the best fixed block length reaches."""
    a = acceptance
    return max(sum(a**i for i in range(S)) / (1 + (S - 1) * cost_of_a_guess) for S in (1, *LENGTHS))


@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("cost", [0.02, 0.1, 0.3, 1.0])
def test_it_comes_close_to_the_best_fixed_length(controller_of: MakeController, acceptance: float, cost: float) -> None:
    assert play(controller_of(LENGTHS), acceptance, cost) >= 0.9 * best(acceptance, cost)


@pytest.mark.parametrize("draft", [0.0, 0.05, 0.3])
def test_text_that_cannot_be_guessed_costs_next_to_nothing(controller_of: MakeController, draft: float) -> None:
    controller = controller_of(LENGTHS)
    assert play(controller, 0.0, 0.3, rounds=2000, draft=draft) >= 0.97
    assert controller.choose(100) == 1


def test_it_finds_back_to_guessing_by_shadow_guesses(controller_of: MakeController) -> None:
    controller = controller_of(LENGTHS)
    play(controller, 0.0, 0.1)
    assert controller.choose(100) == 1
    for _ in range(60):
        controller.round_done(1, 0, 0, 1.0)
        if controller.wants_shadow():
            controller.shadow([7], 0.0)
        controller.compare(7)
    assert controller.choose(100) > 1


def test_it_never_asks_for_more_than_there_is_room(controller_of: MakeController) -> None:
    controller = controller_of(LENGTHS)
    for _ in range(5):
        controller.round_done(1, 0, 0, 1.0)
    for room in range(1, 20):
        assert controller.choose(room) <= room


def test_one_interrupted_round_does_not_frighten_it(controller_of: MakeController) -> None:
    controller = controller_of(LENGTHS)
    play(controller, 1.0, 0.05)
    before = controller.choose(100)
    controller.round_done(before, before - 1, before - 1, 1000.0)
    assert controller.choose(100) == before


def test_a_slow_first_decode_does_not_make_guessing_look_cheap(controller_of: MakeController) -> None:
    controller = controller_of(LENGTHS)
    for seconds in (5.0, 1.0, 1.0, 1.0):
        assert controller.choose(100) == 1
        controller.round_done(1, 0, 0, seconds)
    for _ in range(20):
        length = controller.choose(100)
        controller.round_done(length, length - 1, (length - 1) // 2, 2.0 * length if length > 1 else 1.0)
    assert controller.choose(100) == 1


def test_it_measures_decoding_again_now_and_then(controller_of: MakeController) -> None:
    controller = controller_of(LENGTHS)
    play(controller, 1.0, 0.02)
    lengths = []
    for _ in range(120):
        lengths.append(controller.choose(100))
        controller.round_done(lengths[-1], lengths[-1] - 1, lengths[-1] - 1, 1.0)
    assert lengths.count(1) in (4, 6), "two in a row: the first one, after a block, takes longer than decoding does"


def test_nothing_is_risked_before_it_is_known_what_a_proposal_takes(controller_of: MakeController) -> None:
    """A first block of a tiny model's multi-token prediction took 10 decodes, and was guessed to take two."""
    controller = controller_of((4, 16))
    for _ in range(20):
        assert controller.choose(100) == 1
        controller.round_done(1, 0, 0, 1.0)
    assert controller.wants_shadow()
    controller.shadow([1], 0.2)
    assert controller.choose(100) > 1


@pytest.mark.parametrize(("longest", "wanted"), [(4, False), (16, True)])
def test_no_proposal_is_compared_where_no_block_could_pay(controller_of: MakeController, longest: int, wanted: bool) -> None:
    controller = controller_of((4, 16))
    for _ in range(5):
        controller.round_done(1, 0, 0, 1.0)
    controller.shadow([2], 3.0)  # with a verify of 4, more than 4 decodes; with one of 16, less than 16
    controller.compare(1)
    for _ in range(2000):  # a share of these is to be lost
        controller.round_done(1, 0, 0, 1.0)
    assert controller.wants_shadow(longest) is wanted


def test_one_interrupted_proposal_does_not_end_speculation(controller_of: MakeController) -> None:
    controller = controller_of((4, 16))
    for _ in range(5):
        controller.round_done(1, 0, 0, 1.0)
    controller.shadow([2], 30.0)
    controller.compare(1)
    texts = 0
    while not controller.wants_shadow():
        controller.begin()
        for _ in range(100):
            controller.round_done(1, 0, 0, 1.0)
        texts += 1
    assert 10 < texts < 39


def test_a_prompt_is_not_read_for_blocks_that_could_not_pay() -> None:
    """A tiny model's multi-token prediction read prompts for a sixth of the time, and proposed nothing."""
    plain = [1, 2, *table_session(Table(1, ends=False), max_seq_len=200, verify_lens=(4,)).generate([1, 2], max_new_tokens=100)]
    session, drafter, seconds = (
        table_session(Table(1, ends=False), max_seq_len=200, verify_lens=(4,)),
        Guesses(plain, 1.0),
        [0.0],
    )

    def slow(context: Context, limit: int) -> Proposal:
        seconds[0] += 30.0
        return Guesses.propose(drafter, context, limit)

    def clock() -> float:
        seconds[0] += 1.0
        return seconds[0]

    drafter.propose = slow  # type: ignore[method-assign]
    asked = []
    for _ in range(4):
        session.reset()
        drafter.limits.clear()
        list(session.generate([1, 2], max_new_tokens=80, drafter=drafter, clock=clock))
        asked.append(len(drafter.limits))
    assert asked[0] == 2, "the prompt was read, and a proposal timed"
    assert asked[1:] == [0, 0, 0]
    session.reset()
    list(session.generate([1, 2], max_new_tokens=80, drafter=drafter, clock=clock, block_length=4))
    assert drafter.limits, "whoever asks for blocks gets them"


def test_a_decode_behind_a_block_is_not_what_decoding_costs(controller_of: MakeController) -> None:
    """It takes up to twice as long. By and by blocks that were slower than decoding looked good."""
    controller, lengths = controller_of((4,)), [1]
    controller.shadow([7, 7, 7], 0.8)
    for _ in range(3):
        controller.compare(7)
    for number in range(1200):
        length = controller.choose(100)
        seconds = 2.2 if length > 1 else 2.0 if lengths[-1] > 1 else 1.0
        right = min(length - 1, 3 if number < 1000 else 1)
        controller.round_done(length, length - 1, right, seconds, 0.8 if length > 1 else 0.0)
        lengths.append(length)
    assert lengths[:1000].count(4) > 900
    assert lengths[-150:].count(4) < 10


def test_a_drafter_keeps_what_was_measured_with_a_model(player: Player) -> None:
    first, second, other, back = (player.ask("judge", model) for model in (0, 0, 1, 0))
    assert first < second
    assert other == back == first


def measured(controller_of: MakeController) -> DraftLengthController:
    """A controller that knows what rounds cost: 1 for a decode, 0.3 of which a proposal takes besides."""
    controller = controller_of((4, 8))
    for length, seconds in ((4, 1.6), (8, 2.4), (1, 1.0)):
        for _ in range(60):
            controller.round_done(length, length - 1, length - 1, seconds, drafting=0.3 if length > 1 else 0.0)
    return controller


@pytest.mark.parametrize(
    ("confidences", "wanted"),
    [([0.99] * 7, 7), ([0.95, 0.95, 0.95, 0.1, 0.9, 0.9, 0.9], 3), ([0.02] * 7, 0), ([0.9, 0.9], 2), ([], 0)],
)
def test_as_much_of_a_block_is_verified_as_its_chances_are_worth(
    controller_of: MakeController, confidences: list[float], wanted: int
) -> None:
    assert measured(controller_of).tokens_worth_verifying(confidences, spent=0.3) == wanted


def test_proposals_that_are_slower_than_decoding_are_left_out_until_some_are_right(controller_of: MakeController) -> None:
    controller = measured(controller_of)
    assert controller.choose(100) == 8
    for _ in range(30):
        controller.shadow([2], 0.3)  # proposed, and thought better of
        controller.round_done(1, 0, 0, 1.0)
        controller.compare(1)
    assert controller.choose(100) == 1
    for _ in range(40):
        controller.shadow([1], 0.0)
        controller.compare(1)
    assert controller.choose(100) > 1


def test_a_text_may_lose_little_and_what_others_won_but_not_all_of_it(controller_of: MakeController) -> None:
    """Draft tokens that promise much and keep nothing, such as those of a drafter that is too sure of itself."""
    controller = measured(controller_of)

    def lost() -> int:
        blocks = 0
        for _ in range(1000):
            length = controller.choose(100, confidence=0.99)
            blocks += length > 1
            controller.round_done(length, length - 1, 0, 2.4 if length > 1 else 1.0)
        return blocks

    assert 0 < 1.4 * lost() <= 8 + 2 + 0.01 * 1000 + 4
    controller.begin()
    assert 0 < 1.4 * lost() <= 2 + 0.01 * 1000 + 4, "nothing was won"


def test_what_a_drafter_reads_to_catch_up_is_no_part_of_what_its_next_proposals_take(controller_of: MakeController) -> None:
    """A proposal of 0.3 decodes took 4 where prompt lookup had gone on alone, and each text risked another one."""
    controller = measured(controller_of)
    assert controller.choose(100) == 8
    controller.set_unread(400)
    assert controller.choose(100) == 8, "nothing was read yet"
    controller.round_done(8, 7, 7, 2.1 + 60.3, drafting=60.3)
    controller.begin()
    assert controller.choose(100) == 1, "it would be 60 decodes again, for four rounds or so"
    assert not controller.wants_shadow()
    controller.set_unread(40)
    assert controller.choose(100) == 8, "a tenth of them"
    controller.set_unread(3)
    assert controller.choose(100) == 8


def test_what_is_surely_right_is_verified_unless_that_is_slower_and_then_tried_again(controller_of: MakeController) -> None:
    controller = controller_of([4, 8])
    assert controller.certain_tokens_worth_verifying(7) == 7  # nothing was measured
    for _ in range(5):
        controller.round_done(1, 0, 0, 0.010)
    controller.round_done(8, 0, 0, 0.020)
    assert controller.certain_tokens_worth_verifying(7) == 7
    assert controller.acceptance == pytest.approx(0.7), "nothing was judged"
    for _ in range(40):
        controller.round_done(8, 0, 0, 0.200)
        controller.round_done(4, 0, 0, 0.200)
    tries = [controller.certain_tokens_worth_verifying(7) for _ in range(40)]
    assert tries.count(0) == 38
    assert tries.count(7) == 2


# Whole generations of 64 tokens over made-up machines. The costs, in decodes, are those of drafters at Qwen3.5-0.8B's shape
# (docs/benchmarks.md); everything takes twice as long the first time, and now and then for a while.

VERIFY = {"verify_4": 1.2, "verify_8": 1.75, "verify_16": 3.2, "commit": 0.07, "decode": 1.0}
DRAFTERS = {
    "mtp": {"decode": 1.0, "verify_4": 1.2, "draft_4": 1.2, "commit": 0.07},
    "dflash": {**VERIFY, "draft_4": 0.24, "draft_8": 0.31, "draft_16": 0.51},
    "dspark": {"decode": 1.0, "verify_8": 2.4, "draft_8": 0.6, "commit": 0.2},
    "mtp of few": {"decode": 1.0, "verify_4": 1.35, "draft_4": 0.23, "commit": 0.07},
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


@pytest.mark.parametrize(("share", "floor"), [(0.5, 1.02), (0.7, 1.42), (0.8, 1.65)])
def test_neither_slow_first_blocks_nor_unlucky_ones_end_speculation_in_a_first_text(share: float, floor: float) -> None:
    """At 0.7 one text in ten went back to decoding for good: 1.33 times plain decoding, where 1.54 is to be had."""
    [first] = times_plain(machine("mtp of few", slow=1.0), share, sure=False, texts=1, length=256, seeds=16)
    assert first >= floor


@pytest.mark.parametrize(
    ("drafter", "share", "period"),
    [("mtp", 0.0, 10), ("mtp", 0.9, None), ("mtp", 0.9, 10), ("dflash", 0.7, 10), ("dspark", 0.5, 7)],
)
def test_the_auto_drafter_is_about_as_good_as_the_best_of_its_parts(drafter: str, share: float, period: int | None) -> None:
    def speed(way: str) -> float:
        times = times_plain(machine(drafter, slow=1.0), share, sure=False, texts=2, length=300, seeds=4, way=way, period=period)
        return sum(times) / len(times)

    auto, parts = speed("auto"), (speed("alone"), speed("lookup"))
    assert auto >= 0.97 * max(1.0, *parts), parts


class Guesses:
    """Proposes tokens of a text that is known, some of them spoilt."""

    needs_hidden = is_cheap = False

    def __init__(self, text: Sequence[int], share: float) -> None:
        self.text, self.share, self.rng = text, share, random.Random(4)
        self.limits: list[int] = []

    def propose(self, context: Context, limit: int) -> Proposal:
        start = len(context.tokens)
        self.limits.append(limit)
        return Proposal([t if self.rng.random() < self.share else (t + 1) % 6 for t in self.text[start : start + limit]])


def ticking() -> Callable[[], float]:
    """A clock on which everything takes equally long."""
    return itertools.count(0.0, 1.0).__next__


def test_a_session_remembers_a_drafter_and_no_other() -> None:
    """What a drafter's draft tokens were worth counts in the next generation, and not for another drafter."""
    session, other = (table_session(Table(1, ends=False), max_seq_len=200, verify_lens=(2, 4)) for _ in range(2))
    plain = [1, 2, *other.generate([1, 2], max_new_tokens=150)]

    def verifies(drafter: Guesses) -> int:
        session.reset()
        stats = GenerationStats()
        list(session.generate([1, 2], max_new_tokens=12, drafter=drafter, stats=stats, clock=ticking()))
        return stats.verifies

    right, wrong = Guesses(plain, 1.0), Guesses(plain, 0.0)
    first = verifies(right)
    again = verifies(right)
    assert again > first > 0, "what rounds cost is known by then, and is not measured at the start again"
    assert [verifies(wrong) for _ in range(3)][1:] == [0, 0]
    assert verifies(Guesses(plain, 1.0)) > 0, "this one was never wrong"
    assert verifies(right) == again


def test_a_drafter_that_cannot_be_referred_to_weakly_is_measured_anew() -> None:
    class Slotted(Guesses):
        __slots__ = ("limits", "rng", "share", "text")
        __hash__ = None  # type: ignore[assignment]

    session, found = table_session(Table(1, ends=False), max_seq_len=200), []
    plain = [1, 2, *session.generate([1, 2], max_new_tokens=150, clock=ticking())]
    drafter = Slotted(plain, 1.0)
    for _ in range(2):
        session.reset()
        stats = GenerationStats()
        list(session.generate([1, 2], max_new_tokens=24, drafter=drafter, stats=stats, clock=ticking()))
        found.append(stats.verifies)
    assert found[0] == found[1] > 0


CODE = [*b"class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n\nclass Line:\n    def"]


@pytest.fixture(scope="module")
def models() -> tuple[Model, Model]:
    """The demo's, which has a trained drafter, and its draft model."""
    folder = demo_folder() / "hybridge-demo"
    return tuple(Model.open(open_artifact(folder.with_name(name))) for name in (folder.name, "hybridge-demo-draft"))  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["lookup", "own", "model", "guesses", "auto", "auto with a model", "auto with guesses"])
@pytest.mark.parametrize("sampling", [Sampling(seed=0), Sampling(temperature=0.5, seed=5)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_whatever_is_measured_the_text_is_the_same(
    models: tuple[Model, Model], drafter: str, sampling: Sampling, seed: int
) -> None:
    """On a clock that jumps, the controller changes its mind all the time, and decides the same for the same times."""
    model, small = models
    session, rng = Session(model), random.Random(seed)
    steps = [rng.expovariate(1.0) for _ in range(97)]
    plain = [*CODE, *session.generate(CODE, max_new_tokens=150, sampling=sampling)]
    made: dict[str, Callable[[], Drafter]] = {
        "lookup": PromptLookup,
        "own": lambda: OwnDrafter(session),
        "model": lambda: DraftModel(small, session),
        "guesses": lambda: Guesses(plain, 0.9),
        "auto": lambda: AutoDrafter(session),
        "auto with a model": lambda: AutoDrafter(session, DraftModel(small, session)),
        "auto with guesses": lambda: AutoDrafter(session, Guesses(plain, 0.9)),
    }
    counts = []
    for _ in range(2):
        session, stats, times = Session(model), GenerationStats(), itertools.accumulate(itertools.cycle(steps))
        tokens = session.generate(
            CODE, max_new_tokens=150, drafter=made[drafter](), sampling=sampling, clock=times.__next__, stats=stats
        )
        assert list(tokens) == plain[len(CODE) :]
        counts.append((stats.proposed, stats.accepted, stats.verifies, stats.decodes, stats.rollbacks, stats.spans))
    assert counts[0] == counts[1]
    assert seed or drafter == "own" or counts[0][2] > 0
