"""Define the exported methods, each a module over the one ``State``.

Signatures are those of the artifact (docs/artifact.md). A method refuses by returning -1 or NaN logits and leaves the state as
it was; by arithmetic, because lowering drops assertions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hybridge.cache.block import Seeing
from hybridge.export.drafters.drafter import ArtifactDrafter
from hybridge.export.program.state import Outputs, State
from hybridge.runtime.artifact.options import shorter_verify
from hybridge.runtime.artifact.pictures import PictureDescription


class ProgramMethod(nn.Module):
    """A method of the program."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state


class Prefill(ProgramMethod):
    """tokens [1, C], n [1] -> logits [1, 1, V] of token n; commits the first n."""

    def forward(self, tokens: Tensor, n: Tensor) -> Outputs:
        return self.state.tapped(*self.state.extend(tokens, n))


class PrefillEmbeddings(ProgramMethod):
    """embeddings [1, C, H], n [1] -> logits [1, 1, V] of row n; commits the first n rows, such as those of a picture.

    If rows of a picture see each other, they are a whole picture's.
    """

    def __init__(self, state: State, bidirectional: Seeing) -> None:
        super().__init__(state)
        self.bidirectional = bidirectional

    def forward(self, embeddings: Tensor, n: Tensor) -> Outputs:
        return self.state.tapped(*self.state.extend(embeddings, n, self.bidirectional))


class PrefillPicture(ProgramMethod):
    """embeddings [1, C, H], grid [3, C], advance [1], n [1] -> logits [1, 1, V] of row n; commits the first n rows.

    Their rope positions are those of the grid from the text's next one on, which moves on by ``advance``.
    """

    def forward(self, embeddings: Tensor, grid: Tensor, advance: Tensor, n: Tensor) -> Outputs:
        return self.state.tapped(*self.state.extend_by_picture(embeddings, grid, advance, n))


class EncodePicture(ProgramMethod):
    """pixels [N, P], rows [N, R], columns [N, R], n [1] -> embeddings [1, N / merge², H]; touches no state.

    An encoder with rope takes places [N, 2], the row and column of each patch, before n; rows and columns are left out if it
    looks up positions by them.
    """

    def forward(self, *patches: Tensor) -> Tensor:
        assert self.state.vision is not None
        embeddings: Tensor = self.state.vision(*patches)
        return embeddings


class Decode(ProgramMethod):
    """tokens [1, 1] -> logits [1, 1, V]; commits it."""

    def forward(self, tokens: Tensor) -> Outputs:
        return self.state.tapped(*self.state.extend(tokens, torch.ones(1, dtype=torch.long)))


class Verify(ProgramMethod):
    """tokens [1, S] -> logits [1, S, V]; stages them and commits nothing. S is the longest block's or a shorter one's."""

    def forward(self, tokens: Tensor) -> Outputs:
        hidden = self.state.hidden(tokens, self.state.cache.speculate(tokens.shape[1]))
        return self.state.tapped(self.state.model.logits(hidden), hidden)


class Commit(ProgramMethod):
    """n [1] -> length [1]; commits the first n staged tokens."""

    def forward(self, n: Tensor) -> Tensor:
        return self.state.cache.commit(n)


class SnapshotSlot(ProgramMethod):
    """slot [1] -> length [1]; keeps the committed state."""

    def forward(self, slot: Tensor) -> Tensor:
        return self.state.cache.write_slot(slot)


class RestoreSlot(ProgramMethod):
    """slot [1] -> length [1]; restores the slot's state."""

    def forward(self, slot: Tensor) -> Tensor:
        return self.state.cache.read_slot(slot)


class Reset(ProgramMethod):
    """-> length [1], which is 0."""

    def forward(self) -> Tensor:
        return self.state.cache.clear(torch.ones(1, dtype=torch.bool))


class Forward(ProgramMethod):
    """tokens [1, 1], start_pos [1] -> logits [1, 1, V]; ExecuTorch's stock runners call it. Position 0 resets the state.

    A position other than 0 or the length is refused with NaN, because recurrent state has no earlier positions.
    """

    def forward(self, tokens: Tensor, start_pos: Tensor) -> Tensor:
        self.state.cache.clear(start_pos == 0)
        expected = (start_pos == self.state.cache.length).to(torch.long)
        return self.state.extend(tokens, expected)[0]


class DrafterMethod(ProgramMethod):
    """A method of the drafter, over pairs of tapped hidden states [1, T, F] and the tokens [1, T] that followed them."""

    @property
    def drafter(self) -> ArtifactDrafter:
        assert self.state.drafter is not None
        return self.state.drafter


