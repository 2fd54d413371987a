"""Which requests are first compressed how early: by turn, or alike where equal requests must get equal answers."""

import types

import pytest

from sglang.srt.sampling.sampling_params import SamplingParams
from zipage_patches.engine import SGLangEngine


def numbers(deterministic, prompts, **sampling):
    engine = object.__new__(SGLangEngine)  # what a scheduler gives it does not matter here
    engine.deterministic, engine._turns = deterministic, 0
    params = SamplingParams(max_new_tokens=9, **sampling)
    params.normalize(None)
    return [engine._number(types.SimpleNamespace(sampling_params=params, origin_input_ids=ids)) for ids in prompts]


@pytest.mark.parametrize("seed", [{}, {"sampling_seed": 7}])
def test_samples_of_one_prompt_are_spread_by_turn(seed):
    assert numbers(False, [[1, 2, 3]] * 4, temperature=0.6, **seed) == [1, 2, 3, 4]


@pytest.mark.parametrize("deterministic, sampling", [(False, dict(temperature=0)), (True, dict(temperature=0)),
                                                     (True, dict(temperature=0.6)), (True, dict(temperature=0.6, sampling_seed=-7))])  # fmt: skip
def test_equal_requests_are_alike_where_their_answers_are(deterministic, sampling):
    first, again, other = numbers(deterministic, [[1, 2, 3], [1, 2, 3], [1, 2, 4]], **sampling)
    assert first == again != other


def test_seeds_tell_requests_apart():
    one, two = (numbers(True, [[1, 2, 3]], temperature=0.6, sampling_seed=seed) for seed in (7, 8))
    assert one != two
