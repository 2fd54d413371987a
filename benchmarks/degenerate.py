"""Tells replies that lost their way: loops, which say the same again and again, and garble, which says nothing."""

from __future__ import annotations

import zlib

NGRAM = 8  # words
TAIL_WORDS, MIN_WORDS = 1200, 100
# Share of the n-grams in the tail that occurred in it before.  3,000 files of documentation and source code: median 0.01, one
# in a thousand above 0.53.  A loop of 400 words has 0.66 once it fills the tail, one of 20 words 0.98.
LOOP_REPEATED = 0.6
TAIL_BYTES, MIN_BYTES = 4000, 1500
# Size over compressed size (zlib 9) of the tail.  The same files: 2.03 to 14; notes dense with numbers and names: 1.83.
# Short loops, also without blanks between words: above 30.  Tokens drawn at random from a vocabulary: 1.6 to 1.75.
LOOP_RATIO, GARBLE_RATIO = 20.0, 1.8
GARBLE_REPLACED = 0.01  # share of U+FFFD: bytes that are not UTF-8


def judge(text: str) -> str:
    """`loop`, `garble` or `` (nothing to see, or too short to tell)."""
    if repeated(text) > LOOP_REPEATED or ratio(text) > LOOP_RATIO:
        return "loop"
    if 0 < ratio(text) < GARBLE_RATIO or text.count("\N{REPLACEMENT CHARACTER}") > max(GARBLE_REPLACED * len(text), 10):
        return "garble"
    return ""


def repeated(text: str) -> float:
    """Share of repeated n-grams in the last words; 0 for fewer than MIN_WORDS."""
    words = text.split()[-TAIL_WORDS:]
    if len(words) < MIN_WORDS:
        return 0.0
    grams = [tuple(words[i:i + NGRAM]) for i in range(len(words) - NGRAM + 1)]
    return 1 - len(set(grams)) / len(grams)


def ratio(text: str) -> float:
    """Compression ratio of the last bytes; 0 for fewer than MIN_BYTES."""
    tail = text[-TAIL_BYTES:].encode(errors="replace")[-TAIL_BYTES:]
    return len(tail) / len(zlib.compress(tail, 9)) if len(tail) >= MIN_BYTES else 0.0
