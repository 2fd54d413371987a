"""What admission reserves for a request is what its row takes at most, from its prefill to its end, whatever comes early."""

import types

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from zipage_patches import admission
from zipage_sglang import plan
from zipage_sglang.config import ZipageConfig
from zipage_sglang.state import RequestState


class Life:
    """One request from its (re)prefill on, as the engine that admission asks; slots that the tree owns are its own here, too."""

    def __init__(self, config, prompt, done, remaining, tree, page, early):
        self.config, self.page, self.has_tree = config, page, tree
        self.kv, self.protected = prompt + done, plan.floor_page(prompt + done, page) if tree else 0
        self.origin_input_ids, self.output_ids = [0] * prompt, [0] * done
        self.sampling_params = types.SimpleNamespace(max_new_tokens=done + remaining)
        self.row = RequestState(config.start(prompt), prompt + done, config, early=early)

    def config_of(self, req):
        return self.config

    def start(self, req):
        return self.row.start

    def state(self, req):
        return self.row

    def kv_len(self, req):
        return self.kv

    def protected_len(self, req):
        return self.protected

    @property
    def held(self):
        return plan.ceil_page(self.kv, self.page)

    def compress(self):
        """Slots that it holds in the middle of it, copies included."""
        todo = plan.plan_row(self.row.start, self.config.budget, self.kv, self.protected, self.page)
        most = self.held + todo.new_slots
        self.protected = min(self.protected, todo.cut) if todo.new_slots else self.protected
        self.row.count, self.row.evicted, self.kv = self.row.count + 1, self.row.evicted + todo.evicted, todo.kept
        return most


@st.composite
def lives(draw):
    page = draw(st.sampled_from([1, 4, 8]))
    block = page * draw(st.integers(1, 8))
    window = draw(st.integers(1, block))
    budget = page * draw(st.integers(1, 12))
    assume(budget >= window)
    config = ZipageConfig(budget=budget, block=block, window=window, spread=draw(st.integers(0, block)), recency=0.0, sinks=0,
                          prefix=draw(st.sampled_from(["keep", "compress", "auto"])))  # fmt: skip
    return Life(config, draw(st.integers(1, 120)), draw(st.sampled_from([0, 0, 40, 150])), draw(st.integers(1, 200)),
                draw(st.booleans()), page, config.early(draw(st.integers(0, 1000))))  # fmt: skip


def early_one():
    config = ZipageConfig(budget=64, block=64, window=16, spread=64)
    return Life(config, 8, 0, 400, False, 1, 63)


@given(life=lives())
@example(life=early_one())
@settings(max_examples=400, deadline=None)
def test_a_row_never_takes_more_than_was_reserved(life):
    """Others may have taken all but the least that was ever reserved for it."""
    reserved = life.held + admission._waiting_growth(life, life, life.page) + life.page
    remaining = life.sampling_params.max_new_tokens - len(life.output_ids)
    for left in range(remaining, -1, -1):
        if life.kv >= life.row.trigger and left:
            assert life.compress() <= reserved
        assert life.held <= reserved
        reserved = min(reserved, life.held + admission.running_growth(life, life, life.page))
        life.kv += 1
        life.output_ids.append(0)
