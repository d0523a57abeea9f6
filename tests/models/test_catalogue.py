"""The catalogue: a package with programs of published shapes, by which a GGUF file opens where PyTorch is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from base_install import WITHOUT_EXPORT
from cataloguing import __main__ as cataloguing
from cataloguing.mixes import types_of
from cataloguing.shapes import SHAPES, Shape
from command_line import Run
from gguf_files import MODELS, TYPES, random_model, save_gguf
from store import packed_files
from tiny import tiny_config

from hybridge.errors import UsageError
from hybridge.export import api
from hybridge.export.api import export_model
from hybridge.export.cli.choices import ExportChoices
from hybridge.export.write import pte
from hybridge.export.write.packed import missing_program, pack_artifact
from hybridge.models.find import ModelOptions
from hybridge.runtime.files import remove
from hybridge.runtime.kernels.compiling import cache_folder
from hybridge.runtime.pack import programs
from hybridge.runtime.pack.catalogue import PACKAGE
from hybridge.runtime.pack.programs import find_program, keep_program
from hybridge.runtime.version import __version__

pytestmark = pytest.mark.slow  # they share an export
SIZES = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "vocab_size": 300, "tie_word_embeddings": False}
OPTIONS = ExportChoices(**asdict(ModelOptions())).options()
TINY = Shape(
    architecture="llama",
    model_type="llama",
    config={
        name: each
        for name, each in tiny_config("llama", **MODELS["llama"][1] | SIZES).to_dict().items()
        if name != "model_type"
    },
    ids={"eos": 257, "eot": 258},
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package with one program, unpacked where a test lets Python find it."""
    made, kind = tmp_path_factory.mktemp("catalogue"), f"programs-of-{tmp_path_factory.getbasetemp().name}-{os.getpid()}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(programs, "KIND", kind)
        patched.setattr(pte, "find_program", find_program)
        patched.setattr(pte, "keep_program", keep_program)
        patched.setitem(SHAPES, "Tiny-0.1B", TINY)
        for folder in ("programs", "entries"):
            (made / folder).mkdir()
        cataloguing.make(made, "Tiny-0.1B", "Q8_0")
        assert cataloguing._is_made(made, "Tiny-0.1B", "Q8_0"), "it would be made again, in a process of its own"
        cataloguing.wheel(made)
        yield made / f"{PACKAGE}-{__version__}-py3-none-any.whl"
        remove(cache_folder(kind))


