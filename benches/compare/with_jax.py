"""The cases in JAX, each a function under `jit`, as its users write them."""

import jax
import jax.numpy as np
import numpy
from jax import lax

from peer import LSTMS, MATRICES, PERCEPTRON, TRIPS, case, cases, classes, ids, main, rows


def timed(function, *args, donate=()):
    compiled = jax.jit(function, donate_argnums=donate)
    return lambda: jax.block_until_ready(compiled(*args))


def training(loss, state, *data, rate=0.01):
    """Returns a step of SGD that keeps its weights."""

    def step(state, *data):
        value, slope = jax.value_and_grad(loss)(state, *data)
        return value, jax.tree.map(lambda w, g: w - rate * g, state, slope)

    compiled, held = jax.jit(step, donate_argnums=0), [state]

    def run():
        value, held[0] = compiled(held[0], *data)
        jax.block_until_ready(held[0])

    return run


@case
def scalar_while():
    def linear(n, a, b):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * a + b), (0, np.float32(1)))[1]

    return timed(linear, TRIPS, np.float32(0.999), np.float32(0.001))


@case
def nested_while_with_a_branch():
    def inner(s):
        return s[0] + 1, lax.cond(s[1] > 100, lambda x: x - 100, lambda x: x + np.float32(1.5), s[1])

    def nested(n):
        def outer(s):
            return s[0] + 1, lax.while_loop(lambda t: t[0] < n, inner, (0, s[1]))[1]

        return lax.while_loop(lambda s: s[0] < n, outer, (0, np.float32(0)))[1]

    return timed(nested, 100)


@case
def gradient_of_1000_trips():
    # The trip count is fixed: JAX cannot differentiate a loop whose trip count depends on data.
    def f(x):
        return lax.scan(lambda y, _: (np.tanh(y * 1.01), None), x, None, length=1000)[0]

    return timed(jax.grad(f), np.float32(0.5))


@case
def call_of_one_op():
    return timed(lambda x: x + 1, np.float32(1))


@case
def tanh_of_a_64x64_product_in_a_while():
    def f(x, w, n):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, np.tanh(s[1] @ w)), (0, x))[1]

    x = (np.arange(64 * 64, dtype=np.float32) % 7 * 0.01).reshape(64, 64)
    return timed(f, x, x, 2000)


@cases("lstm_512_batch_{}_steps_{}", LSTMS)
def lstm(batch, steps):
    def loss(w, xs):
        inputs = np.einsum("tbi,ij->tbj", xs, w["x"]) + w["b"]

        def cell(state, x):
            h, c = state
            i, f, g, o = np.split(x + h @ w["h"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * np.tanh(g)
            h = jax.nn.sigmoid(o) * np.tanh(c)
            return (h, c), (h * h).mean()

        zeros = np.zeros((batch, 512), np.float32)
        return lax.scan(cell, (zeros, zeros), inputs)[1].mean()

    w = {"x": rows(1, 512, 2048) * 0.04, "h": rows(2, 512, 2048) * 0.04, "b": np.zeros(2048, np.float32)}
    return training(loss, jax.tree.map(np.asarray, w), np.asarray(rows(3, steps, batch, 512)))


def cross_entropy(logits, labels):
    return -np.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1).mean()


@cases(PERCEPTRON, [()])
def mlp():
    sizes = [784, 1024, 1024, 10]
    weights = [(np.asarray(rows(i, m, n) * 0.03), np.zeros(n, np.float32)) for i, (m, n) in enumerate(zip(sizes, sizes[1:]))]

    def loss(weights, x, labels):
        for i, (w, b) in enumerate(weights):
            x = x @ w + b
            x = np.maximum(x, 0) if i < 2 else x
        return cross_entropy(x, labels)

    def adam(state, x, labels):
        t, weights, ms, vs = state
        slope = jax.grad(loss)(weights, x, labels)
        ms = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, ms, slope)
        vs = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, vs, slope)
        a, b = 1 - 0.9**t, 1 - 0.999**t
        weights = jax.tree.map(lambda w, m, v: w - 0.001 * (m / a) / (np.sqrt(v / b) + 1e-8), weights, ms, vs)
        return t + 1, weights, ms, vs

    zeros = jax.tree.map(np.zeros_like, weights)
    compiled, held = jax.jit(adam, donate_argnums=0), [(np.float32(1), weights, zeros, jax.tree.map(np.copy, zeros))]
    x, labels = np.asarray(rows(9, 128, 784)), np.asarray(classes(128))

    def run():
        held[0] = jax.block_until_ready(compiled(held[0], x, labels))

    return run


