#!/usr/bin/env python3
"""Makes `charters.txt` from two texts inside Debian's `miscfiles` package.

    apt-get download miscfiles && dpkg -x miscfiles_*.deb miscfiles
    python3 examples/data/make_charters.py miscfiles/usr/share/state

The two texts are joined, runs of blank lines and of blanks become one, and
blanks at line ends go. Nothing else is changed. Only the Python standard
library is used.
"""

import gzip
import hashlib
import pathlib
import re
import sys

PARTS = {
    "us-declaration.gz": "5901585a2ff579de7ba4b8fb15ba46e96f5523fb667546042055e8aea3a2d48e",
    "us-constitution.gz": "e398fe77f26f1ba6ea7ccc6e6f0b0c91c6de08ec7f1e5efa6be60dd39ccce4e6",
}


def main(folder):
    texts = []
    for name, sha256 in PARTS.items():
        text = gzip.decompress((pathlib.Path(folder) / name).read_bytes())
        if hashlib.sha256(text).hexdigest() != sha256:
            sys.exit(f"{name} is not the file that charters.txt was made from")
        text = re.sub(r"[ \t]+", " ", text.decode("ascii"))
        text = re.sub(r" *\n", "\n", text).strip("\n")
        texts.append(re.sub(r"\n{3,}", "\n\n", text))
    data = ("\n\n".join(texts) + "\n").encode("ascii")
    assert set(data) <= {ord("\n"), *range(0x20, 0x7F)}
    out = pathlib.Path(__file__).with_name("charters.txt")
    out.write_bytes(data)
    print(f"{out.name}: {len(data)} bytes, {len(set(data))} different, sha256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
