"""Elementwise functions of 10⁷ numbers in JAX and PyTorch, for the table in BENCHMARKS.md.

    target/peers/bin/python benches/compare/functions.py     # peers installed as `run.py` says

Prints the median and the shortest time of 20 calls, in milliseconds. A peer that is not installed is
left out.
"""

import time

import numpy

X = ((numpy.arange(10_000_000) * 7919 % 8192) / 1024.0 - 4.0).astype(numpy.float32)


def measure(peer, name, call):
    call()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    times.sort()
    print(f"{peer:12} {name:8} {times[10] * 1e3:6.2f} {times[0] * 1e3:6.2f}", flush=True)


def with_jax():
    import jax
    import jax.numpy as np

    functions = {
        "exp": np.exp,
        "tanh": np.tanh,
        "sigmoid": jax.nn.sigmoid,
        "silu": jax.nn.silu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "erf": jax.scipy.special.erf,
        "sin": np.sin,
        "log": lambda x: np.log(x * x),
        "pow": lambda x: (x * x) ** 1.7,
        "softplus": jax.nn.softplus,
    }
    x = np.asarray(X)
    for name, function in functions.items():
        compiled = jax.jit(function)
        measure("JAX", name, lambda: compiled(x).block_until_ready())


def with_torch():
    import torch

    functions = {
        "exp": torch.exp,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "erf": torch.erf,
        "sin": torch.sin,
        "log": lambda x: torch.log(x * x),
        "pow": lambda x: (x * x) ** 1.7,
        "softplus": torch.nn.functional.softplus,
    }
    x = torch.from_numpy(X)
    result = torch.empty_like(x)
    with torch.no_grad():
        for name, function in functions.items():
            measure("PyTorch", name, lambda: function(x))
            if name in ("exp", "tanh", "sigmoid", "erf", "sin"):
                measure("PyTorch out=", name, lambda: function(x, out=result))


for peer in (with_jax, with_torch):
    try:
        peer()
    except ImportError as missing:
        print(f"left out: {missing}")