class DraftTokens(DrafterMethod):
    """hidden [1, S, F], tokens [1, S], n [1] and inputs for sampling -> draft tokens and probabilities.

    Reads the first n pairs, then proposes ``draft_len`` tokens after the last one; -1 if refused. See
    ``ArtifactDrafter``.
    """

    def __init__(self, state: State, draft_len: int) -> None:
        super().__init__(state)
        self.draft_len = draft_len

    def forward(self, hidden: Tensor, tokens: Tensor, n: Tensor, *draws: Tensor) -> Outputs:
        return self.drafter.draft(self.state.target, self.draft_len, hidden, tokens, n, *draws)


class DraftPrefill(DrafterMethod):
    """hidden [1, C, F], tokens [1, C], n [1] -> the drafter's length [1]; reads the first n pairs. -1 if refused."""

    def forward(self, hidden: Tensor, tokens: Tensor, n: Tensor) -> Tensor:
        return self.drafter.read(self.state.target, hidden, tokens, n)


def build_methods(
    state: State,
    shorter_verify_lens: Sequence[int] = (),
    pictures: PictureDescription | None = None,
    delegated: Mapping[str, str] | None = None,
) -> Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return each method of the artifact with example inputs of its fixed shapes; slots only if the cache has any.

    delegated: methods that an accelerator has as well, by name, with the CPU's.
    """
    sizes = state.cache.sizes
    one = torch.ones(1, dtype=torch.long)
    methods: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        "prefill": (Prefill(state), (blank_tokens(sizes.prefill_chunk), one)),
        "decode": (Decode(state), (blank_tokens(1),)),
        "verify": (Verify(state), (blank_tokens(sizes.verify_len),)),
        **{shorter_verify(length): (Verify(state), (blank_tokens(length),)) for length in shorter_verify_lens},
        "forward": (Forward(state), (blank_tokens(1), one)),
        "commit": (Commit(state), (one,)),
        "reset": (Reset(state), ()),
    }
    if sizes.snapshot_slots:
        methods |= {"snapshot": (SnapshotSlot(state), (one,)), "restore": (RestoreSlot(state), (one,))}
    if state.drafter is not None:
        methods |= draft_methods(state, state.drafter)
    if pictures is not None:
        methods |= picture_methods(state, pictures)
    return {name: methods[like] for name, like in (delegated or {}).items()} | methods


def picture_methods(state: State, pictures: PictureDescription) -> Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return the methods for pictures, with example inputs."""

    def patches(tokens: int) -> tuple[Tensor, ...]:
        count = tokens * pictures.merge**2
        pixels = torch.zeros(count, 3 * pictures.patch_size**2, dtype=torch.uint8)
        weights = torch.full((count, pictures.position_side), 1 / pictures.position_side)
        places = (torch.zeros(count, 2),) if pictures.form.has_rope else ()
        interpolated = () if pictures.form.has_table else (weights, weights.clone())
        return pixels, *interpolated, *places, torch.full((1,), count, dtype=torch.long)

    chunk, one = pictures.rows(state.cache.sizes.prefill_chunk), torch.ones(1, dtype=torch.long)
    embeddings = torch.zeros(1, chunk, state.model.width)
    encoding = {name: (EncodePicture(state), patches(tokens)) for name, tokens in pictures.methods.items()}
    if state.rope is None:
        prefill = PrefillEmbeddings(state, pictures.seeing)
        return {**encoding, "prefill_embeddings": (prefill, (embeddings, one))}
    grid = torch.zeros(3, chunk, dtype=torch.long)
    return {**encoding, "prefill_embeddings": (PrefillPicture(state), (embeddings, grid, one, one.clone()))}


def draft_methods(state: State, drafter: ArtifactDrafter) -> Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return the methods of the drafter, with example inputs."""

    def pairs(tokens: int) -> tuple[Tensor, ...]:
        return torch.zeros(1, tokens, drafter.width), blank_tokens(tokens), torch.ones(1, dtype=torch.long)

    sizes = state.cache.sizes
    proposing = {
        name: (DraftTokens(state, draft_len), (*pairs(sizes.verify_len), *drafter.draws(draft_len)))
        for name, draft_len in drafter.description.methods.items()
    }
    return {**proposing, "draft_prefill": (DraftPrefill(state), pairs(sizes.prefill_chunk))}


def blank_tokens(count: int) -> Tensor:
    """Return int64 zeros [1, count]."""
    return torch.zeros(1, count, dtype=torch.long)
