"""The pages of ``--html``: each shows its figures, needs nothing from elsewhere, and keeps hostile texts texts."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER, HOSTILE, browser
from command_line import exit_code
from served import BABBLE, BYTES, babble

from hybridge.cache.errors import OutputError, UsageError
from hybridge.export.checks.validation import ValidationReport
from hybridge.export.cli import main
from hybridge.export.cli.inspect import kinds_of_bits, summary
from hybridge.runtime import Context, GenerationStats, Proposal, Session, html_report
from hybridge.runtime.artifacts.manifest import LayerEntry, Manifest, MethodEntry, TensorEntry, read_manifest
from hybridge.runtime.core.programs import TextProgram
from hybridge.runtime.core.statistics import Draft, Round, Trace
from hybridge.runtime.html_report import Section, Speed

OLD = Path(__file__).parent / "artifacts" / "format-2"


class Page(HTMLParser):
    """A page's texts, and its faults: scripts, pictures, handlers, requests to elsewhere."""

    def __init__(self, folder: Path, sections: Sequence[Section]) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.faults: list[str] = []
        html_report.write_page(folder / "page.html", HOSTILE, sections)
        self.source = (folder / "page.html").read_text()
        self.faults = re.findall(r"@import|url\((?!#)", self.source)
        self.feed(self.source)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "iframe", "object", "foreignobject", "a"):
            self.faults.append(f"<{tag}>")
        for name, value in attrs:
            address = name.rpartition(":")[2] in ("href", "src", "action", "srcset")
            if name.startswith("on") or (address and not (value or "").startswith(("data:,", "#"))):
                self.faults.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def inspected(manifest: Manifest) -> list[Section]:
    return list(html_report.artifact_sections(manifest, list(summary(manifest)), kinds_of_bits(manifest)))


def test_the_page_of_an_artifact_shows_its_layers_methods_and_files(tmp_path: Path) -> None:
    manifest = read_manifest(OLD)
    page = Page(tmp_path, inspected(manifest))
    assert page.faults == []
    shown = [*manifest.files, *manifest.operators, *map(manifest.program_method, manifest.methods), manifest.model_type]
    for i, layer in enumerate(manifest.layers):
        shown += [f"{layer.kind} {i}", f"{layer.state_bytes:,} + {layer.rollback_bytes:,} + {layer.slot_bytes:,}"]
        shown += [f"{name} {entry.dtype}{entry.shape}" for name, entry in layer.buffers.items()]
    shown.append(f"all layers {sum(layer.state_bytes for layer in manifest.layers):,}")
    assert [each for each in shown if each not in page.text] == []
    assert Page(tmp_path, inspected(manifest.model_copy(update={"layers": []}))).faults == []


def test_a_hostile_manifest_stays_text(tmp_path: Path) -> None:
    page = Page(tmp_path, inspected(hostile_manifest()))
    assert page.faults == []
    assert "{{ 7 * 7 }}" in page.text, "a name is no template"
    assert "$x^2$" in page.text, "a name is no formula"
    assert page.text.count("alert(1)") >= 9


def hostile_manifest() -> Manifest:
    """A manifest whose every text would like to be a part of the page."""
    manifest, tensor = read_manifest(OLD), TensorEntry(shape=[1], dtype=HOSTILE)
    layers = [
        LayerEntry(kind=kind, buffers={HOSTILE: tensor}, state_bytes=1, rollback_bytes=2, slot_bytes=3)
        for kind in (HOSTILE, "$x^2$ <b> \0\n_")
    ]
    method = MethodEntry(inputs=[tensor], outputs=[tensor], operators=[HOSTILE], delegates={HOSTILE: 1})
    changed = {"layers": layers, "methods": {HOSTILE: method}, "bits": {HOSTILE: 4}, "model_type": HOSTILE}
    return manifest.model_copy(update=changed | {"source": HOSTILE, "versions": {HOSTILE: HOSTILE}})


class Careless:
    """A drafter that guesses some tokens right and some wrong."""

    needs_hidden, is_free = False, False

    def propose(self, context: Context, limit: int) -> Proposal:
        session = Session.over(TextProgram(babble), BABBLE)
        right = list(session.generate(context.tokens, max_new_tokens=limit)) if limit else []
        right[len(context.tokens) % 5 :] = right[len(context.tokens) % 5 :][::-1]
        return Proposal(right)


