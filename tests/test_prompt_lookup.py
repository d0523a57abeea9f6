import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridge.runtime import Context, PromptLookup, Sampler, Sampling

texts = st.lists(st.integers(0, 2), max_size=40)


def proposed(drafter: PromptLookup, context: Context, limit: int) -> list[int]:
    match = drafter.find(context, limit)
    return match.tokens if match else []


def context(text: list[int]) -> Context:
    return Context(list(text), Sampler(Sampling()))


def looked_up(text: list[int], limit: int, longest: int, shortest: int) -> list[int]:
    """The definition: the longest ending that occurred before, at its latest place, goes on as it did there, over and over."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[len(text) - size :]:
                return [text[end + i % (len(text) - end)] for i in range(limit)]
    return []


@pytest.mark.slow
@given(text=texts, limit=st.integers(1, 6))
def test_it_finds_what_a_search_of_the_whole_text_finds(text: list[int], limit: int) -> None:
    assert proposed(PromptLookup((4, 3, 2)), context(text), limit) == looked_up(text, limit, 4, 2)


@pytest.mark.slow
@given(text=texts, cuts=st.lists(st.integers(1, 40)))
def test_following_a_growing_text_changes_nothing(text: list[int], cuts: list[int]) -> None:
    drafter, growing = PromptLookup((4, 3, 2)), context([])
    for cut in sorted(cuts):
        growing.tokens += text[len(growing.tokens) : cut]
        assert proposed(drafter, growing, 5) == looked_up(text[:cut], 5, 4, 2)


@given(one=texts, other=texts)
def test_another_text_starts_anew(one: list[int], other: list[int]) -> None:
    drafter = PromptLookup((4, 3, 2))
    drafter.propose(context(one), 5)
    assert proposed(drafter, context(other), 5) == looked_up(other, 5, 4, 2)
    assert proposed(drafter, context(other + one), 5) == looked_up(other + one, 5, 4, 2)


@given(text=texts)
def test_a_match_is_as_long_as_it_is(text: list[int]) -> None:
    match = PromptLookup((3, 2, 1)).find(context(text), 1)
    if match is not None:
        ends = [end for end in range(len(text)) if text[max(0, end - match.length) : end] == text[len(text) - match.length :]]
        assert ends


def test_it_trusts_matches_that_were_right_and_no_others() -> None:
    right, wrong = context([1, 2, 3, 9] * 3), context([1, 2, 3, 9] * 3)
    trusting, burnt = PromptLookup(), PromptLookup()
    for i in range(40):
        said = proposed(trusting, right, 30)
        trusting.propose(right, 30)
        right.tokens += said[:3]
        burnt.propose(wrong, 30)
        wrong.tokens += [1, 2, 3, 10 + i]
    wrong.tokens += [1, 2, 3]
    assert (trusting.propose(right, 30).chance or 0) > 0.95
    assert (burnt.propose(wrong, 30).chance or 1) < 0.7
