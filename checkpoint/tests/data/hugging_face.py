"""Writes the folder `hugging_face`: the weights of a small model in several files with their index,
as `huggingface_hub` stores them, and checks that Python reads them.

    pip install huggingface_hub==2.4.0 safetensors==0.8.0 torch==2.15.0
    python hugging_face.py
"""

import json
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file

FOLDER = Path(__file__).resolve().parent / "hugging_face"


def numbers(dtype, *shape):
    n = torch.Size(shape).numel()
    return (torch.arange(n, dtype=torch.float64) * 0.37 - 1.5).reshape(shape).to(dtype)


TENSORS = {
    "embed.weight": numbers(torch.float32, 5, 3),
    "layers.0.attention.weight": numbers(torch.bfloat16, 3, 3),
    "layers.0.attention.bias": numbers(torch.bfloat16, 3),
    "layers.1.attention.weight": numbers(torch.float16, 3, 3),
    "layers.1.positions": torch.arange(4, dtype=torch.int64),
    "norm.scale": torch.tensor(0.25),
}

FOLDER.mkdir(exist_ok=True)
save_torch_state_dict(TENSORS, FOLDER, max_shard_size=80)
index = json.loads((FOLDER / "model.safetensors.index.json").read_text())
assert len(set(index["weight_map"].values())) > 1, "there are several files"
for name, tensor in TENSORS.items():
    read = load_file(FOLDER / index["weight_map"][name])[name]
    assert read.dtype == tensor.dtype and torch.equal(read, tensor), name
