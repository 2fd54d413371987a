"""The process inside the sandbox: sets its own limits, then runs the program.  Only the standard library, no imports of ours.

    python -I driver.py SOURCE LIMITS_JSON SITE_PACKAGES FUNCTION_OR_EMPTY
"""

import builtins
import json
import os
import resource
import signal
import sys

# What solutions written for a judge's editor use without importing it.
PREAMBLE = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, permutations, product
from math import ceil, comb, floor, gcd, inf, isqrt, lcm, sqrt
from typing import *
"""


def out_of_time(*_):
    os.write(2, b"out of CPU time\n")
    os._exit(1)


def limit(numbers: dict):
    kinds = {"cpu_seconds": resource.RLIMIT_CPU, "memory": resource.RLIMIT_AS, "tasks": resource.RLIMIT_NPROC,
             "file_bytes": resource.RLIMIT_FSIZE}
    for name, kind in kinds.items():
        hard = resource.getrlimit(kind)[1]
        value = numbers[name] if hard == resource.RLIM_INFINITY else min(numbers[name], hard)
        # A second more until the kernel kills: time to say why.
        resource.setrlimit(kind, (value, value + (name == "cpu_seconds" and hard != value)))
    signal.signal(signal.SIGXCPU, out_of_time)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def call(source: str, name: str):
    """Print the function's result as JSON; whatever else is printed goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    arguments = [json.loads(line) for line in sys.stdin.read().splitlines() if line.strip()]
    space = {"__name__": "solution"}
    exec(compile(PREAMBLE, "preamble", "exec"), space)
    exec(compile(source, "solution.py", "exec"), space)
    function = getattr(space["Solution"](), name) if "Solution" in space else space[name]
    json.dump(function(*arguments), out)
    out.flush()


def main():
    path, numbers, packages, name = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        source = file.read()
    limit(json.loads(numbers))
    sys.setrecursionlimit(50_000)
    sys.set_int_max_str_digits(0)
    builtins.exit = builtins.quit = sys.exit  # start-up without the site module leaves them out
    sys.argv = ["solution.py"]
    sys.path.append(packages)
    if name:
        call(source, name)
    else:
        space = {"__name__": "__main__"}
        exec(compile(PREAMBLE, "preamble", "exec"), space)
        exec(compile(source, "solution.py", "exec"), space)


main()
