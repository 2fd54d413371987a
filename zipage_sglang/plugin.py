"""Entry point of the `sglang.srt.plugins` group."""

from __future__ import annotations


def register():
    """Called by SGLang's plugin loader in every process.

    Errors here are logged and swallowed by the loader; the flags are then unknown, so that a server asked for
    --enable-zipage stops instead of running uncompressed.
    """
    from zipage_patches import install

    install.register_stage1()
