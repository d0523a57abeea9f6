"""The pages of ``--html``: each shows its figures, needs nothing from elsewhere, and keeps hostile texts texts."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from browser import BROWSER, HOSTILE, browser
from checkout import OLDER_ARTIFACT
from served import BABBLE, BYTES, babble
from typer.testing import CliRunner

from hybridge.__main__ import tree
from hybridge.errors import OutputError, UsageError
from hybridge.export.check.validate import CorruptingDrafter
from hybridge.export.report import ValidationReport
from hybridge.runtime import GenerationStats, Session, html_report
from hybridge.runtime.artifact.manifest import LayerEntry, Manifest, MethodEntry, TensorEntry, read_manifest
from hybridge.runtime.binding.programs import TextProgram
from hybridge.runtime.binding.statistics import PHASES, Draft, Round, Trace
from hybridge.runtime.cli.inspect import kinds_of_bits, summary
from hybridge.runtime.html_report import Section, Speed, artifact_sections, run_sections, speed_sections, validation_sections

Traced = tuple[list[int], Trace, list[Draft]]


class Page(HTMLParser):
    """A page's texts, and its faults: scripts, pictures, handlers, requests to elsewhere."""

    def __init__(self, folder: Path, sections: Iterable[Section]) -> None:
        super().__init__()
        self.texts: list[str] = []
        html_report.write_page(folder / "page.html", HOSTILE, sections)
        source = (folder / "page.html").read_text()
        self.faults = re.findall(r"@import|url\((?!#)", source)
        self.feed(source)
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

    def faults_and_missing(self, *shown: str) -> list[str]:
        return self.faults + [each for each in shown if each not in self.text]


def inspected(manifest: Manifest) -> list[Section]:
    return list(artifact_sections(manifest, list(summary(manifest, HOSTILE, HOSTILE)), kinds_of_bits(manifest)))


def test_the_page_of_an_artifact_shows_its_layers_methods_and_files(tmp_path: Path) -> None:
    manifest = read_manifest(OLDER_ARTIFACT)
    shown = [*manifest.files, *manifest.operators, *map(manifest.program_method, manifest.methods), manifest.model_type]
    for i, layer in enumerate(manifest.layers):
        shown += [f"{layer.kind} {i}", f"{layer.state_bytes:,} + {layer.rollback_bytes:,} + {layer.slot_bytes:,}"]
        shown += [f"{name} {entry.dtype}{entry.shape}" for name, entry in layer.buffers.items()]
    shown.append(f"all layers {sum(layer.state_bytes for layer in manifest.layers):,}")
    assert Page(tmp_path, inspected(manifest)).faults_and_missing(*shown) == []
    assert Page(tmp_path, inspected(manifest.model_copy(update={"layers": []}))).faults == []


def test_a_hostile_manifest_stays_text(tmp_path: Path) -> None:
    page = Page(tmp_path, inspected(hostile_manifest()))
    assert page.faults_and_missing("{{ 7 * 7 }}", "$x^2$") == [], "a name is no template and no formula"
    assert page.text.count("alert(1)") >= 9


def hostile_manifest() -> Manifest:
    manifest, tensor = read_manifest(OLDER_ARTIFACT), TensorEntry(shape=[1], dtype=HOSTILE)
    layer = LayerEntry(kind=HOSTILE, buffers={HOSTILE: tensor}, state_bytes=1, rollback_bytes=2, slot_bytes=3)
    layers = [layer, layer.model_copy(update={"kind": "$x^2$ <b> \0\n_"})]
    method = MethodEntry(inputs=[tensor], outputs=[tensor], operators=[HOSTILE], delegates={HOSTILE: 1})
    changed = {"layers": layers, "methods": {HOSTILE: method}, "bits": {HOSTILE: 4}, "model_type": HOSTILE}
    return manifest.model_copy(update=changed | {"source": HOSTILE, "versions": {HOSTILE: HOSTILE}})