def generated(stats: GenerationStats, **options: Any) -> list[int]:
    session = Session.over(TextProgram(babble), BABBLE)
    return list(session.generate(list(b"hello"), max_new_tokens=60, eos_ids=(), stats=stats, **options))


@pytest.fixture(scope="module")
def traced() -> tuple[list[int], Trace]:
    trace = Trace()
    return generated(trace, drafter=Careless(), block_length=4), trace


def test_a_trace_has_every_draft_and_phase_and_changes_nothing(traced: tuple[list[int], Trace]) -> None:
    tokens, trace = traced
    assert tokens == generated(stats := GenerationStats())
    assert trace.to_dict().keys() == stats.to_dict().keys()
    drafts = [each.draft for each in trace.rounds if each.draft is not None]
    assert (len(drafts), sum(len(draft.tokens) for draft in drafts)) == (trace.verifies, trace.proposed)
    assert sum(draft.accepted for draft in drafts) == trace.accepted > 0 < trace.rollbacks
    for draft in drafts:
        assert tokens[draft.first : draft.first + draft.accepted] == draft.tokens[: draft.accepted]
    for phase in ("prefill", "draft", "verify", "commit", "decode"):
        seconds = sum(seconds for each in trace.rounds for name, seconds in each.phases if name == phase)
        assert seconds == pytest.approx(getattr(trace, f"{phase}_seconds"))
    whole = {("prefill",), ("draft", "verify", "commit"), ("draft", "decode"), ("decode",)}
    assert {tuple(name for name, _ in each.phases) for each in trace.rounds} <= whole


def test_the_page_of_a_run_has_the_whole_text_once_and_the_rejected_tokens_apart(
    traced: tuple[list[int], Trace], tmp_path: Path
) -> None:
    tokens, trace = traced
    sections = list(html_report.run_sections("hello", tokens, trace, BYTES, [("new", "60 tokens")]))
    pieces, page = sections[0].pieces, Page(tmp_path, sections)
    assert "".join(text for style, text in pieces if style != "rejected") == "hello" + BYTES.decode(tokens)
    assert sum(style == "accepted" for style, _ in pieces) == trace.accepted
    drafts = [each.draft for each in trace.rounds if each.draft is not None]
    struck = [draft.tokens[draft.accepted :] for draft in drafts if draft.accepted < len(draft.tokens)]
    assert [text for style, text in pieces if style == "rejected"] == [BYTES.decode(each) for each in struck]
    assert page.faults == []
    shown = ["60 tokens", *(f"{draft.accepted} of {len(draft.tokens)} draft tokens accepted" for draft in drafts)]
    assert [each for each in shown if each not in page.text] == []


def test_a_long_run_is_cut_and_hostile_tokens_stay_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Hostile:
        def decode(self, ids: Sequence[int], /) -> str:
            return HOSTILE * len(ids)

    monkeypatch.setattr(html_report, "MOST_ROUNDS", 3)
    trace = Trace()
    trace.rounds = [Round([("prefill", 9.0)]), Round([("verify", 0.1)], Draft(0, [1, 2], 2, forced=True))]
    trace.rounds += [
        Round([("decode", 0.25)]),
        Round([("decode", 0.75)]),
        Round([("verify", 1.0)], Draft(4, [1], 0, forced=False)),
    ]
    page = Page(tmp_path, list(html_report.run_sections(HOSTILE, [1, 2, 3, 4, 5], trace, Hostile(), [(HOSTILE, HOSTILE)])))
    assert page.faults == []
    shown = ("9.00 s", "2 forced", "2 decoded", "decode: 500.00 ms", "no choice", "1 more lines are left out")
    assert [each for each in shown if each not in page.text] == []


