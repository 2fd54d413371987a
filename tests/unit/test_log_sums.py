"""Softmax sums from FlashInfer's decode wrappers: whose, where to, and that nothing else changes.  Without a GPU, so the wrapper's
kernel is played by a function; the backend that chooses among wrappers is SGLang's."""

import types

import pytest
import torch

from sglang.srt.layers.attention.flashinfer_backend import DecodeMetadata, FlashInferAttnBackend, WrapperDispatch
from zipage_patches import log_sums


class Wrapper:
    """As far as sums are concerned."""

    def __init__(self, sum_):
        self.sum = sum_

    def run(self, q, lse=None, return_lse=False):
        if return_lse:
            lse.fill_(self.sum)
            return q, lse
        return q


def backend_of(*wrappers):
    backend = FlashInferAttnBackend.__new__(FlashInferAttnBackend)
    backend.forward_metadata = DecodeMetadata(list(wrappers))
    backend.num_wrappers = len(wrappers)
    backend.dispatch_reason = WrapperDispatch.SLIDING_WINDOW if len(wrappers) > 1 else None
    return backend


LAYER = types.SimpleNamespace(layer_id=3, sliding_window_size=-1, is_cross_attention=False)


def attend(backend, out, run=None):
    """One layer's attention with its sums kept; returns the attention's result."""
    with log_sums.kept(backend, None, LAYER, None, out):
        wrapper = backend.forward_metadata.decode_wrappers[backend._get_wrapper_idx(LAYER)]
        return (run or wrapper.run)("o")


def test_the_sums_are_written_and_the_wrapper_is_as_before():
    out, wrapper = torch.zeros(2, 4), Wrapper(7.0)
    assert attend(backend_of(wrapper), out) == "o" and (out == 7.0).all()
    assert "run" not in vars(wrapper) and wrapper.run("q") == "q"


def test_of_the_wrapper_that_the_layer_uses():
    """Full attention in a model whose configuration names a window: the second."""
    out = torch.zeros(2, 4)
    attend(backend_of(Wrapper(1.0), Wrapper(2.0)), out)
    assert (out == 2.0).all()


def test_a_backend_put_together_of_two():
    out = torch.zeros(2, 4)
    both = types.SimpleNamespace(decode_backend=backend_of(Wrapper(5.0)))
    with log_sums.kept(both, None, LAYER, None, out):
        both.decode_backend.forward_metadata.decode_wrappers[0].run("o")
    assert (out == 5.0).all()


def test_somebody_elses_method_stays():
    wrapper = Wrapper(7.0)
    wrapper.run = own = lambda q, lse, return_lse: (lse.fill_(9.0), None)
    out = torch.zeros(2, 4)
    attend(backend_of(wrapper), out)
    assert wrapper.run is own and (out == 9.0).all()


def test_an_error_in_attention_uncovers_it():
    wrapper = Wrapper(7.0)
    with pytest.raises(ArithmeticError), log_sums.kept(backend_of(wrapper), None, LAYER, None, torch.zeros(2, 4)):
        raise ArithmeticError
    assert "run" not in vars(wrapper)


def test_attention_that_goes_another_way_is_an_error():
    with pytest.raises(RuntimeError, match="layer 3 .*--attention-backend triton"):
        attend(backend_of(Wrapper(7.0)), torch.zeros(2, 4), run=lambda q: q)


@pytest.mark.parametrize(
    "decode, backend, k_scale, given",
    [(None, "flashinfer", None, True), (None, "flashinfer", 1.0, True), ("triton", "flashinfer", None, False),
     ("flashinfer", "triton", None, True), (None, "torch_native", None, False), (None, "flashinfer", 0.5, False)],
)  # fmt: skip
def test_who_gives_sums(decode, backend, k_scale, given):
    """A scale of the checkpoint's keys is in FlashInfer's logits and not in ours."""
    args = types.SimpleNamespace(decode_attention_backend=decode, attention_backend=backend)
    layers = [types.SimpleNamespace(k_scale_float=None), types.SimpleNamespace(k_scale_float=k_scale)]
    assert log_sums.given_by(args, layers) is given
