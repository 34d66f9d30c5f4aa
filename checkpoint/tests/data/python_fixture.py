"""Writes `python.hex`: the bytes of a file that Python's `safetensors` makes of the tensors that
`files.rs` has, and checks that Python reads the same elements from it.

    pip install safetensors==0.8.0
    python python_fixture.py
"""

import ctypes
import struct
from pathlib import Path

from safetensors import TensorSpec, deserialize, serialize

HERE = Path(__file__).resolve().parent


def words(form, *values):
    return struct.pack(f"<{len(values)}{form}", *values)


# The elements as bits: infinities, a quiet and a signaling NaN with payloads, -0, a subnormal.
TENSORS = {
    "model.f32": ("float32", [2, 3], words("I", 0x3F800000, 0x7FC12345, 0xFF812345, 0x80000000, 1, 0x7F800000)),
    "model.f64": ("float64", [2], words("Q", 0x7FF8000000ABCDEF, 0xFFF4000000000001)),
    "model.f16": ("float16", [3], words("H", 0x7E01, 0xFC01, 0x8000)),
    "model.bf16": ("bfloat16", [3], words("H", 0x7FC1, 0xFF81, 0x0001)),
    "model.i32": ("int32", [2], words("i", -(2**31), 2**31 - 1)),
    "model.i64": ("int64", [], words("q", -(2**63))),
    "model.u32": ("uint32", [1, 1], words("I", 2**32 - 1)),
    "model.u8": ("uint8", [3], bytes([0, 128, 255])),
    "model.bool": ("bool", [3], bytes([1, 0, 1])),
    "model.empty": ("float32", [0, 7], b""),
    'odd "name"\n\u00e9': ("float32", [1], words("f", 0.5)),
}

kept = {name: ctypes.create_string_buffer(data, max(len(data), 1)) for name, (_, _, data) in TENSORS.items()}
specs = {}
for name, (dtype, shape, data) in TENSORS.items():
    address = ctypes.addressof(kept[name])
    specs[name] = TensorSpec(dtype=dtype, shape=shape, data_ptr=address, data_len=len(data))
made = bytes(serialize(specs))
read = dict(deserialize(made))
for name, (_, shape, data) in TENSORS.items():
    assert bytes(read[name]["data"]) == data and list(read[name]["shape"]) == shape, name
text = made.hex()
lines = [text[i : i + 96] for i in range(0, len(text), 96)]
(HERE / "python.hex").write_text("\n".join(lines) + "\n")