def generated(stats: GenerationStats, drafter: CorruptingDrafter | None = None) -> list[int]:
    options = {"max_new_tokens": 200, "eos_ids": (), "drafter": drafter, "block_length": 4}
    return list(Session.over(TextProgram(babble), BABBLE).generate([*b"hello"], stats=stats, **options))


@pytest.fixture(scope="module")
def traced() -> Traced:
    tokens = generated(trace := Trace(), CorruptingDrafter(Random(0), 260))
    return tokens, trace, [each.draft for each in trace.rounds if each.draft is not None]


def test_a_trace_has_every_draft_and_phase_and_changes_nothing(traced: Traced) -> None:
    tokens, trace, drafts = traced
    assert tokens == generated(stats := GenerationStats())
    assert trace.to_dict().keys() == stats.to_dict().keys()
    assert (len(drafts), sum(len(draft.tokens) for draft in drafts)) == (trace.verifies, trace.proposed)
    assert sum(draft.accepted for draft in drafts) == trace.accepted > 0 < trace.rollbacks
    assert all(tokens[each.first : each.first + each.accepted] == each.tokens[: each.accepted] for each in drafts)
    for phase in PHASES:
        seconds = sum(seconds for each in trace.rounds for name, seconds in each.phases if name == phase)
        assert seconds == pytest.approx(getattr(trace, f"{phase}_seconds"))
    whole = {("prefill",), ("draft", "verify", "commit"), ("draft", "decode"), ("decode",)}
    assert {tuple(name for name, _ in each.phases) for each in trace.rounds} <= whole


def test_the_page_of_a_run_has_the_text_and_the_rejected_tokens(traced: Traced, tmp_path: Path) -> None:
    tokens, trace, drafts = traced
    sections = list(run_sections("hello", tokens, trace, BYTES, [("new", "60 tokens")]))
    pieces, page = sections[0].pieces, Page(tmp_path, sections)
    assert "".join(text for style, text in pieces if style != "rejected") == "hello" + BYTES.decode(tokens)
    assert sum(style == "accepted" for style, _ in pieces) == trace.accepted
    struck = [draft.tokens[draft.accepted :] for draft in drafts if draft.accepted < len(draft.tokens)]
    assert [text for style, text in pieces if style == "rejected"] == [BYTES.decode(each) for each in struck]
    shown = (f"{draft.accepted} of {len(draft.tokens)} draft tokens accepted" for draft in drafts)
    assert page.faults_and_missing("60 tokens", *shown) == []


def test_a_long_run_is_cut_and_hostile_tokens_stay_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = SimpleNamespace(push=lambda token: HOSTILE, finish=lambda: "")
    hostile = SimpleNamespace(decode=lambda ids: HOSTILE * len(ids), stream=lambda: stream)
    monkeypatch.setattr(html_report, "MOST_ROUNDS", 3)
    (trace := Trace()).rounds = [Round([("prefill", 9.0)]), Round([("verify", 0.1)], Draft(0, [1, 2], 2, forced=True))]
    trace.rounds += [Round([("decode", 0.25)]), Round([("decode", 0.75)]), Round([("verify", 1.0)])]
    page = Page(tmp_path, run_sections(HOSTILE, [1, 2, 3, 4, 5], trace, hostile, [(HOSTILE, HOSTILE)]))
    shown = ("9.00 s", "2 forced", "2 decoded", "decode: 500.00 ms", "no choice", "1 more lines are left out")
    assert page.faults_and_missing(*shown) == []


@pytest.mark.parametrize(("error", "share"), [(1e-6, "5.0e-07"), (1e9, "5.0e+08"), (math.inf, "inf"), (0.0, "0.0e+00")])
def test_the_page_of_a_validation_shows_the_worst_error_of_each_operation(error: float, share: str, tmp_path: Path) -> None:
    report = ValidationReport(seed=5, tolerance=1e-5, largest_logit=2.0)
    found = {("decode", 0): error, ("verify", 195): 0.0, (HOSTILE, 9): 1.0, ("decode", 1): error / 10}
    for (operation, position), each in (*found.items(), (("decode", 0), 0.0)):
        report.observe(operation, position, each, same_best=True)
    assert (report.worst_at, "worst_at" in report.to_dict()) == (found, False)
    sections = validation_sections(report.worst_at, 2.0, 1e-5, False, [("result", "FAILED"), (HOSTILE, HOSTILE)])
    shown = ("Failed", "FAILED", f"decode, positions 0 to 2: {share}", "verify, positions 195 to 195: 0.0e+00", "tolerance")
    assert Page(tmp_path, sections).faults_and_missing(*shown) == []
    assert "Passed" in Page(tmp_path, validation_sections({}, 0.0, 1e-5, True, [])).text


