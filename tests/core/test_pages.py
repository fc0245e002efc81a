"""Facts about the page allocator: every page comes back, once, and from its last holder."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wkvm.core.pages import PageAllocator


def test_all_pages_can_be_taken_and_no_more() -> None:
    pages = PageAllocator(3)
    assert sorted(pages.alloc(3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="cannot take 1 pages, 0 are free"):
        pages.alloc(1)


def test_where_too_few_are_free_none_is_taken() -> None:
    pages = PageAllocator(3)
    for n in (4, -1):
        with pytest.raises(ValueError, match="cannot take"):
            pages.alloc(n)
        assert pages.n_free == 3


def test_pages_that_were_freed_together_come_again_in_their_order() -> None:
    pages = PageAllocator(8)
    first, second = pages.alloc(3), pages.alloc(4)
    assert (first, second) == ((0, 1, 2), (3, 4, 5, 6))
    assert pages.free(second) == second
    assert pages.alloc(4) == second


def test_a_shared_page_is_free_when_the_last_holder_lets_go() -> None:
    pages = PageAllocator(2)
    taken = pages.alloc(2)
    pages.share(taken[:1])
    assert pages.free(taken) == taken[1:]
    assert pages.free(taken[:1]) == taken[:1]
    assert pages.n_free == 2


@pytest.mark.parametrize("bad", [[0, 1], [0, -1], [0, 2], [0, 0]])
def test_a_page_that_nobody_holds_is_neither_freed_nor_shared(bad: list[int]) -> None:
    pages = PageAllocator(2)
    pages.alloc(1)
    for call in (pages.free, pages.share):
        with pytest.raises(ValueError, match="page"):
            call(bad)
    assert (pages.n_holders(0), pages.n_free) == (1, 1)


@pytest.mark.parametrize("n", [0, -1])
def test_a_pool_has_at_least_one_page(n: int) -> None:
    with pytest.raises(ValueError, match="n_pages"):
        PageAllocator(n)


class PagesMachine(RuleBasedStateMachine):
    """Holders that take, share and let go of pages, in any order."""

    @initialize(n_pages=st.integers(1, 12))
    def start(self, n_pages: int) -> None:
        self.pages = PageAllocator(n_pages)
        self.held = list[tuple[int, ...]]()

    @rule(n=st.integers(0, 6))
    def take(self, n: int) -> None:
        n_free = self.pages.n_free
        try:
            taken = self.pages.alloc(n)
        except ValueError:
            assert n > n_free
        else:
            assert len(set(taken)) == n <= n_free
            assert not any(page in one for one in self.held for page in taken)
            self.held.append(taken)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        some = data.draw(st.sampled_from(self.held))
        part = some[: data.draw(st.integers(0, len(some)))]
        self.pages.share(part)
        self.held.append(part)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        some = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        left = {page for one in self.held for page in one}
        assert self.pages.free(some) == tuple(page for page in some if page not in left)

    @invariant()
    def every_page_is_free_or_held(self) -> None:
        counts = [sum(page in one for one in self.held) for page in range(self.pages.n_pages)]
        assert [self.pages.n_holders(page) for page in range(self.pages.n_pages)] == counts
        assert self.pages.n_free == counts.count(0)

    def teardown(self) -> None:
        for some in self.held:
            self.pages.free(some)
        assert sorted(self.pages.alloc(self.pages.n_pages)) == list(range(self.pages.n_pages))


TestPagesMachine = PagesMachine.TestCase
TestPagesMachine.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