def conv(x, w, b=None):
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y if b is None else y + b


def pool(x, size, kind):
    window, strides = (1, size, size, 1), (1, 2, 2, 1)
    if kind == "max":
        return lax.reduce_window(x, -np.inf, lax.max, window, strides, "VALID")
    return lax.reduce_window(x, 0.0, lax.add, window, strides, "VALID") / (size * size)


def filters(seed, k, channels, n):
    return np.asarray(rows(seed, k, k, channels, n) * 0.05), np.zeros(n, np.float32)


def dense(seed, m, n):
    return np.asarray(rows(seed, m, n) * 0.03), np.zeros(n, np.float32)


def two_convs(x, layers):
    for w, b in layers:
        x = np.maximum(conv(x, w, b), 0)
    return np.square(x).mean()


@case
def conv_3x3_64_on_56x56_batch_8_forward():
    x, (w, _) = np.asarray(rows(1, 8, 56, 56, 64)), filters(2, 3, 64, 64)
    return timed(lambda x, w: conv(x, w).mean(), x, w)


@case
def conv_3x3_64_on_56x56_batch_8_forward_backward():
    x, (w, _) = np.asarray(rows(1, 8, 56, 56, 64)), filters(2, 3, 64, 64)

    def f(x, w):
        loss, (dx, dw) = jax.value_and_grad(lambda x, w: np.square(conv(x, w)).mean(), (0, 1))(x, w)
        return loss, dx.sum(), dw

    return timed(f, x, w)


@case
def two_conv_3x3_relu_forward():
    return timed(two_convs, np.asarray(rows(1, 8, 56, 56, 64)), [filters(2, 3, 64, 64), filters(3, 3, 64, 64)])


@case
def two_conv_3x3_relu_forward_backward():
    step = jax.value_and_grad(two_convs, (0, 1))
    return timed(step, np.asarray(rows(1, 8, 56, 56, 64)), [filters(2, 3, 64, 64), filters(3, 3, 64, 64)])


@case
def lenet_batch_64_sgd():
    state = [filters(1, 5, 1, 32), filters(2, 5, 32, 64), dense(3, 3136, 512), dense(4, 512, 10)]

    def loss(state, x, labels):
        (a, b), (c, d), (e, f), (g, h) = state
        x = pool(np.maximum(conv(x, a, b), 0), 2, "max")
        x = pool(np.maximum(conv(x, c, d), 0), 2, "max")
        return cross_entropy(np.maximum(x.reshape(64, -1) @ e + f, 0) @ g + h, labels)

    return training(loss, state, np.asarray(rows(5, 64, 28, 28, 1)), np.asarray(classes(64)))


@case
def cifar_quick_batch_100_sgd():
    state = [filters(1, 5, 3, 32), filters(2, 5, 32, 32), filters(3, 5, 32, 64), dense(4, 576, 64), dense(5, 64, 10)]

    def loss(state, x, labels):
        a, b, c, (d, e), (f, g) = state
        x = np.maximum(pool(conv(x, *a), 3, "max"), 0)
        x = pool(np.maximum(conv(x, *b), 0), 3, "avg")
        x = pool(np.maximum(conv(x, *c), 0), 3, "avg")
        return cross_entropy((x.reshape(100, -1) @ d + e) @ f + g, labels)

    return training(loss, state, np.asarray(rows(6, 100, 32, 32, 3)), np.asarray(classes(100)))


@case
def softmax_4096_1024():
    return timed(lambda x: jax.nn.softmax(x), np.asarray(rows(1, 4096, 1024)))


def layer_norm(x, scale, bias):
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-5) * scale + bias


@case
def layer_norm_4096_1024():
    return timed(layer_norm, *[np.asarray(x) for x in (rows(1, 4096, 1024), rows(2, 1024), rows(3, 1024))])


@case
def sum_10_000_000():
    return timed(lambda x: x.sum(), np.asarray(rows(1, 10_000_000)))


