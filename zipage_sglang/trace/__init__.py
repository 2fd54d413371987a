"""Traces of single requests: which positions each compression kept, per layer and KV head.

`recorder` and `writer` run in the scheduler of a server with --zipage-trace; `file` is the format; `page` and `picture`
draw it (`python -m zipage_sglang show`).
"""

from zipage_sglang.trace.file import Trace, load, merge

__all__ = ["Trace", "load", "merge"]
