"""The cases in TensorFlow, each under `tf.function`, as its users write them.

`xla` as the first argument compiles them with XLA.
"""

import sys

import tensorflow as tf

from peer import LSTMS, MATRICES, PERCEPTRON, TRIPS, case, cases, classes, ids, main, rows

XLA = sys.argv[1:2] == ["xla"]
if XLA:
    del sys.argv[1]


def timed(function, *args):
    compiled = tf.function(function, jit_compile=XLA)
    args = [tf.constant(x) for x in args]
    # On the CPU a call returns when it is done.
    return lambda: compiled(*args)


def training(loss, variables, *data, rate=0.01):
    def step(*data):
        with tf.GradientTape() as tape:
            value = loss(*data)
        for variable, slope in zip(variables, tape.gradient(value, variables)):
            variable.assign_sub(rate * slope)
        return value

    return timed(step, *data)


@case
def scalar_while():
    def linear(n, a, b):
        i, x = tf.constant(0), tf.constant(1.0)
        while i < n:
            i += 1
            x = x * a + b
        return x

    return timed(linear, TRIPS, 0.999, 0.001)


@case
def nested_while_with_a_branch():
    def nested(n):
        i, x = tf.constant(0), tf.constant(0.0)
        while i < n:
            j = tf.constant(0)
            while j < n:
                if x > 100.0:
                    x -= 100.0
                else:
                    x += 1.5
                j += 1
            i += 1
        return x

    return timed(nested, 100)


@case
def gradient_of_1000_trips():
    def f(x, n):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, i = x, tf.constant(0)
            while i < n:
                tf.autograph.experimental.set_loop_options(maximum_iterations=1000)
                y = tf.tanh(y * 1.01)
                i += 1
        return tape.gradient(y, x)

    return timed(f, 0.5, 1000)


@case
def call_of_one_op():
    return timed(lambda x: x + 1.0, 1.0)


@case
def tanh_of_a_64x64_product_in_a_while():
    def f(x, w, n):
        i = tf.constant(0)
        while i < n:
            x = tf.tanh(x @ w)
            i += 1
        return x

    x = (tf.range(64 * 64) % 7).numpy().astype("float32").reshape(64, 64) * 0.01
    return timed(f, x, x, 2000)


@cases("lstm_512_batch_{}_steps_{}", LSTMS)
def lstm(batch, steps):
    wx, wh = tf.Variable(rows(1, 512, 2048) * 0.04), tf.Variable(rows(2, 512, 2048) * 0.04)
    b = tf.Variable(tf.zeros(2048))

    def loss(xs):
        h = c = tf.zeros((batch, 512))
        total = tf.constant(0.0)
        inputs = tf.tensordot(xs, wx, 1) + b
        for t in tf.range(steps):
            tf.autograph.experimental.set_loop_options(maximum_iterations=steps)
            i, f, g, o = tf.split(inputs[t] + h @ wh, 4, axis=-1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            total += tf.reduce_mean(h * h)
        return total / float(steps)

    return training(loss, [wx, wh, b], rows(3, steps, batch, 512))


def cross_entropy(logits, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def dense(seed, m, n):
    return tf.Variable(rows(seed, m, n) * 0.03), tf.Variable(tf.zeros(n))


def filters(seed, k, channels, n):
    return tf.Variable(rows(seed, k, k, channels, n) * 0.05), tf.Variable(tf.zeros(n))


@cases(PERCEPTRON, [()])
def mlp():
    layers = [dense(1, 784, 1024), dense(2, 1024, 1024), dense(3, 1024, 10)]
    variables = [v for layer in layers for v in layer]
    ms = [tf.Variable(tf.zeros_like(v)) for v in variables]
    vs = [tf.Variable(tf.zeros_like(v)) for v in variables]
    t = tf.Variable(1.0)

    def step(x, labels):
        with tf.GradientTape() as tape:
            h = tf.nn.relu(x @ layers[0][0] + layers[0][1])
            h = tf.nn.relu(h @ layers[1][0] + layers[1][1])
            loss = cross_entropy(h @ layers[2][0] + layers[2][1], labels)
        a, b = 1 - 0.9**t, 1 - 0.999**t
        for w, g, m, v in zip(variables, tape.gradient(loss, variables), ms, vs):
            if XLA:
                m.assign(0.9 * m + 0.1 * g)
                v.assign(0.999 * v + 0.001 * g * g)
                w.assign_sub(0.001 * (m / a) / (tf.sqrt(v / b) + 1e-8))
            else:  # the operation that TensorFlow's own optimizers use
                tf.raw_ops.ResourceApplyAdam(
                    var=w.handle, m=m.handle, v=v.handle, beta1_power=1 - a, beta2_power=1 - b,
                    lr=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, grad=g,
                )
        t.assign_add(1.0)
        return loss

    return timed(step, rows(9, 128, 784), classes(128))


def two_convs(x, layers):
    for w, b in layers:
        x = tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") + b)
    return tf.reduce_mean(tf.square(x))


@case
def conv_3x3_64_on_56x56_batch_8_forward():
    return timed(lambda x, w: tf.reduce_mean(tf.nn.conv2d(x, w, 1, "SAME")), rows(1, 8, 56, 56, 64), rows(2, 3, 3, 64, 64))


@case
def conv_3x3_64_on_56x56_batch_8_forward_backward():
    def f(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            loss = tf.reduce_mean(tf.square(tf.nn.conv2d(x, w, 1, "SAME")))
        dx, dw = tape.gradient(loss, [x, w])
        return loss, tf.reduce_sum(dx), dw

    return timed(f, rows(1, 8, 56, 56, 64), rows(2, 3, 3, 64, 64))


@case
def two_conv_3x3_relu_forward():
    layers = [filters(2, 3, 64, 64), filters(3, 3, 64, 64)]
    return timed(lambda x: two_convs(x, layers), rows(1, 8, 56, 56, 64))


@case
def two_conv_3x3_relu_forward_backward():
    layers = [filters(2, 3, 64, 64), filters(3, 3, 64, 64)]

    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = two_convs(x, layers)
        return tape.gradient(loss, [x, layers])

    return timed(f, rows(1, 8, 56, 56, 64))


@case
def lenet_batch_64_sgd():
    (a, b), (c, d) = filters(1, 5, 1, 32), filters(2, 5, 32, 64)
    (e, f), (g, h) = dense(3, 3136, 512), dense(4, 512, 10)

    def loss(x, labels):
        x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, a, 1, "SAME") + b), 2, 2, "VALID")
        x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, c, 1, "SAME") + d), 2, 2, "VALID")
        return cross_entropy(tf.nn.relu(tf.reshape(x, (64, -1)) @ e + f) @ g + h, labels)

    return training(loss, [a, b, c, d, e, f, g, h], rows(5, 64, 28, 28, 1), classes(64))


