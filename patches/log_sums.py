"""Softmax sums of the decode queries, where the attention can give what it finds anyway: FlashInfer's decode wrappers can.

With them a window is scored in one pass over the keys instead of two (`zipage_kernels.reference.attention`).
"""

from __future__ import annotations

import contextlib
import inspect

from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from zipage_patches.compat import arguments


def given_by(server_args, layers) -> bool:
    """Whether the attention that decode steps will run gives its sums, and of the same logits that scores are made of.

    layers: the RadixAttention of each.  A checkpoint's scale of quantised keys is in FlashInfer's logits, whatever a pool holds.
    """
    view = arguments.resolved(server_args)
    if (view.decode_attention_backend or view.attention_backend) != "flashinfer":
        return False
    if any(layer.k_scale_float not in (None, 1.0) for layer in layers):
        return False
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    return {"lse", "return_lse"} <= set(inspect.signature(BatchDecodeWithPagedKVCacheWrapper.run).parameters)


@contextlib.contextmanager
def kept(backend, q, layer, forward_batch, out):
    """While it lasts, the decode attention of this layer also writes its queries' log2 softmax sums.

    out: fp32 [B, Hq], on the device.  The wrapper's method is covered by one of the instance, so that FlashInfer stays as it is
    for others.  Raises RuntimeError if the attention went another way: it would leave sums of an earlier step behind.
    """
    if not isinstance(backend, FlashInferAttnBackend):
        backend = backend.decode_backend  # it is put together of two
    wrapper = backend.forward_metadata.decode_wrappers[backend._get_wrapper_idx(layer)]
    run, before, done = wrapper.run, wrapper.__dict__.get("run"), False

    def keeping(*args, **kwargs):
        nonlocal done
        done = True
        return run(*args, lse=out, return_lse=True, **kwargs)[0]

    wrapper.run = keeping
    try:
        yield
    finally:
        if before is None:
            del wrapper.run
        else:
            wrapper.run = before
    if not done:
        raise RuntimeError(f"layer {layer.layer_id} did not go through FlashInfer's decode wrapper, which gives softmax sums: "
                           "start with --attention-backend triton")
