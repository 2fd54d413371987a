"""Independent oracle: a plain torch decode loop with per-head eviction, sharing no code with the package.

Qwen3 in fp32 (`model`), the scores and the choice of tokens (`scoring`), the loop with its compressions (`decode`) and
the reasoner's files (`reasoner`). There are no pages, slots, batches or kernels here: every layer and KV head keeps its
own tokens in its own rows, and each rule is written the straightforward way.
"""
