"""Tokenizer process: a request whose settings cannot be had is refused before it is sent on."""

from __future__ import annotations

from zipage_patches.compat import arguments
from zipage_sglang import per_request


def check_settings(tokenized, manager, obj, input_text, input_ids, *args, **kwargs):
    """AFTER TokenizerManager._create_tokenized_object, where SGLang checks the other sampling parameters: raises ValueError,
    which is HTTP 400 to a client and comes out of Engine.generate as it is."""
    server = manager.server_args
    params = tokenized.sampling_params.custom_params
    if params and getattr(server, "enable_zipage", False):
        page = arguments.resolved(server).page_size
        per_request.request_config(params, server.zipage_config(), page, len(input_ids or ()))
    return None