def measured(bandwidth: float) -> list[Section]:
    stats = GenerationStats(new_tokens=10, new_seconds=2.0, draft_seconds=0.5, verify_seconds=1.0, commit_seconds=0.1)
    plain = GenerationStats(new_tokens=10, new_seconds=4.0, decode_seconds=4.0)
    speeds = {HOSTILE: {"plain": Speed(2.25, 1.0, plain), HOSTILE: Speed(4.5, 2.0, stats)}, "": {"plain": Speed(0, 1, plain)}}
    return list(speed_sections(speeds, [(HOSTILE, "≥ 2", "1", False), ("b", "", "", True)], (1_000_000, bandwidth)))


@pytest.mark.parametrize(("bandwidth", "drawn"), [(2e6, True), (6e6, False)])
def test_the_page_of_speeds_shows_targets_and_the_roofline(bandwidth: float, drawn: bool, tmp_path: Path) -> None:
    page = Page(tmp_path, measured(bandwidth))
    shown = ("4 tokens/s, 2.00×", "missed", "reached", "draft: 25%", "verify: 50%", "commit: 5%", "decode: 0%", "rest: 20%")
    assert page.faults_and_missing(*shown, f"by memory at {bandwidth / 1e6:.0f} tokens/s: 1.0 MB a token") == []
    assert (page.text.count("the limit of plain decoding") == 2) == drawn, "once in the text, once in the legend"


def test_a_page_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    html_report.write_page(page := tmp_path / "page.html", "new \udcff", [])
    assert "<h1>new ?</h1>" in page.read_text()
    with pytest.raises(OutputError, match="cannot be written"):
        html_report.write_page(tmp_path / "nowhere" / "page.html", "new", [])
    assert [*tmp_path.iterdir()] == [page]


def test_inspect_writes_its_page(tmp_path: Path) -> None:
    assert CliRunner().invoke(tree(), ["inspect", str(OLDER_ARTIFACT), "--html", str(tmp_path / "page.html")]).output == ""
    assert "<h1>executorch-1.4.1</h1>" in (tmp_path / "page.html").read_text()
    for words, error in (((), "it is a folder"), (("--device",), "leave --profile, --device and --write-threshold out")):
        done = CliRunner().invoke(
            tree(), ["bench" if words else "inspect", str(OLDER_ARTIFACT), "--html", str(tmp_path), *words]
        )
        assert error in str(done.exception)


@pytest.mark.parametrize("line", ["inspect", "run --prompt a", "validate --against no", "bench", "evaluate --against no"])
def test_without_matplotlib_it_is_refused_before_any_work(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    option = "--plot" if "evaluate" in line else "--html"
    done = CliRunner().invoke(tree(), [*line.split(), "no", option, "page.svg"])
    assert repr(done.exception) == repr(UsageError(f"{option} needs matplotlib: pip install 'hybridge[html]'"))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")
def test_a_browser_opens_a_page_in_both_schemes_without_a_complaint(tmp_path: Path) -> None:
    Page(tmp_path, [*inspected(hostile_manifest()), *measured(2e6)])
    with browser() as window:
        colours = set()
        for dark in (False, True):
            window.look(900, 640, dark=dark)
            window.open((tmp_path / "page.html").as_uri())
            colours.add(window.run("getComputedStyle(document.querySelector('svg text')).fill"))
        assert (window.complaints, len(colours)) == ([], 2)
        assert [each for each in window.requests if not each.startswith(("file:", "data:"))] == []
