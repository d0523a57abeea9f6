"""Programs are kept apart from weights: a second checkpoint of a shape fills the first one's program with its own tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf_files import TYPES
from gguf_mmproj import save_with_pictures
from public_folders import save_qwen3_5_pictures
from safetensors.torch import load_file
from store import packed_files
from tiny import save_checkpoint, save_lively_checkpoint, tiny_config
from torch import Tensor, nn
from zoo import VARIANTS

from hybridge.export.api import export_model
from hybridge.export.drafters import vocabulary
from hybridge.export.lower.sources import mark_sources
from hybridge.export.pinned.executorch import StoredTensor, source_of
from hybridge.export.progress import ExportProgress
from hybridge.export.quantize.bits import table_factor
from hybridge.export.write import packed as packed_module
from hybridge.export.write import pte
from hybridge.export.write.kept import kept_apart, shape_key, write_filled
from hybridge.export.write.packed import pack_artifact
from hybridge.runtime.artifact.manifest import MethodEntry
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.files import remove
from hybridge.runtime.kernels.compiling import cache_folder
from hybridge.runtime.pack import programs
from hybridge.runtime.pack.programs import KeptProgram, UnfitProgramError, find_program, keep_program

SMALL = ExportOptions(max_seq_len=40, prefill_chunk=9, verify_len=3, snapshot_slots=1)
PACKED = replace(SMALL, quantize="8da4w", embedding_quantize="8w", group_size=8)
HYBRID = {
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "linear_value_head_dim": 32,
}  # fmt: skip


@pytest.fixture
def kept_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keep programs, in a folder of the test's own, which the user's cache has for the time."""
    monkeypatch.setattr(programs, "KIND", f"programs-of-{tmp_path.name}-{os.getpid()}")
    monkeypatch.setattr(pte, "find_program", find_program)
    monkeypatch.setattr(pte, "keep_program", keep_program)
    folder = cache_folder(programs.KIND)
    yield folder
    remove(folder)