@pytest.fixture
def installed(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the installed package, which a test may spoil."""
    monkeypatch.setattr(programs, "KIND", f"programs-of-{tmp_path.name}-{os.getpid()}")  # nothing else is kept
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site" / PACKAGE


def save(path: Path, kind: TYPES = TYPES.Q8_0, **sizes: object) -> Path:
    torch.manual_seed(7)
    save_gguf(path, "llama", random_model("llama", **SIZES | sizes), kind)
    return path


def test_another_file_of_a_shape_is_packed_as_an_export_writes_it(installed: Path, tmp_path: Path) -> None:
    """It is packed where PyTorch is not installed; the catalogue's program was made of other numbers and other tokens."""
    file, packed, exported = save(tmp_path / "model.gguf"), tmp_path / "packed", tmp_path / "exported"
    packed.mkdir()
    code = f"""{WITHOUT_EXPORT}
from pathlib import Path
from hybridge.export.write.packed import pack_artifact
from hybridge.export.cli.choices import ExportChoices
sys.path.insert(0, {str(installed.parent)!r})
assert pack_artifact(Path({str(file)!r}), Path({str(packed)!r}), ExportChoices(**{asdict(ModelOptions())!r}).options())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    export_model(file, exported, OPTIONS, fresh=True)
    assert packed_files(packed) == packed_files(exported)


def test_the_command_export_packs_unless_it_is_to_make_the_program_anew(
    installed: Path, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export_model(*arguments: object, **options: object) -> None:
        raise UsageError("it is exported.")

    monkeypatch.setattr(api, "export_model", export_model)
    file = save(tmp_path / "model.gguf")
    done = cli("export", file, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "model.pte").stat().st_size > 0
    for more in (("--fresh",), ("--max-seq-len", 96)):
        assert "it is exported." in cli("export", file, "-o", tmp_path / "other", *more).err
        assert not (tmp_path / "other").exists()


OTHERS = {
    "vocabulary": ({"vocab_size": 301}, "has no program for this shape"),
    "ties": ({"tie_word_embeddings": True}, "has no program for this shape"),
    "width": ({"intermediate_size": 160}, "has no program for this shape"),
    "blocks": ({"kind": TYPES.Q4_0}, r"has Tiny-0.1B as Q8_0, but not with this file's kinds of blocks \(F32, Q4_0\)"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_file_of_another_shape_is_refused_by_name(installed: Path, tmp_path: Path, case: str) -> None:
    changes, says = OTHERS[case]
    file = save(tmp_path / "other.gguf", **changes)
    assert pack_artifact(file, tmp_path / "out", OPTIONS) is None
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(missing_program(file, OPTIONS))


def test_a_text_without_its_encoder_of_pictures_has_the_same_program(installed: Path, tmp_path: Path) -> None:
    file, options = save(tmp_path / "model.gguf"), replace(OPTIONS, images=False)
    (tmp_path / "out").mkdir()
    packed = pack_artifact(file, tmp_path / "out", options)
    assert packed is not None
    assert packed.options.images is False


def test_other_options_are_said(installed: Path, tmp_path: Path) -> None:
    file, options = save(tmp_path / "model.gguf"), replace(OPTIONS, max_seq_len=96)
    assert pack_artifact(file, tmp_path / "out", options) is None
    assert "not with these options" in missing_program(file, options)


@pytest.mark.parametrize(
    ("version", "says"), [("0.1.0", f"pip install hybridge-catalogue=={__version__}"), (__version__, "of other code")]
)
def test_a_catalogue_of_another_hybridge_is_not_used(installed: Path, tmp_path: Path, version: str, says: str) -> None:
    index = json.loads((installed / "index.json").read_text())
    (installed / "index.json").write_text(json.dumps(index | {"version": version, "code": "0" * 64}))
    file = save(tmp_path / "model.gguf")
    assert pack_artifact(file, tmp_path / "out", OPTIONS) is None
    assert says in missing_program(file, OPTIONS)


@pytest.mark.parametrize("damage", ["program", "index"])
def test_a_damaged_catalogue_is_not_used(installed: Path, tmp_path: Path, damage: str) -> None:
    (damaged,) = (installed / "programs").iterdir() if damage == "program" else [installed / "index.json"]
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:] if damage == "program" else data[:-1])
    file = save(tmp_path / "model.gguf")
    assert pack_artifact(file, tmp_path / "out", OPTIONS) is None
    assert missing_program(file, OPTIONS)


# The types of llama.cpp's mixes


def test_a_mix_has_the_types_of_published_files() -> None:
    """SmolLM2-135M-Instruct.Q4_1.gguf, whose rows are no superblocks, and the values of Llama 3.2 1B as Q4_K_M."""
    smol = {"token_embd.weight": (49152, 576), "blk.0.attn_norm.weight": (576,), "blk.0.attn_v.weight": (192, 576)}
    assert types_of("Q4_1", smol) == {
        "token_embd.weight": TYPES.Q8_0, "blk.0.attn_norm.weight": TYPES.F32, "blk.0.attn_v.weight": TYPES.Q4_1,
    }  # fmt: skip
    llama = {f"blk.{i}.{name}.weight": (512, 2048) for i in range(16) for name in ("attn_v", "attn_k")}
    types = types_of("Q4_K_M", {"token_embd.weight": (128256, 2048), **llama})
    assert [i for i in range(16) if types[f"blk.{i}.attn_v.weight"] == TYPES.Q6_K] == [0, 1, 4, 7, 10, 13, 14, 15]
    assert {types[f"blk.{i}.attn_k.weight"] for i in range(16)} == {TYPES.Q4_K}
    assert types["token_embd.weight"] == TYPES.Q6_K
