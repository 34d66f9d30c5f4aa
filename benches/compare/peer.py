"""What the programs of the peers share: which cases they run, and how these are timed.

A case is a function without arguments that prepares everything and gives another one: the call that is timed, which returns when its
result is there. It has the name of the benchmark of ours that does the same work.
"""

import json
import statistics
import sys
import time

TRIPS = 100_000
MIN_SECONDS, MIN_RUNS = 1.5, 10


def rows(seed, *shape):
    import numpy

    return numpy.random.default_rng(seed).standard_normal(shape, dtype=numpy.float32)


def classes(n):
    import numpy

    return (numpy.arange(n) % 10).astype(numpy.int32)


def main(peer, version, cases):
    """Times the cases that are named in the arguments, or all; prints a line of JSON for each."""
    names = sys.argv[1:] or list(cases)
    for name in names:
        if name not in cases:
            continue
        run = cases[name]()
        for _ in range(2):
            run()
        seconds, start = [], time.perf_counter()
        while len(seconds) < MIN_RUNS or time.perf_counter() - start < MIN_SECONDS:
            before = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - before)
        line = {"peer": f"{peer} {version}", "case": name, "median": statistics.median(seconds), "min": min(seconds)}
        print(json.dumps(line), flush=True)
