"""Row plans: small cases by hand, and what must hold for every combination."""

from hypothesis import given
from hypothesis import strategies as st

from zipage_sglang.config import ZipageConfig
from zipage_sglang.plan import RowPlan, ceil_page, copy_out_slots, fits_alone, fits_whole, floor_page, plan_row, trigger_len
from zipage_sglang.runtime import default_query_slots


def test_trigger_waits_for_a_window_after_a_long_prefill():
    assert trigger_len(start=10, cap=128, window=8, prefill_len=10) == 138
    assert trigger_len(start=10, cap=128, window=8, prefill_len=135) == 143


def test_kept_prompt_needs_no_copy_and_frees_from_the_next_page():
    # Prompt of 21 in pages of 16: the tree owns the first page; rows 21..53 are kept and end inside the page [48, 64).
    assert plan_row(start=21, budget=32, kv_len=69, protected=16, page=16) == RowPlan(16, 16, 53, 64, 69)


def test_evicted_prompt_is_copied_out_as_far_as_it_is_kept():
    assert plan_row(start=0, budget=32, kv_len=100, protected=80, page=16) == RowPlan(0, 32, 32, 80, 100)
    assert copy_out_slots(start=0, budget=32, protected=80, page=16) == 32


def test_generated_tokens_in_the_tree_are_copied_out_from_the_page_that_holds_the_prompts_end():
    assert plan_row(start=21, budget=32, kv_len=90, protected=80, page=16) == RowPlan(16, 64, 53, 80, 90)


def test_without_a_tree_nothing_is_copied():
    assert plan_row(start=21, budget=32, kv_len=90, protected=0, page=16) == RowPlan(0, 0, 53, 64, 90)


@given(st.data())
def test_every_slot_of_a_row_ends_with_one_owner(data):
    page = data.draw(st.sampled_from([1, 4, 16]))
    budget = page * data.draw(st.integers(1, 8))
    block = page * data.draw(st.integers(1, 4))
    start = data.draw(st.integers(0, 70))
    prefill = data.draw(st.integers(max(start, 1), 200))
    kv_len = max(start + budget + block, prefill + 1) + data.draw(st.integers(0, 3))
    protected = data.draw(st.sampled_from([0, floor_page(start, page), floor_page(prefill, page)]))
    plan = plan_row(start, budget, kv_len, protected, page)
    assert plan.kept == start + budget and plan.evicted > 0
    assert plan.cut % page == plan.copied % page == plan.free_from % page == 0
    tree, copied = range(protected), range(plan.cut, plan.copied)
    # Rows that are written ([start, kept), and the page around start when it is copied) are never the tree's.
    assert all(i in copied for i in range(start, plan.kept) if i in tree)
    # Copied rows are the tree's, and no more than the kept pages.
    assert all(i in tree for i in copied) and plan.copied <= ceil_page(plan.kept, page)
    # What is freed is private, behind the kept pages; what stays behind them belongs to the tree.
    assert plan.free_from >= max(protected, plan.kept)
    assert all(i in tree for i in range(ceil_page(plan.kept, page), min(plan.free_from, kv_len)))
    assert copy_out_slots(start, budget, protected, page) == plan.new_slots


def test_a_bounded_request_fits_alone_and_an_unbounded_prompt_does_not():
    fit = dict(start=100, budget=128, cap=160, window=8, tree=True, page=1)
    assert fits_alone(100, 10**6, pool=263, **fit) and not fits_alone(100, 10**6, pool=262, **fit)
    assert fits_alone(100, 20, pool=123, **fit) and not fits_alone(100, 20, pool=122, **fit)
    # Prefilled again at 300 tokens: the tree owns 300, a window more is decoded, 128 are copied out.
    assert fits_alone(300, 10**6, pool=439, **fit) and not fits_alone(300, 10**6, pool=438, **fit)


@given(page=st.sampled_from([1, 4, 16, 64]), pages=st.integers(10, 60), prompt=st.integers(1, 500), done=st.integers(0, 4000))
def test_a_request_without_a_bound_fits_again_after_a_retraction(page, pages, prompt, done):
    """max_new_tokens as SGLang clips it for a pool that is three pages smaller (`patches/admission.py`)."""
    pool = page * pages
    max_new = max(0, pool - 3 * page - ceil_page(prompt, page) - page - 1)
    if max_new > done:
        assert fits_whole(prompt + done, max_new - done, page, pool)
        # and SGLang's own gate then lets it in
        assert prompt + done + (max_new - done) + page < pool


def test_query_slots():
    """131 requests of K + b tokens fit a pool of 300,000, and one to spare; one in 16 of them is near its trigger."""
    slots = lambda pool=300_000, running=4096, **settings: default_query_slots(ZipageConfig(**settings), pool, running)
    one = dict(passes=1)
    assert (slots(**one), slots(when="pressure"), slots(query_slots=7, **one), slots(query_slots=999, running=500)) == (37, 132, 7, 500)
    assert (slots(passes=2), slots(passes=16)) == (70, 132), "for twice as long; all the time"
    assert slots() == slots(passes=16) and slots(policy="attention") == slots(async_steps=2) == slots(**one)
    assert (slots(running=20, **one), slots(running=3, **one), slots(pool=10, **one)) == (9, 3, 2)
    assert slots(block=16) == 147  # w = b: everybody is near, always
