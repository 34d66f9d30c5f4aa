#!/usr/bin/env python3
"""Makes `digits.bin` from the copy of the data set inside a scikit-learn wheel.

    pip download scikit-learn==1.9.1 --no-deps --only-binary=:all:
    python3 examples/data/make_digits.py scikit_learn-*.whl

The wheel's file is a gzipped CSV table, one image per line: 64 pixels row by
row, then the digit. `digits.bin` holds the same numbers in the same order, one
byte each. Only the Python standard library is used.
"""

import gzip
import hashlib
import pathlib
import sys
import zipfile

MEMBER = "sklearn/datasets/data/digits.csv.gz"
MEMBER_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
RECORDS, PIXELS = 1797, 64


def main(wheel):
    packed = zipfile.ZipFile(wheel).read(MEMBER)
    if hashlib.sha256(packed).hexdigest() != MEMBER_SHA256:
        sys.exit(f"{wheel}: {MEMBER} is not the file that digits.bin was made from")
    rows = [[int(field) for field in line.split(",")] for line in gzip.decompress(packed).decode("ascii").splitlines()]
    assert len(rows) == RECORDS
    for row in rows:
        assert len(row) == PIXELS + 1
        assert all(0 <= pixel <= 16 for pixel in row[:PIXELS]) and 0 <= row[PIXELS] <= 9
    data = b"".join(bytes(row) for row in rows)
    out = pathlib.Path(__file__).with_name("digits.bin")
    out.write_bytes(data)
    print(f"{out.name}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
