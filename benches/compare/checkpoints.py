#!/usr/bin/env python3
"""Rates of saving and loading a file of weights with Python's `safetensors`.

    pip install safetensors==0.8.0 numpy
    python benches/compare/checkpoints.py

The same work as the first part of `cargo bench --bench checkpoints --features checkpoints`: matrices of 4 MiB, 1 GiB in
total unless `ANABRANCH_BENCH_MIB` says otherwise. The library does not sync, so the time of a sync is
added, as a durable save needs it. With PyTorch, `safetensors.torch` is measured as well.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import safetensors.numpy

ROUNDS = 5


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def sync(path):
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def measure(name, save, load, tensors, path):
    n_bytes = sum(tensor.nbytes for tensor in tensors.values())
    times = {"save": [], "save and sync": [], "load": []}
    for _ in range(ROUNDS):
        saved = seconds(lambda: save(tensors, path))
        times["save"].append(saved)
        times["save and sync"].append(saved + seconds(lambda: sync(path)))
        times["load"].append(seconds(lambda: load(path)))
    for what, of in times.items():
        of.sort()
        middle, best = n_bytes / of[len(of) // 2] / 1e9, n_bytes / of[0] / 1e9
        print(f"{name + ', ' + what:<44}{middle:6.2f} GB/s, best {best:6.2f}")


def main():
    count = int(os.environ.get("ANABRANCH_BENCH_MIB", "1024")) // 4
    print(f"load of the machine before: {' '.join(map(str, os.getloadavg()))}")
    arrays = {f"layer{i}": np.full((1024, 1024), i, dtype=np.float32) for i in range(count)}
    with tempfile.TemporaryDirectory(dir=os.environ.get("ANABRANCH_BENCH_FOLDER")) as folder:
        path = Path(folder) / "w.safetensors"
        measure("safetensors.numpy", safetensors.numpy.save_file, safetensors.numpy.load_file, arrays, path)
        try:
            import torch
            from safetensors import torch as of_torch
        except ImportError:
            return
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

        # The library maps the file, so that nothing is read until tensors are used: they are copied, as the
        # others do.
        def load(path):
            return {name: tensor.clone() for name, tensor in of_torch.load_file(path).items()}

        measure("safetensors.torch", of_torch.save_file, load, tensors, path)


if __name__ == "__main__":
    main()