@pytest.mark.parametrize(("error", "share"), [(1e-6, "5.0e-07"), (1e9, "5.0e+08"), (math.inf, "inf"), (0.0, "0.0e+00")])
def test_the_page_of_a_validation_shows_the_worst_error_of_each_operation(error: float, share: str, tmp_path: Path) -> None:
    report = ValidationReport(seed=5, tolerance=1e-5, largest_logit=2.0)
    for operation, position, found in (
        ("decode", 0, error),
        ("decode", 0, error / 10),
        ("verify", 195, 0.0),
        (HOSTILE, 9, 1.0),
    ):
        report.observe(operation, position, found, same_best=True)
    assert (report.worst_at["decode", 0], report.compared) == (error, 4)
    assert "worst_at" not in report.to_dict()
    sections = html_report.validation_sections(report.worst_at, 2.0, 1e-5, False, [("result", "FAILED"), (HOSTILE, HOSTILE)])
    page = Page(tmp_path, list(sections))
    assert page.faults == []
    shown = ("Failed", "FAILED", f"decode, positions 0 to 2: {share}", "verify, positions 195 to 195: 0.0e+00", "tolerance")
    assert [each for each in shown if each not in page.text] == []
    assert "Passed" in Page(tmp_path, list(html_report.validation_sections({}, 0.0, 1e-5, True, []))).text


def measured(bandwidth: float) -> list[Section]:
    stats = GenerationStats(new_tokens=10, new_seconds=2.0, draft_seconds=0.5, verify_seconds=1.0, commit_seconds=0.1)
    plain = GenerationStats(new_tokens=10, new_seconds=4.0, decode_seconds=4.0)
    speeds = {
        HOSTILE: {"plain": Speed(2.25, 1.0, plain), HOSTILE: Speed(4.5, 2.0, stats)},
        "empty": {"plain": Speed(0, 1.0, plain)},
    }
    figures = [(HOSTILE, "≥ 2×", "1×", False), ("b", "≥ 2×", "3×", True)]
    return list(html_report.speed_sections(speeds, figures, (1_000_000, bandwidth)))


@pytest.mark.parametrize(("bandwidth", "drawn"), [(2e6, True), (6e6, False)])
def test_the_page_of_speeds_shows_them_with_their_targets_and_the_roofline(
    bandwidth: float, drawn: bool, tmp_path: Path
) -> None:
    page = Page(tmp_path, measured(bandwidth))
    assert page.faults == []
    shown = ("4 tokens/s, 2.00×", "missed", "reached", "draft: 25%", "verify: 50%", "commit: 5%", "decode: 0%", "rest: 20%")
    assert [each for each in shown if each not in page.text] == []
    assert f"bound by memory at {bandwidth / 1e6:.0f} tokens/s: 1.0 MB a token" in page.text
    assert (page.text.count("the limit of plain decoding") == 2) == drawn


def test_a_page_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    html_report.write_page(tmp_path / "page.html", "new \udcff", [])
    assert "<h1>new ?</h1>" in (tmp_path / "page.html").read_text()
    with pytest.raises(OutputError, match="cannot be written"):
        html_report.write_page(tmp_path / "nowhere" / "page.html", "new", [])
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_inspect_writes_its_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert exit_code(monkeypatch, main, "hybridge", "inspect", OLD, "--html", page) == 0
    assert capsys.readouterr().out == ""
    assert "<h1>format-2</h1>" in page.read_text()
    assert exit_code(monkeypatch, main, "hybridge", "inspect", OLD, "--html", tmp_path) == 2
    assert exit_code(monkeypatch, main, "hybridge", "bench", OLD, "--device", "--html", "page.html") == 2
    assert "leave --profile and --device out" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["inspect {}", "run {} --prompt a", "validate {} --against {}", "bench {}"])
def test_without_matplotlib_a_page_is_refused_before_any_work(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    nowhere = tmp_path / "nowhere"  # whose absence would be the next refusal
    assert (
        exit_code(monkeypatch, main, "hybridge", *words.format(nowhere, nowhere).split(), "--html", tmp_path / "page.html") == 2
    )
    assert capsys.readouterr().err.endswith("--html needs matplotlib: pip install 'hybridge[html]'\n")
    with pytest.raises(UsageError, match="--plot needs matplotlib"):
        html_report.check_plot(Path("kl.svg"))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")
def test_a_browser_opens_a_page_in_both_schemes_without_a_complaint(tmp_path: Path) -> None:
    Page(tmp_path, [*inspected(hostile_manifest()), *measured(2e6)])
    colours = set()
    with browser() as window:
        for dark in (False, True):
            window.look(900, 640, dark=dark)
            window.open((tmp_path / "page.html").as_uri())
            colours.add(window.run("getComputedStyle(document.querySelector('svg text')).fill"))
        assert (window.complaints, len(colours)) == ([], 2)
        assert [each for each in window.requests if not each.startswith(("file:", "data:"))] == []
