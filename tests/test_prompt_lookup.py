from hypothesis import given
from hypothesis import strategies as st

from hybridge.runtime import Context, PromptLookup, Sampler, Sampling

texts = st.lists(st.integers(0, 2), max_size=40)


def proposed(drafter: PromptLookup, context: Context, limit: int) -> list[int]:
    return drafter.propose(context, limit).tokens


def context(text: list[int]) -> Context:
    return Context(list(text), Sampler(Sampling()))


def looked_up(text: list[int], limit: int, longest: int, shortest: int) -> list[int]:
    """The definition: the longest ending that occurred before, at its latest place, goes on as it did there, over and over."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[len(text) - size :]:
                return [text[end + i % (len(text) - end)] for i in range(limit)]
    return []


@given(text=texts, limit=st.integers(1, 6))
def test_it_finds_what_a_search_of_the_whole_text_finds(text: list[int], limit: int) -> None:
    assert proposed(PromptLookup(4, 2), context(text), limit) == looked_up(text, limit, 4, 2)


@given(text=texts, cuts=st.lists(st.integers(1, 40)))
def test_following_a_growing_text_changes_nothing(text: list[int], cuts: list[int]) -> None:
    drafter, growing = PromptLookup(4, 2), context([])
    for cut in sorted(cuts):
        growing.tokens += text[len(growing.tokens) : cut]
        assert proposed(drafter, growing, 5) == looked_up(text[:cut], 5, 4, 2)


@given(one=texts, other=texts)
def test_another_text_starts_anew(one: list[int], other: list[int]) -> None:
    drafter = PromptLookup(4, 2)
    drafter.propose(context(one), 5)
    assert proposed(drafter, context(other), 5) == looked_up(other, 5, 4, 2)
    assert proposed(drafter, context(other + one), 5) == looked_up(other + one, 5, 4, 2)
