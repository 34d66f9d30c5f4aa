#!/usr/bin/env python3
"""Input pipelines of PyTorch and TensorFlow, on the files of `cargo bench --bench data --features data`.

    pip install torch==2.15.0 numpy pillow              # in one environment
    pip install tensorflow-cpu==2.21.0 numpy pillow     # in another one
    python benches/compare/data.py --make FOLDER
    ANABRANCH_BENCH_FOLDER=FOLDER python benches/compare/data.py
    ANABRANCH_BENCH_FOLDER=FOLDER python benches/compare/data.py --tensorflow

`benches/data.rs` says what the work is. The order of random numbers is another one. PyTorch's records are
read without their checksums, for which Python has no function. `ANABRANCH_BENCH_THREADS` sets the number of
workers of `DataLoader` and of parallel calls of `tf.data`, 2 by default; workers are kept between passes.
"""

import argparse
import csv
import os
import random
import resource
import statistics
import struct
import time
from pathlib import Path

import numpy as np
from PIL import Image

ROUNDS = 5
CROP = 224
N_PICTURES, N_RECORDS, N_ROWS = 2000, 100_000, 200_000


def crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


def masked_crc(data, table=crc32c_table()):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def make(folder):
    rng = np.random.default_rng(1)
    (folder / "jpeg").mkdir(parents=True, exist_ok=True)
    for i in range(N_PICTURES):
        # Smooth, as photographs are.
        small = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
        picture = Image.fromarray(small).resize((256, 256), Image.Resampling.BICUBIC)
        picture.save(folder / "jpeg" / f"{i:05}.jpg", quality=90)
    # The sums of a hundred records are enough: Python computes them slowly.
    records = [rng.bytes(1024) for _ in range(100)]
    length = struct.pack("<Q", 1024)
    head = length + struct.pack("<I", masked_crc(length))
    framed = [head + record + struct.pack("<I", masked_crc(record)) for record in records]
    with open(folder / "records.tfrecord", "wb") as file:
        for i in range(N_RECORDS):
            file.write(framed[i % 100])
    with open(folder / "rows.csv", "w") as file:
        file.write(",".join("abcdefgh") + "\n")
        for row in rng.normal(size=(N_ROWS, 8)):
            file.write(",".join(f"{x:.6f}" for x in row) + "\n")


def cpu_seconds():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measure(name, loader, n_of_batch=len, end=lambda: None):
    # The time of workers counts when they have ended, so the passes are counted together.
    rates, cpu, n_all = [], cpu_seconds(), 0
    for _ in range(ROUNDS + 1):
        start, n = time.perf_counter(), 0
        for batch in loader:
            n += n_of_batch(batch)
        rates.append(n / (time.perf_counter() - start))
        n_all += n
    end()
    cpu = (cpu_seconds() - cpu) / n_all
    print(f"{name:<10}{statistics.median(rates[1:]):>12.0f} records/s{1e6 * cpu:>10.2f} µs of CPU time each")


def measure_torch(folder, workers):
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    torch.set_num_threads(1)

    class Pictures(Dataset):
        def __init__(self):
            self.paths = sorted((folder / "jpeg").glob("*.jpg"))

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, i):
            with Image.open(self.paths[i]) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            top, left = (random.randrange(extent - CROP + 1) for extent in pixels.shape[:2])
            pixels = pixels[top : top + CROP, left : left + CROP]
            if random.random() < 0.5:
                pixels = pixels[:, ::-1]
            pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
            return torch.from_numpy(pixels).to(torch.float32) / 255

    class Records(IterableDataset):
        def __iter__(self):
            with open(folder / "records.tfrecord", "rb") as file:
                while head := file.read(12):
                    (length,) = struct.unpack("<Q", head[:8])
                    record = file.read(length)
                    file.read(4)
                    yield torch.frombuffer(bytearray(record), dtype=torch.uint8)

    class Rows(IterableDataset):
        def __iter__(self):
            with open(folder / "rows.csv", newline="") as file:
                reader = csv.reader(file)
                next(reader)
                window = []
                for row in reader:
                    window.append(torch.tensor([float(x) for x in row]))
                    if len(window) == 10_000:
                        random.shuffle(window)
                        yield from window
                        window = []
                random.shuffle(window)
                yield from window

    def measure_loader(name, *args, **options):
        loader = DataLoader(*args, persistent_workers=True, **options)
        measure(name, loader, end=lambda: loader._iterator._shutdown_workers())

    measure_loader("jpeg", Pictures(), 32, shuffle=True, num_workers=workers)
    # One worker: two would each read the whole file.
    measure_loader("tfrecord", Records(), 128, num_workers=1)
    measure_loader("csv", Rows(), 256, num_workers=1)


def measure_tensorflow(folder, workers):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_inter_op_parallelism_threads(workers)
    tf.config.threading.set_intra_op_parallelism_threads(1)

    def picture(path):
        pixels = tf.io.decode_jpeg(tf.io.read_file(path), channels=3, dct_method="INTEGER_ACCURATE")
        pixels = tf.image.random_crop(pixels, [CROP, CROP, 3])
        pixels = tf.image.random_flip_left_right(pixels)
        return tf.transpose(tf.cast(pixels, tf.float32) / 255.0, [2, 0, 1])

    def rows(lines):
        return tf.stack(tf.io.decode_csv(lines, [[0.0]] * 8), axis=1)

    def n_of_batch(batch):
        return batch.shape[0]

    paths = sorted(str(path) for path in (folder / "jpeg").glob("*.jpg"))
    pictures = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    measure("jpeg", pictures.map(picture, num_parallel_calls=workers).batch(32).prefetch(2), n_of_batch)
    records = tf.data.TFRecordDataset(str(folder / "records.tfrecord")).batch(128)
    records = records.map(lambda texts: tf.io.decode_raw(texts, tf.uint8), num_parallel_calls=workers)
    measure("tfrecord", records.prefetch(8), n_of_batch)
    # Lines are shuffled as text and decoded a batch at a time, which is the fast way here.
    lines = tf.data.TextLineDataset(str(folder / "rows.csv")).skip(1).shuffle(10_000).batch(256)
    measure("csv", lines.map(rows, num_parallel_calls=workers).prefetch(8), n_of_batch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--make", type=Path)
    parser.add_argument("--tensorflow", action="store_true")
    args = parser.parse_args()
    if args.make:
        return make(args.make)
    workers = int(os.environ.get("ANABRANCH_BENCH_THREADS", "2"))
    print(f"workers: {workers}, load of the machine before: {' '.join(map(str, os.getloadavg()))}")
    measure_any = measure_tensorflow if args.tensorflow else measure_torch
    measure_any(Path(os.environ["ANABRANCH_BENCH_FOLDER"]), workers)


main()
