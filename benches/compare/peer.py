"""The code that the programs of the other frameworks share: the list of cases, and their timing.

A case is a function without arguments that prepares the work and returns the call to time, which
returns when its result is complete. It has the name of anabranch's benchmark for the same work.
"""

import functools
import json
import pathlib
import statistics
import sys
import time

import numpy

TRIPS = 100_000
LSTMS = [(32, 50), (32, 200), (128, 50), (128, 200)]
MATRICES = [256, 512, 1024, 2048]
PERCEPTRON = "mlp_784_1024_1024_10_batch_128"
MIN_SECONDS, MIN_RUNS, MAX_SECONDS = 1.0, 5, 8.0
CASES = {}


def case(prepare):
    """Registers a case under the name of the function."""
    CASES[prepare.__name__] = prepare
    return prepare


def cases(pattern, arguments):
    """Registers a case for each argument or tuple of arguments, which replace the `{}` of the name."""

    def add(prepare):
        for one in arguments:
            one = one if isinstance(one, tuple) else (one,)
            CASES[pattern.format(*one)] = functools.partial(prepare, *one)
        return prepare

    return add


def rows(seed, *shape):
    return numpy.random.default_rng(seed).standard_normal(shape, dtype=numpy.float32)


def classes(n):
    return (numpy.arange(n) % 10).astype(numpy.int32)


def ids():
    return numpy.random.default_rng(1).integers(0, 100_000, 8192).astype(numpy.int32)


def measure(run, quick):
    """Returns the durations of calls in seconds. Short calls are timed many at once."""
    run()
    # The first call also compiles, so only the next one shows how long a call takes.
    start = time.perf_counter()
    run()
    once = time.perf_counter() - start
    if quick:
        return [once]
    at_once = max(1, int(1e-3 / once))
    seconds, start, passed = [], time.perf_counter(), 0.0
    while passed < MIN_SECONDS or (len(seconds) < MIN_RUNS and passed < MAX_SECONDS):
        before = time.perf_counter()
        for _ in range(at_once):
            run()
        now = time.perf_counter()
        seconds.append((now - before) / at_once)
        passed = now - start
    return seconds


def main(peer, version):
    """Times the cases named in the arguments, or all of them. Prints a line of JSON for each.

    The case `startup` runs one step of the MLP and prints the peak of memory. The caller measures
    the time of the process.
    """
    quick = "--quick" in sys.argv
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    for name in names or CASES:
        line = {"peer": f"{peer} {version}", "case": name}
        if name == "startup":
            CASES[PERCEPTRON]()()
            status = pathlib.Path("/proc/self/status").read_text()
            line["peak"] = int(status.split("VmHWM:")[1].split()[0]) * 1024
        elif name in CASES:
            seconds = measure(CASES[name](), quick)
            line.update(median=statistics.median(seconds), best=min(seconds))
        else:
            continue
        print(json.dumps(line), flush=True)
