"""Settings for SGLang's frontend programs.  `sgl.gen` takes no custom_params, so they come with the backend instead:

    full = RuntimeEndpoint("http://localhost:30000", zipage={"enabled": False})
    program.run(question=..., backend=full)
"""

from __future__ import annotations

import sglang as sgl
from zipage_sglang.per_request import KEY


class RuntimeEndpoint(sgl.RuntimeEndpoint):
    """SGLang's backend for a server, with these settings (see docs/requests.md) in every `gen` of the programs that run on it.

    Any number of them may refer to one server.  `select` generates nothing and has no use for settings.
    """

    def __init__(self, base_url: str, *args, zipage: dict, **kwargs):
        super().__init__(base_url, *args, **kwargs)
        self.zipage = zipage

    def generate(self, s, sampling_params):
        return super().generate(s, self._with_settings(sampling_params))

    def generate_stream(self, s, sampling_params):
        return super().generate_stream(s, self._with_settings(sampling_params))

    def _with_settings(self, sampling_params):
        # The interpreter makes them anew for each call.  Read late, because the backend still adds to them.
        to_srt_kwargs = sampling_params.to_srt_kwargs
        sampling_params.to_srt_kwargs = lambda: {**to_srt_kwargs(), "custom_params": {KEY: self.zipage}}
        return sampling_params
