from hypothesis import given
from hypothesis import strategies as st

from hybridge.runtime import PromptLookup

texts = st.lists(st.integers(0, 2), max_size=40)


def looked_up(text: list[int], limit: int, longest: int, shortest: int) -> list[int]:
    """The definition: the longest ending that occurred before, at its latest place."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[len(text) - size :]:
                return text[end : end + limit]
    return []


@given(text=texts, limit=st.integers(1, 6))
def test_it_finds_what_a_search_of_the_whole_text_finds(text: list[int], limit: int) -> None:
    assert PromptLookup(4, 2).propose(text, limit) == looked_up(text, limit, 4, 2)


@given(text=texts, cuts=st.lists(st.integers(1, 40)))
def test_following_a_growing_text_changes_nothing(text: list[int], cuts: list[int]) -> None:
    drafter = PromptLookup(4, 2)
    for cut in sorted(cuts):
        assert drafter.propose(text[:cut], 5) == looked_up(text[:cut], 5, 4, 2)


@given(one=texts, other=texts)
def test_another_text_starts_anew(one: list[int], other: list[int]) -> None:
    drafter = PromptLookup(4, 2)
    drafter.propose(one, 5)
    assert drafter.propose(other, 5) == looked_up(other, 5, 4, 2)