@case
def tanh_chain_10_000_000():
    arrays = [np.asarray(rows(i, 10_000_000)) for i in range(4)]
    return timed(lambda a, b, c, d: np.tanh(a * b + c) * d - a, *arrays)


@cases("product_{0}x{0}x{0}", MATRICES)
def product(n):
    return timed(lambda a, b: a @ b, np.asarray(rows(1, n, n)), np.asarray(rows(2, n, n)))


def attention(x, w, b, w_out, b_out):
    batch, steps, size = x.shape
    q, k, v = (x @ w + b).reshape(batch, steps, 3, 4, size // 4).transpose(2, 0, 3, 1, 4)
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) * (size // 4) ** -0.5)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ w_out + b_out


@case
def transformer_4_blocks_256_forward_and_backward():
    def loss(blocks, x):
        for norms, heads, out, up, down in blocks:
            x = x + attention(layer_norm(x, *norms[0]), *heads, *out)
            x = x + np.maximum(layer_norm(x, *norms[1]) @ up[0] + up[1], 0) @ down[0] + down[1]
        return np.square(x).mean()

    def block(i):
        norms = [(np.ones(256), np.zeros(256)), (np.ones(256), np.zeros(256))]
        return norms, dense(i, 256, 768), dense(i + 1, 256, 256), dense(i + 2, 256, 1024), dense(i + 3, 1024, 256)

    return timed(jax.value_and_grad(loss), [block(4 * i) for i in range(4)], np.asarray(rows(17, 8, 128, 256)))


@case
def gather_8192_of_100000_x_64():
    return timed(lambda table, at: np.take(table, at, axis=0), np.asarray(rows(1, 100_000, 64)), np.asarray(ids()))


@case
def sgd_of_8192_of_100000_x_64():
    # The gradient of the rows that are read, not of the table.
    def step(table, at, by):
        loss, slope = jax.value_and_grad(lambda some: (some * by).sum())(np.take(table, at, axis=0))
        return loss, table.at[at].add(-0.01 * slope)

    compiled, held = jax.jit(step, donate_argnums=0), [np.asarray(rows(1, 100_000, 64))]
    at, by = np.asarray(ids()), np.asarray(rows(2, 8192, 64))

    def run():
        _, held[0] = jax.block_until_ready(compiled(held[0], at, by))

    return run


def points():
    i = np.arange(1 << 20)
    return (i % 1024) * np.float32(3 / 1024) - np.float32(2.25), (i // 1024) * np.float32(2.5 / 1024) - np.float32(1.25)


@case
def mandelbrot_1024():
    def escape_time(a, b):
        def more(s):
            x, y, n = s
            return (n < 200) & (x * x + y * y <= 4)

        def step(s):
            x, y, n = s
            return x * x - y * y + a, 2 * x * y + b, n + 1

        return lax.while_loop(more, step, (np.float32(0), np.float32(0), 0))[2]

    return timed(jax.vmap(escape_time), *points())


@case
def collatz_1_000_000():
    # JAX has integers of 64 bits only if they are turned on for the whole process.
    jax.config.update("jax_enable_x64", True)

    def steps(n):
        def step(s):
            n, k = s
            return np.where(n % 2 == 0, n // 2, 3 * n + 1), k + 1

        return lax.while_loop(lambda s: s[0] != 1, step, (n.astype(np.int64), np.int32(0)))[1]

    return timed(jax.vmap(steps), np.arange(1, (1 << 20) + 1, dtype=np.int32))


def radicands():
    numbers = numpy.arange(1 << 20) * 7919 % 10_007
    return np.asarray(numbers.astype(numpy.float32) * numpy.float32(0.1) + numpy.float32(0.1))


@case
def newton_1_000_000():
    def root(a):
        def step(s):
            x, _ = s
            following = 0.5 * (x + a / x)
            return following, np.abs(following - x)

        return lax.while_loop(lambda s: s[1] > 1e-5 * s[0], step, (np.maximum(a, 1), a + 1))[0]

    return timed(jax.vmap(root), radicands())


@case
def newton_1_000_000_gradient():
    # The trip count is fixed, with masks: JAX cannot differentiate a loop whose trip count depends
    # on data. No number needs more than 9 trips.
    def root(a):
        def step(s, _):
            x, change = s
            following = 0.5 * (x + a / x)
            more = change > 1e-5 * x
            return (np.where(more, following, x), np.where(more, np.abs(following - x), change)), None

        return lax.scan(step, (np.maximum(a, 1), a + 1), None, length=9)[0][0]

    return timed(jax.vmap(jax.value_and_grad(root)), radicands())


def filtered(weights, xs, n):
    """Filters the first `n` numbers. Those behind them are masked."""
    w, b = weights

    def step(state, at):
        x, t = at
        following = np.where(x > 0, np.tanh(w * state + x), state * b)
        return np.where(t < n, following, state), None

    return lax.scan(step, np.float32(0), (xs, np.arange(xs.shape[0])))[0]


def sequences():
    lengths = 5 + np.arange(1000) * 7919 % 296
    return (np.float32(0.9), np.float32(0.5)), np.asarray(rows(1, 1000, 300)), lengths


def sum_of_sequences(weights, xs, lengths):
    return jax.vmap(filtered, in_axes=(None, 0, 0))(weights, xs, lengths).sum()


@case
def sequences_1000():
    return timed(sum_of_sequences, *sequences())


@case
def sequences_1000_gradient():
    return timed(jax.value_and_grad(sum_of_sequences), *sequences())


def forward_algorithm(model, symbols, n):
    initial, transitions, emissions = model

    def step(state, x):
        (alpha, log), (symbol, t) = state, x
        total = alpha.sum()
        new = (alpha / total) @ transitions * emissions[symbol]
        goes_on = t < n
        return (np.where(goes_on, new, alpha), log + np.where(goes_on, np.log(total), 0)), None

    first = (initial * emissions[symbols[0]], np.float32(0))
    (alpha, log), _ = lax.scan(step, first, (symbols[1:], np.arange(1, symbols.shape[0])))
    return log + np.log(alpha.sum())


def hidden_markov_model():
    def probabilities(*shape):
        return ((np.arange(numpy.prod(shape)) * 7919 % 13 + 1) / np.float32(13)).reshape(shape)

    symbols = np.asarray((numpy.arange(1000 * 300) * 7919 % 10_007 % 8).reshape(1000, 300))
    lengths = 5 + np.arange(1000) * 7919 % 296
    return (probabilities(4), probabilities(4, 4), probabilities(8, 4)), symbols, lengths


def probability_of_sequences(model, symbols, lengths):
    return jax.vmap(forward_algorithm, in_axes=(None, 0, 0))(model, symbols, lengths).sum()


@case
def hidden_markov_1000():
    return timed(probability_of_sequences, *hidden_markov_model())


@case
def hidden_markov_1000_gradient():
    return timed(jax.value_and_grad(probability_of_sequences), *hidden_markov_model())


def van_der_pol_step(mu, state):
    x, v, t, h = state
    step = np.where(t + h > 5, 5 - t, h)
    dx, dv = v, mu * (1 - x * x) * v - x
    x1, v1 = x + step * dx, v + step * dv
    dx1, dv1 = v1, mu * (1 - x1 * x1) * v1 - x1
    half = 0.5 * step
    x2, v2 = x + half * (dx + dx1), v + half * (dv + dv1)
    error = np.abs(x2 - x1) + np.abs(v2 - v1)
    good = error <= 1e-3
    factor = np.clip(0.9 * np.sqrt(1e-3 / (error + 1e-9)), 0.3, 2.0)
    return np.where(good, x2, x), np.where(good, v2, v), np.where(good, t + step, t), step * factor


def at_rest():
    return tuple(np.float32(x) for x in (2, 0, 0, 0.05))


@case
def van_der_pol_1000():
    def end(mu):
        return lax.while_loop(lambda s: s[2] < 5, lambda s: van_der_pol_step(mu, s), at_rest())[0]

    return timed(jax.vmap(end), np.arange(1000) * np.float32(0.005))


@case
def van_der_pol_1000_gradient():
    # The trip count is fixed, with masks, as for the roots. No oscillator needs more than 330
    # steps.
    def end(mu):
        def step(state, _):
            following = van_der_pol_step(mu, state)
            return tuple(np.where(state[2] < 5, *pair) for pair in zip(following, state)), None

        return lax.scan(step, at_rest(), None, length=330)[0][0]

    return timed(jax.vmap(jax.value_and_grad(end)), np.arange(1000) * np.float32(0.005))


main("JAX", jax.__version__)
