"""The cases in PyTorch, eager, as its users write them.

`compile` as the first argument runs them under `torch.compile`. Scalar loops are TorchScript, which
is faster than Python, and the LSTM is the library's layer. These, and cases that are one kernel of
the library, are left out under `torch.compile`.
"""

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

from peer import LSTMS, MATRICES, PERCEPTRON, TRIPS, case, cases, classes, ids, main, rows

COMPILED = sys.argv[1:2] == ["compile"]
if COMPILED:
    del sys.argv[1]
torch.set_num_threads(os.cpu_count())


def eager(add):
    """Registers a case that exists only without `torch.compile`."""
    return (lambda prepare: prepare) if COMPILED else add


def array(seed, *shape):
    return torch.from_numpy(rows(seed, *shape))


def labels(n):
    return torch.from_numpy(classes(n)).long()


def written(function):
    return torch.compile(function) if COMPILED else function


def timed(function, *args):
    function = written(function)

    def run():
        with torch.no_grad():
            function(*args)

    return run


def slopes(loss, leaves, *args):
    """Returns a loss and its gradient with respect to a model's parameters and to inputs."""
    loss = written(loss)

    def run():
        for leaf in leaves:
            leaf.grad = None
        loss(*args).backward()

    return run


def training(loss, optimizer, *data):
    loss = written(loss)

    def run():
        optimizer.zero_grad(set_to_none=True)
        loss(*data).backward()
        optimizer.step()

    return run


def classifier(model, optimizer, x):
    loss = lambda x, labels: F.cross_entropy(model(x), labels)
    return training(loss, optimizer(model.parameters()), x, labels(len(x)))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def linear(n: int, x, a: float, b: float):
    i = 0
    while i < n:
        i += 1
        x = x * a + b
    return x


def nested(n: int, x):
    for _ in range(n):
        for _ in range(n):
            if bool(x > 100.0):
                x = x - 100.0
            else:
                x = x + 1.5
    return x


@eager(case)
def scalar_while():
    script, x = torch.jit.script(linear), torch.tensor(1.0)
    return lambda: script(TRIPS, x, 0.999, 0.001)


@eager(case)
def nested_while_with_a_branch():
    script, x = torch.jit.script(nested), torch.tensor(0.0)
    return lambda: script(100, x)


@eager(case)
def gradient_of_1000_trips():
    x = torch.tensor(0.5, requires_grad=True)

    def f():
        y = x
        for _ in range(1000):
            y = torch.tanh(y * 1.01)
        return y

    return slopes(f, [x])


@case
def call_of_one_op():
    return timed(lambda x: x + 1, torch.tensor(1.0))


@eager(case)
def tanh_of_a_64x64_product_in_a_while():
    def f(x, w, n):
        for _ in range(n):
            x = torch.tanh(x @ w)
        return x

    x = (torch.arange(64 * 64) % 7 * 0.01).reshape(64, 64)
    return timed(f, x, x, 2000)


@eager(cases("lstm_512_batch_{}_steps_{}", LSTMS))
def lstm(batch, steps):
    layer = nn.LSTM(512, 512)
    return training(lambda x: layer(x)[0].square().mean(), sgd(layer.parameters()), array(3, steps, batch, 512))


@cases(PERCEPTRON, [()])
def mlp():
    model = nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    return classifier(model, lambda parameters: torch.optim.Adam(parameters, fused=True), array(9, 128, 784))


@eager(case)
def conv_3x3_64_on_56x56_batch_8_forward():
    return timed(lambda x, w: F.conv2d(x, w, padding=1).mean(), array(1, 8, 64, 56, 56), array(2, 64, 64, 3, 3))


@eager(case)
def conv_3x3_64_on_56x56_batch_8_forward_backward():
    x, w = array(1, 8, 64, 56, 56).requires_grad_(), array(2, 64, 64, 3, 3).requires_grad_()
    return slopes(lambda x, w: F.conv2d(x, w, padding=1).square().mean(), [x, w], x, w)


def two_convs():
    return nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())


@case
def two_conv_3x3_relu_forward():
    model = two_convs()
    return timed(lambda x: model(x).square().mean(), array(1, 8, 64, 56, 56))


@case
def two_conv_3x3_relu_forward_backward():
    model, x = two_convs(), array(1, 8, 64, 56, 56).requires_grad_()
    return slopes(lambda x: model(x).square().mean(), [x, *model.parameters()], x)


@case
def lenet_batch_64_sgd():
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
    )
    return classifier(model, sgd, array(5, 64, 1, 28, 28))


@case
def cifar_quick_batch_100_sgd():
    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(3, 2), nn.ReLU(),
        nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, 2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, 2),
        nn.Flatten(), nn.Linear(576, 64), nn.Linear(64, 10),
    )
    return classifier(model, sgd, array(6, 100, 3, 32, 32))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(256), nn.LayerNorm(256)])
        self.heads, self.out = nn.Linear(256, 768), nn.Linear(256, 256)
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        batch, steps, size = x.shape
        q, k, v = self.heads(self.norms[0](x)).view(batch, steps, 3, 4, size // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.relu(self.up(self.norms[1](x))))


@case
def transformer_4_blocks_256_forward_and_backward():
    model = nn.Sequential(*[Block() for _ in range(4)])
    return slopes(lambda x: model(x).square().mean(), list(model.parameters()), array(17, 8, 128, 256))


@eager(cases("product_{0}x{0}x{0}", MATRICES))
def product(n):
    return timed(torch.matmul, array(1, n, n), array(2, n, n))


@eager(cases("product_{0}x{0}x{0}_in_bf16", MATRICES))
def product_in_bf16(n):
    """Matrices of f32, which PyTorch may round to bf16."""
    torch.set_float32_matmul_precision("medium")
    return product(n)


@case
def softmax_4096_1024():
    return timed(lambda x: F.softmax(x, -1), array(1, 4096, 1024))


@case
def layer_norm_4096_1024():
    return timed(lambda x, *norm: F.layer_norm(x, (1024,), *norm), array(1, 4096, 1024), array(2, 1024), array(3, 1024))


@eager(case)
def sum_10_000_000():
    return timed(torch.sum, array(1, 10_000_000))


@case
def tanh_chain_10_000_000():
    return timed(lambda a, b, c, d: torch.tanh(a * b + c) * d - a, *[array(i, 10_000_000) for i in range(4)])


@eager(case)
def gather_8192_of_100000_x_64():
    return timed(F.embedding, torch.from_numpy(ids()), array(1, 100_000, 64))


@eager(case)
def sgd_of_8192_of_100000_x_64():
    # The gradient of the rows is written by hand: PyTorch sorts sparse gradients first, which is
    # slower.
    def step(table, at, by):
        loss = (F.embedding(at, table) * by).sum()
        table.index_add_(0, at, by, alpha=-0.01)
        return loss

    return timed(step, array(1, 100_000, 64), torch.from_numpy(ids()), array(2, 8192, 64))


main("PyTorch-compile" if COMPILED else "PyTorch", torch.__version__.split("+")[0])
