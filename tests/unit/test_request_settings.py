"""What a request may set for itself: its configuration within the server's limits, or one reason why not."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipage_sglang.compressor import MAX_TOGETHER
from zipage_sglang.config import ZipageConfig
from zipage_sglang.per_request import SETTINGS, InvalidSettings, request_config

SERVER = ZipageConfig(budget=128, block=32, window=8, max_budget=256)
PAGE = 16


def of(asked, server=SERVER, prompt_len=50, page=PAGE):
    return request_config({"zipage": asked}, server, page, prompt_len)


@pytest.mark.parametrize("params", [None, {}, {"thinking_budget": 5}, {"zipage": None}, {"zipage": {}}, {"zipage": {"enabled": True}},
                                    {"zipage": {"budget": 128, "recency": -1}}])
def test_what_says_nothing_new_is_the_servers_configuration(params):
    """Equal to it, so that it is compressed together with all others."""
    assert request_config(params, SERVER, PAGE, 50) == SERVER


def test_settings_and_off():
    asked = {"budget": 64, "recency": 0, "policy": "recent", "alpha": 0.1, "lambda": 1, "tau": 2.5, "sinks": 0, "seed": 3,
             "prefix": "compress"}
    assert set(asked) == set(SETTINGS)
    own = of(asked)
    changed = {f.name for f in dataclasses.fields(own) if getattr(own, f.name) != getattr(SERVER, f.name)}
    assert changed == {field for field, _ in SETTINGS.values()}
    assert own.lam == 1.0 and type(own.lam) is float and own.cap == 64 + 32
    assert of({"budget": 256}).budget == 256
    assert of({"enabled": False}) is None and of({"enabled": False, "budget": 64}) is None


@pytest.mark.parametrize("asked, says", [
    (5, "zipage: must be an object, got 5"),
    (False, "zipage: must be an object, got False"),
    ([], "zipage: must be an object"),
    ({"enabled": 0}, "zipage.enabled: must be true or false, got 0"),
    ({"budget": 64.0}, "zipage.budget: must be an integer, got 64.0"),
    ({"budget": True}, "zipage.budget: must be an integer"),
    ({"budget": "64"}, "zipage.budget: must be an integer"),
    ({"budget": None}, "zipage.budget: must be an integer"),
    ({"budget": 72}, "zipage.budget: must be a multiple of the page size 16, such as 80, got 72"),
    ({"budget": 255}, "such as 256, got 255"),
    ({"budget": 272}, "zipage.budget: at most 256 on this server (--zipage-max-budget), got 272"),
    ({"budget": 10**40}, "zipage.budget: at most 256"),
    ({"budget": 0}, "zipage.budget: must be at least 1"),
    ({"budget": -16}, "zipage.budget: must be at least 1"),
    ({"budget": 16, "recency": 1.0, "prefix": "compress"}, "zipage.budget: 16 cannot hold what is always kept: 16 latest tokens "
                                                         "(--zipage-window, zipage.recency) and 4 sinks (zipage.sinks)"),
    ({"enabled": False, "budget": 1}, "zipage.budget"),
    ({"recency": 1.5}, "zipage.recency: must be a share"),
    ({"recency": float("nan")}, "zipage.recency: must be a share"),
    ({"recency": 10**400}, "zipage.recency: 1000000"),
    ({"policy": "best"}, "zipage.policy: must be one of zipage, attention, recent, random"),
    ({"policy": ["recent"]}, "zipage.policy: must be a string"),
    ({"lambda": 2}, "zipage.lambda: must be between 0 and 1"),
    ({"lam": 0.5}, "zipage.lam: a request can set enabled, budget, recency"),
    ({"window": 8}, "zipage.window: a request can set"),
    ({"max_budget": 4096}, "zipage.max_budget: a request can set"),
    ({7: 1}, "zipage.7: a request can set"),
    ({"sinks": 10**30}, "zipage.sinks: must not exceed the budget of 128"),
    ({"prefix": "drop"}, "zipage.prefix: must be one of"),
])
def test_what_cannot_be_had_is_refused_by_name(asked, says):
    with pytest.raises(InvalidSettings, match=r"^custom_params\.zipage") as error:
        of(asked)
    assert says in str(error.value) and len(str(error.value)) < 250
    assert isinstance(error.value, ValueError)


def test_what_the_operator_allows():
    strict = dataclasses.replace(SERVER, per_request="no-off")
    assert of({"budget": 64}, strict).budget == 64
    with pytest.raises(InvalidSettings, match="--zipage-per-request no-off"):
        of({"enabled": False}, strict)
    closed = dataclasses.replace(SERVER, per_request="none")
    assert request_config({"other": 1}, closed, PAGE, 50) is closed
    for asked in ({}, {"enabled": True}, {"budget": 64}):
        with pytest.raises(InvalidSettings, match="--zipage-per-request none"):
            of(asked, closed)
    with pytest.raises(InvalidSettings, match="at most 128 "):
        of({"budget": 144}, dataclasses.replace(SERVER, max_budget=0))


def test_other_policies_have_no_windows_that_score_early():
    windows = dataclasses.replace(SERVER, passes=4)
    assert of({"policy": "random"}, windows).windows == 1 and of({"budget": 64}, windows).windows == 4


def test_a_policy_needs_its_tables():
    bare = dataclasses.replace(SERVER, policy="attention")
    assert of({"policy": "random"}, bare).policy == "random"
    with pytest.raises(InvalidSettings, match="zipage.policy: 'zipage' needs a table"):
        of({"policy": "zipage"}, bare)


@pytest.mark.parametrize("mode", ["compress", "auto"])
def test_prompts_are_evicted_as_far_as_the_workspace_reaches(mode):
    room = MAX_TOGETHER * (256 + 32) - 8
    assert of({"prefix": mode}, prompt_len=room).start(room) == 0
    with pytest.raises(InvalidSettings, match=f"prompts of more than {room} tokens"):
        of({"prefix": mode}, prompt_len=room + 1)
    evicting = dataclasses.replace(SERVER, prefix="auto")  # the operator has decided that already
    assert of({"prefix": mode}, evicting, prompt_len=10**6).prefix == mode
    assert of({"prefix": "keep"}, evicting, prompt_len=10**6).start(10**6) == 10**6


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5)
ASKED = JSON | st.dictionaries(st.sampled_from(["enabled", *SETTINGS]), JSON | st.sampled_from([16, 64, 0.5, "recent", "keep", False]))


@given(asked=ASKED, prompt_len=st.integers(1, 10_000))
def test_anything_ends_in_a_configuration_within_the_limits_or_in_a_reason(asked, prompt_len):
    try:
        config = of(asked, prompt_len=prompt_len)
    except InvalidSettings as error:
        assert re.match(r"custom_params\.zipage[.:]", str(error))
        return
    if config is not None:
        assert config.budget % PAGE == 0 and config.cap <= SERVER.largest_cap
        assert config.reserve + config.forced_sinks <= config.budget
        for field in ("block", "window", "redundancy", "pooling", "when", "per_request", "max_budget"):
            assert getattr(config, field) == getattr(SERVER, field)