@case
def cifar_quick_batch_100_sgd():
    convs = [filters(1, 5, 3, 32), filters(2, 5, 32, 32), filters(3, 5, 32, 64)]
    (d, e), (f, g) = dense(4, 576, 64), dense(5, 64, 10)

    def loss(x, labels):
        x = tf.nn.relu(tf.nn.max_pool2d(tf.nn.conv2d(x, convs[0][0], 1, "SAME") + convs[0][1], 3, 2, "VALID"))
        for w, b in convs[1:]:
            x = tf.nn.avg_pool2d(tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") + b), 3, 2, "VALID")
        return cross_entropy((tf.reshape(x, (100, -1)) @ d + e) @ f + g, labels)

    variables = [v for layer in convs for v in layer] + [d, e, f, g]
    return training(loss, variables, rows(6, 100, 32, 32, 3), classes(100))


@case
def softmax_4096_1024():
    return timed(tf.nn.softmax, rows(1, 4096, 1024))


def layer_norm(x, scale, bias):
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5) * scale + bias


@case
def layer_norm_4096_1024():
    return timed(layer_norm, rows(1, 4096, 1024), rows(2, 1024), rows(3, 1024))


@case
def sum_10_000_000():
    return timed(tf.reduce_sum, rows(1, 10_000_000))


@case
def tanh_chain_10_000_000():
    return timed(lambda a, b, c, d: tf.tanh(a * b + c) * d - a, *[rows(i, 10_000_000) for i in range(4)])


@cases("product_{0}x{0}x{0}", MATRICES)
def product(n):
    return timed(tf.matmul, rows(1, n, n), rows(2, n, n))


def attention(x, w, b, w_out, b_out):
    batch, steps, size = x.shape
    parts = tf.reshape(tf.reshape(x, (-1, size)) @ w + b, (batch, steps, 3, 4, size // 4))
    q, k, v = tf.unstack(tf.transpose(parts, (2, 0, 3, 1, 4)))
    weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (size // 4) ** -0.5)
    y = tf.reshape(tf.transpose(weights @ v, (0, 2, 1, 3)), (-1, size))
    return tf.reshape(y @ w_out + b_out, x.shape)


@case
def transformer_4_blocks_256_forward_and_backward():
    def block(i):
        norms = [(tf.Variable(tf.ones(256)), tf.Variable(tf.zeros(256))) for _ in range(2)]
        return norms, dense(i, 256, 768), dense(i + 1, 256, 256), dense(i + 2, 256, 1024), dense(i + 3, 1024, 256)

    blocks = [block(4 * i) for i in range(4)]

    def f(x):
        with tf.GradientTape() as tape:
            for norms, heads, out, up, down in blocks:
                x = x + attention(layer_norm(x, *norms[0]), *heads, *out)
                h = tf.nn.relu(tf.reshape(layer_norm(x, *norms[1]), (-1, 256)) @ up[0] + up[1])
                x = x + tf.reshape(h @ down[0] + down[1], x.shape)
            loss = tf.reduce_mean(tf.square(x))
        return loss, tape.gradient(loss, blocks)

    return timed(f, rows(17, 8, 128, 256))


@case
def gather_8192_of_100000_x_64():
    return timed(tf.gather, rows(1, 100_000, 64), ids())


@case
def sgd_of_8192_of_100000_x_64():
    table = tf.Variable(rows(1, 100_000, 64))

    def step(at, by):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, at) * by)
        slope = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(slope.values * 0.01, slope.indices))
        return loss

    return timed(step, ids(), rows(2, 8192, 64))


main("TensorFlow-XLA" if XLA else "TensorFlow", tf.__version__)