CASES = [
    pytest.param("lfm2", {"tie_word_embeddings": True}, PACKED, id="packed and tied"),
    *(pytest.param(family, {}, SMALL, id=family, marks=pytest.mark.thorough) for family in sorted(VARIANTS)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sizes", "options"), CASES)
def test_a_second_checkpoint_of_a_shape_is_exported_without_lowering(
    family: str,
    sizes: dict[str, object],
    options: ExportOptions,
    tmp_path: Path,
    kept_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first has norms that are all equal, the second has none: constants are no longer told apart by their numbers."""
    first, second = tmp_path / "first", tmp_path / "second"
    save_checkpoint(first, tiny_config(family, **sizes), seed=1)
    save_lively_checkpoint(second, tiny_config(family, **sizes), seed=2)
    export_model(first, tmp_path / "out", options)
    assert len([*kept_folder.glob("*/program")]) == 1
    export_model(second, tmp_path / "fresh", options, fresh=True)
    monkeypatch.setattr(pte, "lower", None)  # it is not called any more
    export_model(second, tmp_path / "filled", options)
    export_model(first, tmp_path / "again", options)
    for file in ("model.pte", "manifest.json"):
        assert (tmp_path / "filled" / file).read_bytes() == (tmp_path / "fresh" / file).read_bytes()
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "out" / file).read_bytes()


# The kept file


class TwoWeights(nn.Module):
    def __init__(self, first: float = 1.0, second: float = 1.0, *, tied: bool = False) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.full((4,), first))
        self.second = self.first if tied else nn.Parameter(torch.full((4,), second))
        self.scale = 2.0


def program_of(module: nn.Module) -> KeptProgram:
    tensors = mark_sources(module)
    parts = [b"head", *(StoredTensor(each.untyped_storage(), source_of(each)) for each in tensors.values()), b"end"]
    program = kept_apart(parts, METHODS)
    assert program is not None
    return program


METHODS = {"decode": MethodEntry(inputs=[], outputs=[], operators=["aten::add.out"], delegates={})}


def written(path: Path, module: nn.Module) -> bytes:
    program = find_program("key")
    assert program is not None
    assert program.methods == METHODS
    write_filled(program, path, mark_sources(module))
    return path.read_bytes()


def test_a_kept_program_takes_other_weights(kept_folder: Path, tmp_path: Path) -> None:
    keep_program("key", program_of(TwoWeights()))
    numbers = torch.tensor([3.0] * 4 + [4.0] * 4).numpy().tobytes()
    assert written(tmp_path / "file", TwoWeights(3.0, 4.0)) == b"head" + numbers + b"end"
    assert find_program("another") is None


def test_a_program_whose_constants_do_not_fit_is_not_written_with_them(kept_folder: Path, tmp_path: Path) -> None:
    keep_program("key", program_of(TwoWeights()))
    other = TwoWeights()
    other.second = nn.Parameter(torch.ones(5))
    with pytest.raises(UnfitProgramError):
        written(tmp_path / "file", other)
    with pytest.raises(UnfitProgramError):
        written(tmp_path / "file", nn.Module())


@pytest.mark.parametrize("damage", ["altered", "cut", "written by others", "without its hash"])
def test_a_damaged_program_is_not_used(kept_folder: Path, damage: str) -> None:
    keep_program("key", program_of(TwoWeights()))
    path = kept_folder / "key" / "program"
    if damage == "altered":
        data = path.read_bytes()
        path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "written by others":
        path.chmod(0o666)
    else:
        path.with_name("program.sha256").unlink()
    assert find_program("key") is None
    keep_program("key", program_of(TwoWeights()))
    assert find_program("key") is not None


def test_a_program_with_weights_in_delegates_or_of_unknown_sources_is_not_kept() -> None:
    entry = MethodEntry(inputs=[], outputs=[], operators=[], delegates={"XnnpackBackend": 1})
    assert kept_apart([b"head"], {"decode": entry}) is None
    assert kept_apart([StoredTensor(torch.ones(4).untyped_storage(), [{"unknown": "sum"}])], METHODS) is None


def test_programs_that_were_used_last_stay(kept_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("one", "two"):
        keep_program(key, program_of(TwoWeights()))
    assert find_program("one") is not None
    size = (kept_folder / "one" / "program").stat().st_size
    monkeypatch.setattr(programs, "MOST_BYTES", 2 * size)
    keep_program("three", program_of(TwoWeights()))
    assert sorted(path.name for path in kept_folder.iterdir()) == ["one", "three"]


# The key


def key(module: nn.Module, *others: object) -> str:
    return shape_key(module, {"decode": (nn.Module(), (torch.zeros(1, 1),))}, *others)


def test_the_key_is_of_all_but_the_numbers() -> None:
    module = TwoWeights()
    assert key(module) == key(TwoWeights(3.0, 4.0))
    longer, scaled, narrow, turned = TwoWeights(), TwoWeights(), TwoWeights(), TwoWeights()
    longer.first = nn.Parameter(torch.ones(5))
    scaled.scale = 3.0
    narrow.first = nn.Parameter(torch.ones(4, dtype=torch.float16))
    turned.first, module.first = nn.Parameter(torch.ones(2, 2).t()), nn.Parameter(torch.ones(2, 2))
    others = [TwoWeights(tied=True), longer, scaled, narrow, turned, module]
    keys = {key(each) for each in others} | {key(TwoWeights()), key(TwoWeights(), SMALL), key(TwoWeights(), PACKED)}
    assert len(keys) == len(others) + 3


# What weights must not decide


class Scaled(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * 25.298221588134766


class Normed(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.rms_norm(super().forward(tokens), (self.embedding_dim,))


def test_an_embeddings_factor_is_the_models_whatever_its_weights_are() -> None:
    """It is a number in the graph. Found by dividing the first rows, it may be another neighbour in float32."""
    assert table_factor(nn.Embedding(5, 8)) == 1.0
    assert {table_factor(Scaled(5, 8)) for _ in range(20)} == {25.298221588134766}
    assert table_factor(Normed(5, 8)) is None


def test_a_shape_has_one_key_whatever_the_order_of_its_sets() -> None:
    """Sets of texts have another order in every process, as transformers' classes have several."""
    keys = set()
    for order in ([0, 8], [8, 0]):
        module = nn.Linear(2, 2)
        module.names = {"nested": (set(order),)}
        assert repr(module.names["nested"][0]) == f"{{{order[0]}, {order[1]}}}"
        keys.add(shape_key(module, {}))
    assert len(keys) == 1


@pytest.mark.slow
@pytest.mark.parametrize("lowered_again", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_second_gguf_file_of_a_shape_is_packed_to_the_files_of_an_export(
    tmp_path: Path, kept_folder: Path, monkeypatch: pytest.MonkeyPatch, lowered_again: bool
) -> None:
    """The second one is in parts, with an encoder of pictures. It drafts by its MTP layer, of the tokens that it says itself.

    test_catalogue.py compares a packed file with one that was lowered again.
    """
    for module, name, value in ((vocabulary, "LARGEST_WHOLE", 64), (vocabulary, "ROWS", 64), (packed_module, "ROWS", 64)):
        monkeypatch.setattr(module, name, value)
    options = replace(SMALL, quantize="auto", mtp=True, draft_len=2)
    files = [tmp_path / f"{name}.gguf" / "model.gguf" for name in ("first", "second", "wider")]
    for seed, (file, more) in enumerate(zip(files, ({}, {}, {"intermediate_size": 160}), strict=True)):
        save_qwen3_5_pictures(tmp_path / str(seed), seed, **HYBRID, **more)
        weights = load_file(tmp_path / str(seed) / "model.safetensors")
        mtp = {name: weight for name, weight in weights.items() if name.startswith("mtp.")}
        save_with_pictures(tmp_path / str(seed), file.parent, mtp, TYPES.Q8_0, TYPES.F16, 9 if file is files[1] else 0)
    files[1] = min(files[1].parent.glob("model-*-of-*.gguf"))
    packed, progress = tmp_path / "packed", Counted()
    packed.mkdir()
    assert pack_artifact(files[1], packed, options) is None, "no program is kept yet"
    export_model(files[0], tmp_path / "kept", options)
    export_model(files[1], tmp_path / "fresh", options, fresh=lowered_again)
    assert pack_artifact(files[2], packed, options) is None, "another shape"
    assert not [*packed.iterdir()]
    manifest = pack_artifact(files[1], packed, options, progress)
    assert manifest is not None
    assert manifest.pictures is not None
    assert manifest.drafter is not None
    assert manifest.drafter.vocabulary is not None
    assert manifest.drafter.vocabulary.source == "self"
    assert progress.steps == ["Sampling texts for the draft vocabulary"]
    assert packed_files(packed) == packed_files(tmp_path / "fresh")
    assert packed_files(packed) != packed_files(tmp_path / "kept")


class Counted(ExportProgress):
    def __init__(self) -> None:
        self.steps: list[str] = []

    @contextmanager
    def counted(self, what: str) -> Iterator[Callable[[int, int], None]]:
        self.steps.append(what)
        yield lambda done, total: None
