"""Softmax sums of the decode queries, where the attention can give what it finds anyway: FlashInfer's decode wrappers can.

With them a window is scored in one pass over the keys instead of two (`zipage_kernels.reference.attention`).
"""

from __future__ import annotations

import contextlib
import inspect

from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from zipage_patches.compat import arguments


def given_by(server_args) -> bool:
    """Whether the attention that decode steps will run gives its sums."""
    view = arguments.resolved(server_args)
    if (view.decode_attention_backend or view.attention_backend) != "flashinfer":
        return False
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    return {"lse", "return_lse"} <= set(inspect.signature(BatchDecodeWithPagedKVCacheWrapper.run).parameters)


@contextlib.contextmanager
def kept(backend, q, layer, forward_batch, out):
    """While it lasts, the decode attention of this layer also writes its queries' log2 softmax sums.

    out: fp32 [B, Hq], on the device.  The wrapper's method is covered by one of the instance, so that FlashInfer stays as it is
    for others.
    """
    if not isinstance(backend, FlashInferAttnBackend):
        backend = backend.decode_backend  # it is put together of two
    wrapper = backend.forward_metadata.decode_wrappers[0]
    run = wrapper.run

    def keeping(*args, **kwargs):
        return run(*args, lse=out, return_lse=True, **kwargs)[0]

    wrapper.run = keeping
    try:
        yield
    finally:
        del wrapper.run
