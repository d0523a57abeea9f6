"""An encoder of pictures computes what transformers' own does, for grids of all shapes and whatever the padding holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from picture_reference import rgb
from public_folders import (
    LFM3_VL_OPTIONS,
    OMNI_OPTIONS,
    save_gemma4_unified,
    save_glm5_next,
    save_lfm3_vl,
    save_nemotron_h_omni,
)
from torch import Tensor

from hybridge.cache.operations.kernels import CoreKernels
from hybridge.export.model.vision import VISION, describe_pictures, read_processor
from hybridge.export.quantize.quantize import quantize_encoder
from hybridge.export.source.checkpoint import LoadedModel, load_checkpoint, resolve_checkpoint
from hybridge.export.weights import PackedLinear
from hybridge.runtime.artifact.options import ExportOptions

PATCH, MERGE = 4, 2


@pytest.fixture(scope="module", params=["lfm3_vl", "glm5_next"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model without learned positions of patches."""
    folder = tmp_path_factory.mktemp(request.param)
    {"lfm3_vl": save_lfm3_vl, "glm5_next": save_glm5_next}[request.param](folder)
    return load_checkpoint(resolve_checkpoint(folder), pictures=True)


def by_squares(values: Tensor, patch: int, merge: int = MERGE) -> Tensor:
    """Cut [height, width, ...] into patches, square by square: [N, patch, patch, ...]."""
    rows, columns = values.shape[0] // patch // merge, values.shape[1] // patch // merge
    cut = values.unflatten(1, (columns, merge, patch)).unflatten(0, (rows, merge, patch))
    return cut.movedim((0, 3, 1, 4, 2, 5), (0, 1, 2, 3, 4, 5)).flatten(0, 3)


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (5, 1), (2, 3), (3, 2), (4, 4)])
@torch.no_grad()
def test_encoders_without_learned_positions(loaded: LoadedModel, size: tuple[int, int]) -> None:
    whole, folder = loaded.whole, loaded.source.folder
    assert whole is not None
    family = VISION[whole.config.model_type]
    processor = read_processor(folder, family)
    picture = torch.from_numpy(rgb(*size))
    want = torch.cat(list(whole.get_image_features(**family.inputs(whole.config, processor, [picture])).pooler_output))
    patches = by_squares(picture, PATCH).flatten(1)
    grid = torch.stack(torch.meshgrid(torch.arange(size[0] * MERGE), torch.arange(size[1] * MERGE), indexing="ij"), -1)
    places = by_squares(grid.float(), 1).reshape(-1, 2)
    count, length = len(patches), 80
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (length - count, patches.shape[1]), dtype=np.uint8))
    description = family.describe(whole.config, processor, ())
    encoder = family.encoder(whole, processor, description, CoreKernels())
    ones = torch.ones(length, 1)
    padded = torch.cat([places, torch.zeros(length - count, 2)])
    got = encoder(torch.cat([patches, noise]), ones, ones, padded, torch.tensor([count]))[0, : len(want)]
    torch.testing.assert_close(got, want, rtol=0, atol=2e-6 * want.abs().max().item())


def test_its_pictures_are_described(loaded: LoadedModel) -> None:
    found, kind = (
        describe_pictures(loaded.source.config, loaded.source.folder, LFM3_VL_OPTIONS),
        loaded.source.config.model_type,
    )
    assert found is not None
    assert (found.model_type, found.unit, found.position_side, found.budgets) == (kind, 8, 1, (6, 20))
    assert found.constants["hybridge_vision_form"] == [1, 0, 1]


@torch.no_grad()
def test_gemma4_unified(tmp_path: Path) -> None:
    """Patches do not see each other, and each is a row of the text."""
    save_gemma4_unified(tmp_path)
    whole = load_checkpoint(resolve_checkpoint(tmp_path), pictures=True).whole
    assert whole is not None
    family = VISION["gemma4_unified"]
    processor = read_processor(tmp_path, family)
    encoder = family.encoder(whole, processor, family.describe(whole.config, processor, ()), CoreKernels())
    for size in ((1, 1), (1, 20), (20, 1), (4, 5)):
        picture = torch.from_numpy(rgb(*size, unit=12))
        want = whole.get_image_features(**family.inputs(whole.config, processor, [picture])).pooler_output[0]
        grid = torch.stack(torch.meshgrid(*map(torch.arange, size), indexing="ij"), -1).float().reshape(-1, 2)
        got = encoder(by_squares(picture, 12, 1).flatten(1), grid, torch.tensor([len(grid)]))[0]
        torch.testing.assert_close(got, want, rtol=0, atol=2e-6 * want.abs().max().item())


