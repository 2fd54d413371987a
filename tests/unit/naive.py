"""The method restated with Python floats and loops, one request, layer and head at a time.  Imports nothing of the package."""

from __future__ import annotations

import math
import struct


def dot(x, y):
    return sum(a * b for a, b in zip(x, y))


def softmax(values):
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    return [weight / sum(weights) for weight in weights]


def window_attention(keys, queries_of_group, scale, start):
    """keys [kv_len][D]; queries_of_group [G][w][D].  I of the rows from `start` on."""
    kv_len, window = len(keys), len(queries_of_group[0])
    per_query = []
    for i in range(window):
        visible = kv_len - window + i + 1
        best = [0.0] * kv_len
        for queries in queries_of_group:
            weights = softmax([dot(queries[i], key) * scale for key in keys[:visible]])
            for j, weight in enumerate(weights):
                best[j] = max(best[j], weight)
        per_query.append(best)
    return [sum(best[j] for best in per_query) / window for j in range(start, kv_len)]


def pool(scores, positions):
    order = sorted(range(len(scores)), key=lambda j: positions[j])
    pooled = [0.0] * len(scores)
    for rank, j in enumerate(order):
        pooled[j] = max(scores[other] for other in order[max(rank - 2, 0) : rank + 3])
    return pooled


def redundancy_sums(keys, positions, threshold=0.5):
    """Row sums of the similarity matrix after the latest similar row of each column is forgiven."""

    def cosine(x, y):
        lengths = math.sqrt(dot(x, x)) * math.sqrt(dot(y, y))
        return dot(x, y) / lengths if lengths else 0.0

    n = len(keys)
    sums = [0.0] * n
    for column in range(n):
        entries = [0.0 if row == column else cosine(keys[row], keys[column]) for row in range(n)]
        similar = [row for row in range(n) if entries[row] > threshold]
        if similar:
            entries[max(similar, key=lambda row: positions[row])] = 0.0
        for row in range(n):
            sums[row] += entries[row]
    return sums


def redundancy(keys, positions, block, tau, mode):
    if mode == "flash":
        return softmax([value / (tau * len(keys)) for value in redundancy_sums(keys, positions)])
    sums = []
    for first in range(0, len(keys), block):
        sums += redundancy_sums(keys[first : first + block], positions[first : first + block])
    return softmax([value / (tau * block) for value in sums])


def best(scores, positions, keep):
    """Candidate indices of the survivors, in row order."""
    value = [-math.inf if math.isnan(score) else score for score in scores]
    order = sorted(range(len(scores)), key=lambda j: (value[j], positions[j]), reverse=True)
    return sorted(order[:keep])


def fill_holes(survivors, keep):
    """Old candidate index of what lies at each of the first `keep` rows afterwards."""
    result = [j if j in survivors else None for j in range(keep)]
    for source in survivors:
        if source >= keep:
            result[result.index(None)] = source
    return result


def bf16(value):
    """Nearest bfloat16, ties to even, of a finite number."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def random_score(seed, layer, head, count, position):
    def mix(x):
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    h = mix(seed)
    for value in (layer, head, count, position):
        h = mix(h ^ value)
    return (h >> 8) / 2**24
