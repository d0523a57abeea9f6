"""The pages for a browser: all that they should show is there, and nothing that a hostile text would like to be there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from command_line import exit_code
from hypothesis import given, settings
from pages import BROWSER, HOSTILE, Page, opened
from served import BABBLE, BYTES, babble

from hybridge.__main__ import main
from hybridge.cache.errors import OutputError
from hybridge.export.check.validate import Divergence, ValidationReport
from hybridge.export.cli.progress import plain_rows
from hybridge.export.pages import bench, run
from hybridge.export.pages import error_chart as error_chart_module
from hybridge.export.pages.bench import bench_page
from hybridge.export.pages.error_chart import error_chart
from hybridge.export.pages.inspect import inspect_page
from hybridge.export.pages.layer_plan import LONGEST, layer_plan
from hybridge.export.pages.page import write_page
from hybridge.export.pages.timeline import LEFT, timeline
from hybridge.export.pages.timeline import LONGEST as WIDEST
from hybridge.export.pages.validate import validate_page
from hybridge.runtime import Context, GenerationStats, Proposal, Session
from hybridge.runtime.artifacts.manifest import LayerEntry, Manifest, MethodEntry, TensorEntry, read_manifest
from hybridge.runtime.cli.inspect import kinds_of_bits, summary
from hybridge.runtime.core.programs import TextProgram
from hybridge.runtime.core.statistics import Draft, Phase, Round, Trace
from hybridge.runtime.measure.speculation import Outcome

OLD = Path(__file__).parent / "artifacts" / "format-2"
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(OLD)


@pytest.fixture(scope="module")
def hostile(manifest: Manifest) -> Manifest:
    """A manifest whose every text would like to be a part of the page."""
    tensor = TensorEntry(shape=[1], dtype=HOSTILE)
    layer = LayerEntry(kind=HOSTILE, buffers={HOSTILE: tensor}, state_bytes=1, rollback_bytes=2, slot_bytes=3)
    method = MethodEntry(inputs=[tensor], outputs=[tensor], operators=[HOSTILE], delegates={HOSTILE: 1})
    changed = {"layers": [layer, *manifest.layers], "methods": {HOSTILE: method}, "bits": {HOSTILE: 4}, "model_type": HOSTILE}
    return manifest.model_copy(update=changed | {"source": HOSTILE, "versions": {HOSTILE: HOSTILE}})


def inspected(manifest: Manifest) -> str:
    return inspect_page(manifest, HOSTILE, list(summary(manifest)), kinds_of_bits(manifest))


def test_the_page_of_an_artifact_shows_its_layers_methods_and_files(manifest: Manifest) -> None:
    page = Page(inspected(manifest))
    assert page.faults == []
    shown = (*manifest.files, *(layer.kind for layer in manifest.layers), manifest.model_type)
    assert [name for name in shown if name not in page.text] == []
    for name, method in manifest.methods.items():
        assert manifest.program_method(name) in page.text
        assert [operator for operator in method.operators if operator not in page.text] == []
    buffers = [f"{name} {entry.dtype}{entry.shape}" for layer in manifest.layers for name, entry in layer.buffers.items()]
    assert buffers
    assert [buffer for buffer in buffers if buffer not in page.text] == []


def test_a_hostile_manifest_stays_text(hostile: Manifest) -> None:
    text = inspected(hostile)
    page = Page(text)
    assert page.faults == []
    assert "<script" not in text
    assert "{{ 7 * 7 }}" in page.text, "a name is no template"
    assert page.text.count("alert(1)") >= 9


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    sizes = [(1000, 500, 500), (10, 0, 0), (0, 0, 0)]
    layers = [LayerEntry(kind="k", buffers={}, state_bytes=a, rollback_bytes=b, slot_bytes=c) for a, b, c in sizes]
    widths = [[bar.width for bar in row.bars] for row in layer_plan(layers).rows]
    assert widths == [[LONGEST / 2, LONGEST / 4, LONGEST / 4], [LONGEST / 200], []]


def test_a_model_without_layers_has_a_page(manifest: Manifest) -> None:
    assert Page(inspected(manifest.model_copy(update={"layers": []}))).faults == []


def test_a_page_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("old")
    write_page(tmp_path / "page.html", "new \udcff")
    assert (tmp_path / "page.html").read_text() == "new ?"
    with pytest.raises(OutputError, match="cannot be written"):
        write_page(tmp_path / "nowhere" / "page.html", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_inspect_writes_its_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert exit_code(monkeypatch, main, "hybridge", "inspect", OLD, "--html", page) == 0
    assert capsys.readouterr().out == ""
    assert Page(page.read_text()).text.startswith("format-2 ")
    assert exit_code(monkeypatch, main, "hybridge", "inspect", OLD, "--html", tmp_path) == 2


# A generation


class Careless:
    """A drafter that guesses some tokens right and some wrong."""

    needs_hidden, is_free = False, False

    def propose(self, context: Context, limit: int) -> Proposal:
        session = Session.over(TextProgram(babble), BABBLE)
        right = list(session.generate(context.tokens, max_new_tokens=limit)) if limit else []
        right[len(context.tokens) % 5 :] = right[len(context.tokens) % 5 :][::-1]
        return Proposal(right)


def generated(**options: Any) -> tuple[list[int], Trace]:
    trace, session = Trace(), Session.over(TextProgram(babble), BABBLE)
    tokens = session.generate(list(b"hello"), max_new_tokens=60, drafter=Careless(), eos_ids=(), stats=trace, **options)
    return list(tokens), trace


@pytest.fixture(scope="module")
def traced() -> tuple[list[int], Trace]:
    return generated(block_length=4)


def test_a_trace_has_every_draft_and_changes_nothing(traced: tuple[list[int], Trace]) -> None:
    tokens, trace = traced
    session, stats = Session.over(TextProgram(babble), BABBLE), GenerationStats()
    assert tokens == list(session.generate(list(b"hello"), max_new_tokens=60, eos_ids=(), stats=stats))
    drafts = [each.draft for each in trace.rounds if each.draft is not None]
    assert len(drafts) == trace.verifies
    assert sum(len(draft.tokens) for draft in drafts) == trace.proposed
    assert sum(draft.accepted for draft in drafts) == trace.accepted > 0
    assert trace.rollbacks > 0
    for draft in drafts:
        assert tokens[draft.first : draft.first + draft.accepted] == draft.tokens[: draft.accepted]
    assert trace.to_dict().keys() == stats.to_dict().keys()


def test_a_trace_has_every_phase_in_its_round(traced: tuple[list[int], Trace]) -> None:
    _, trace = traced
    for phase in ("prefill", "draft", "verify", "commit", "decode"):
        seconds = sum(seconds for each in trace.rounds for name, seconds in each.phases if name == phase)
        assert seconds == pytest.approx(getattr(trace, f"{phase}_seconds"))
    for each in trace.rounds:
        assert [name for name, _ in each.phases] in (
            ["prefill"],
            ["draft", "verify", "commit"],
            ["draft", "decode"],
            ["decode"],
        )


def test_the_page_of_a_run_has_the_whole_text_once_and_the_rejected_tokens_apart(traced: tuple[list[int], Trace]) -> None:
    tokens, trace = traced
    drafts = [each.draft for each in trace.rounds if each.draft is not None]
    pieces = list(run._pieces(tokens, drafts, BYTES))
    assert "".join(text for style, text in pieces if style != "rejected") == BYTES.decode(tokens)
    assert sum(style == "accepted" for style, _ in pieces) == trace.accepted
    struck = [draft.tokens[draft.accepted :] for draft in drafts if draft.accepted < len(draft.tokens)]
    assert [text for style, text in pieces if style == "rejected"] == [BYTES.decode(tokens) for tokens in struck]
    page = Page(run.run_page("title", "hello", tokens, trace, BYTES, [("new", "60 tokens")]))
    assert page.faults == []
    assert "60 tokens" in page.text
    assert all(f"{draft.accepted} of {len(draft.tokens)} draft tokens accepted" in page.text for draft in drafts)


def test_hostile_tokens_stay_text(traced: tuple[list[int], Trace]) -> None:
    class Hostile:
        def decode(self, ids: Sequence[int], /) -> str:
            return HOSTILE * len(ids)

    tokens, trace = traced
    text = run.run_page(HOSTILE, HOSTILE, tokens, trace, Hostile(), [(HOSTILE, HOSTILE)])
    assert Page(text).faults == []
    assert "<script" not in text


@settings(max_examples=50)
@given(st.lists(st.integers(0, 400), max_size=12), st.integers(1, 9))
def test_lines_of_a_timeline_stay_within_the_drawing(seconds: list[int], merged: int) -> None:
    phases: tuple[Phase, ...] = ("prefill", "draft", "verify", "commit", "decode")
    rounds = [
        Round([(phases[(i + merged) % 5], each / 1000)], Draft(0, [1], 1, forced=i % 2 == 0) if i % merged else None)
        for i, each in enumerate(seconds)
    ]
    drawn = timeline(rounds)
    assert all(bar.x + bar.width <= LEFT + WIDEST + 1 for line in drawn.lines for bar in line.bars)
    assert len(drawn.lines) <= len(rounds)


# A validation


def validation(error: float = 1e-6) -> ValidationReport:
    divergence = Divergence(program=3, operations=[HOSTILE, "verify 2"], position=7, error=error)
    report = ValidationReport(seed=5, tolerance=1e-5, largest_logit=2.0, first_divergence=divergence)
    report.observe("decode", 0, error, same_best=True)
    report.observe("decode", 0, error / 10, same_best=False)
    report.observe("verify", 95, 0.0, same_best=True)
    return report


def test_a_report_keeps_the_worst_error_of_each_operation_and_position() -> None:
    report = validation()
    assert report.worst_at == {("decode", 0): 1e-6, ("verify", 95): 0.0}
    assert (report.compared, report.worst, report.top1_matches) == (3, 1e-6, 2)
    assert "worst_at" not in report.to_dict()


@pytest.mark.parametrize("error", [1e-6, 1e9, math.inf, 0.0])
def test_the_page_of_a_validation_shows_every_error_within_its_drawing(error: float) -> None:
    report = validation(error)
    chart = error_chart(report.worst_at, report.largest_logit, report.tolerance)
    assert [dot.label.split(":")[0] for dot in chart.dots] == ["decode, positions 0 to 0", "verify, positions 95 to 95"]
    assert all(error_chart_module.TOP <= dot.y <= error_chart_module.BOTTOM for dot in chart.dots)
    assert (chart.dots[0].y > chart.limit) == (error / 2 < report.tolerance), "what is below the line passes"
    page = Page(validate_page(HOSTILE, report, plain_rows(report)))
    assert page.faults == []
    assert all(name in page.text for name in ("Failed", "decode", "verify", "Program 3 of seed 5", "FAILED", "1e-05"))
    assert page.text.count("alert(1)") >= 2


def test_a_validation_without_anything_compared_has_a_page() -> None:
    report = ValidationReport(seed=0, tolerance=1e-5)
    page = Page(validate_page("nothing", report, plain_rows(report)))
    assert page.faults == []
    assert "Passed" in page.text


# Speeds


def outcomes() -> dict[str, dict[str, Outcome]]:
    stats = GenerationStats(new_tokens=10, new_seconds=2.0, draft_seconds=0.5, verify_seconds=1.0, commit_seconds=0.1)
    fast, plain = Outcome(), Outcome()
    fast.add(stats)
    plain.add(GenerationStats(new_tokens=10, new_seconds=4.0, decode_seconds=4.0))
    return {HOSTILE: {"plain": plain, HOSTILE: fast}}


def test_bars_of_speeds_and_shares_are_as_long_as_they_should_be() -> None:
    lines = bench.speed_chart("text", outcomes()[HOSTILE]).lines
    assert [line.width for line in lines] == [bench.LONGEST / 2, bench.LONGEST]
    shares = {share.phase: share.width / bench.WHOLE for share in lines[1].shares}
    assert shares == pytest.approx({"draft": 0.25, "verify": 0.5, "commit": 0.05, "decode": 0.0, "rest": 0.2})
    assert lines[1].label == "4 tokens/s, 2.00×"


def test_the_page_of_speeds_shows_them_with_their_targets() -> None:
    targets = [bench.Target(HOSTILE, "≥ 2×", "1×", reached=False), bench.Target("b", "≥ 2×", "3×", reached=True)]
    page = Page(bench_page(HOSTILE, outcomes(), targets))
    assert page.faults == []
    assert all(name in page.text for name in ("2.00×", "missed", "reached", "draft: 25%"))


@pytest.mark.parametrize(("bandwidth", "roof"), [(2e6, round(bench.LEFT + bench.LONGEST * 2 / 4.5, 2)), (6e6, None)])
def test_the_roofline_is_drawn_where_it_is_within_the_drawing(bandwidth: float, roof: float | None) -> None:
    roofline = bench.Roofline(token_bytes=1_000_000, bandwidth=bandwidth)
    assert bench.speed_chart("text", outcomes()[HOSTILE], roofline).roof == roof
    page = Page(bench_page(HOSTILE, outcomes(), [], roofline))
    assert page.faults == []
    assert f"bound by memory at {bandwidth / 1e6:.0f} tokens/s: 1.0 MB a token" in page.text
    assert ("the limit of plain decoding" in page.text) == (roof is not None)


def test_a_page_is_for_speeds_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(monkeypatch, main, "hybridge", "bench", OLD, "--device", "--html", "page.html") == 2
    assert "leave --profile and --device out" in capsys.readouterr().err


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", ["inspect", "run", "validate", "bench"])
def test_a_browser_opens_each_page_without_a_word(
    hostile: Manifest, traced: tuple[list[int], Trace], tmp_path: Path, kind: str, dark: bool
) -> None:
    make = {
        "inspect": lambda: inspected(hostile),
        "run": lambda: run.run_page(HOSTILE, HOSTILE, *traced, BYTES, []),
        "validate": lambda: validate_page(HOSTILE, validation(), []),
        "bench": lambda: bench_page(HOSTILE, outcomes(), []),
    }
    write_page(tmp_path / "page.html", make[kind]())
    shown, console = opened(tmp_path / "page.html", dark=dark)
    assert console == []
    assert shown.count("<svg") == 1
    assert Page(shown).text.count("alert(1)") >= 2