@torch.no_grad()
def test_gemma3(square_checkpoint: Path) -> None:
    whole = load_checkpoint(resolve_checkpoint(square_checkpoint), pictures=True).whole
    assert whole is not None
    family = VISION["gemma3"]
    processor = read_processor(square_checkpoint, family)
    picture = torch.from_numpy(rgb(4, 4, unit=12))
    want = whole.get_image_features(**family.inputs(whole.config, processor, [picture])).pooler_output
    encoder = family.encoder(whole, processor, family.describe(whole.config, processor, ()), CoreKernels())
    grid = torch.stack(torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij"), -1).float()
    got = encoder(by_squares(picture, PATCH, 3).flatten(1), by_squares(grid, 1, 3).reshape(-1, 2), torch.tensor([144]))
    torch.testing.assert_close(got, want, rtol=0, atol=2e-6 * want.abs().max().item())


@pytest.mark.parametrize("final_norm", [False, True])
@torch.no_grad()
def test_nemotron_h_omni(tmp_path: Path, *, final_norm: bool) -> None:
    """Registers are before the patches, and learned positions are those of a square's corner."""
    save_nemotron_h_omni(tmp_path, final_norm=final_norm)
    loaded = load_checkpoint(resolve_checkpoint(tmp_path), pictures=True)
    whole = loaded.whole
    assert whole is not None
    assert (whole.vision_final_layernorm is not None) == final_norm
    family = VISION["nemotron_h_omni"]
    processor = read_processor(tmp_path, family)
    sizes = [(1, 1), (1, 20), (20, 1), (3, 2), (4, 5)]
    pictures = [torch.from_numpy(rgb(*size)) for size in sizes]
    inputs = [family.inputs(whole.config, processor, [picture]) for picture in pictures]
    wanted = [whole.get_image_features(**each).pooler_output[0] for each in inputs]
    description = describe_pictures(loaded.source.config, tmp_path, OMNI_OPTIONS)
    assert description is not None
    assert (description.unit, description.budgets, description.min_tokens, description.max_tokens) == (8, (6, 20), 6, 20)
    encoder = family.encoder(whole, processor, description, CoreKernels())
    for size, picture, want in zip(sizes, pictures, wanted, strict=True):
        patches = by_squares(picture, PATCH).flatten(1)
        grid = torch.stack(torch.meshgrid(torch.arange(size[0] * MERGE), torch.arange(size[1] * MERGE), indexing="ij"), -1)
        count, length = len(patches), 80
        noise = np.random.default_rng(0).integers(0, 256, (length - count, patches.shape[1]), dtype=np.uint8)
        places = torch.cat([by_squares(grid.float(), 1).reshape(-1, 2), torch.zeros(length - count, 2)])
        got = encoder(torch.cat([patches, torch.from_numpy(noise)]), places, torch.tensor([count]))[0, : len(want)]
        torch.testing.assert_close(got, want, rtol=0, atol=2e-6 * want.abs().max().item())


def test_together_they_are_encoded_as_apart(omni_checkpoint: Path) -> None:
    """What transformers computes of several pictures at once is what validation compares with."""
    whole = load_checkpoint(resolve_checkpoint(omni_checkpoint), pictures=True).whole
    assert whole is not None
    family, pictures = VISION["nemotron_h_omni"], [torch.from_numpy(rgb(*size)) for size in ((3, 2), (1, 5))]
    with torch.no_grad():
        both = whole.get_image_features(
            **family.inputs(whole.config, read_processor(omni_checkpoint, family), pictures)
        ).pooler_output
        for each, picture in zip(both, pictures, strict=True):
            alone = whole.get_image_features(**family.inputs(whole.config, read_processor(omni_checkpoint, family), [picture]))
            torch.testing.assert_close(each, alone.pooler_output[0])


@torch.no_grad()
def test_groups_divide_the_columns_of_every_layer(square_checkpoint: Path) -> None:
    """The 4304 columns of SigLIP so400m stayed float32, because groups of 32 do not divide them."""
    whole = load_checkpoint(resolve_checkpoint(square_checkpoint), pictures=True).whole
    assert whole is not None
    (part,) = VISION["gemma3"].parts
    layer, said = whole.get_submodule(part).layers[0].mlp, list[str]()
    inputs = torch.randn(5, layer.config.hidden_size)
    want = layer(inputs)
    quantize_encoder(whole, (part,), ExportOptions(quantize="8da4w"), said.append)
    assert said == []
    assert isinstance(layer.fc1, PackedLinear)
    assert isinstance(layer.fc2, PackedLinear)
    assert (layer.fc1.integer, layer.fc2.integer) == (True, True)
    assert (layer.fc1.scales.shape[1], layer.fc2.scales.shape[1]) == (32 // 32, 40 // 8)
    torch.testing.assert_close(layer(inputs), want, rtol=0, atol=0.02 * want.abs().max().item())
