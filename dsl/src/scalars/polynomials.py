#!/usr/bin/env python3
"""Computes the polynomials of the scalar functions by Remez's algorithm (mpmath).

A polynomial p of degree n minimizes the largest weighted error |w(x) (f(x) - p(x))| on an interval.
The weight makes that the relative error of the function that the polynomial is part of. Prints the
tables of `format.rs`, each below its largest error. Needs `pip install mpmath`.
"""
from mpmath import mp, mpf, matrix, lu_solve, asin, atan, atanh, cos, erf, erfc, exp, expm1, log, pi, sin, sqrt, tan
mp.dps = 70

def remez(f, w, a, b, n):
    a, b = mpf(a), mpf(b)
    xs = [(a + b) / 2 - (b - a) / 2 * cos(pi * i / (n + 1)) for i in range(n + 2)]
    for _ in range(12):
        # sum c_k x^k + (-1)^i e / w(x) = f(x)
        m = matrix(n + 2, n + 2)
        v = matrix(n + 2, 1)
        for i, x in enumerate(xs):
            for k in range(n + 1):
                m[i, k] = x ** k
            m[i, n + 1] = (-1) ** i / w(x)
            v[i] = f(x)
        s = lu_solve(m, v)
        c = [s[k] for k in range(n + 1)]
        def err(x):
            p = mpf(0)
            for k in reversed(c):
                p = p * x + k
            return w(x) * (f(x) - p)
        # Extrema between sign changes, on a fine grid of Chebyshev type.
        g = 40 * (n + 2)
        grid = [(a + b) / 2 - (b - a) / 2 * cos(pi * i / g) for i in range(g + 1)]
        es = [err(x) for x in grid]
        new, best = [], None
        for x, e in zip(grid, es):
            if best is not None and (e > 0) != (best[1] > 0):
                new.append(best); best = None
            if best is None or abs(e) > abs(best[1]):
                best = (x, e)
        new.append(best)
        if len(new) < n + 2:
            break
        while len(new) > n + 2:
            new.pop(0 if abs(new[0][1]) < abs(new[-1][1]) else -1)
        largest = max(abs(e) for _, e in new)
        smallest = min(abs(e) for _, e in new)
        xs = [x for x, _ in new]
        if largest < mpf('1.001') * smallest:
            break
    return c, max(abs(e) for e in es)

tiny = mpf(10) ** -10

def main():
    h = log(2) / 2 * mpf('1.0001')
    s = (sqrt(2) - 1) / (sqrt(2) + 1)
    def q(x):
        return (expm1(x) - x) / x**2 if abs(x) > tiny else mpf(1) / 2
    def remainder(f, first, second):
        """(f(x) - x) / x^3 in z = x^2, given the first terms of its series."""
        def r(z):
            x = sqrt(z)
            return (f(x) - x) / (x * z) if z > tiny else first + second * z
        return r
    def c(z):
        return (cos(sqrt(z)) - 1 + z / 2) / z**2 if z > tiny else mpf(1) / 24 - z / 720
    def e(z):
        x = sqrt(z)
        return erf(x) / x - 1 if z > tiny else 2 / sqrt(pi) * (1 - z / 3) - 1
    def complement(t):
        x = 4 * (1 + t) / (1 - t)
        return (1 + 2 * x) * exp(x**2) * erfc(x)
    def z(x):
        return max(x, tiny)
    end = lambda limit: (mpf(limit) - 4) / (mpf(limit) + 4)
    log_ = remainder(lambda x: 2 * atanh(x) - x, mpf(2) / 3, mpf(2) / 5)
    rows = [
        ("EXP", q, lambda x: max(abs(x), tiny), -h, h, (5, 10)),
        ("LOG", lambda x: log_(x), lambda x: z(x) / 2, 0, s**2 * mpf('1.0001'), (3, 7)),
        ("SIN", remainder(sin, -mpf(1) / 6, mpf(1) / 120), z, 0, (pi / 4)**2 * mpf('1.0001'), (3, 6)),
        ("COS", c, lambda x: z(x)**2, 0, (pi / 4)**2 * mpf('1.0001'), (3, 6)),
        ("ASIN", remainder(asin, mpf(1) / 6, mpf(3) / 40), z, 0, mpf('0.2501'), (5, 12)),
        ("ATAN", remainder(atan, -mpf(1) / 3, mpf(1) / 5), z, 0, tan(pi / 8)**2 * mpf('1.001'), (4, 11)),
        ("ERF", e, lambda x: 1 / (e(x) + 1), 0, mpf('0.9'), (7, 12)),
        ("ERFC", complement, lambda t: 1 / complement(t), -1, (end(11), end(28)), (11, 23)),
    ]
    for format in (0, 1):
        print(("f32", "f64")[format])
        for name, f, w, a, b, degrees in rows:
            end_ = b[format] if isinstance(b, tuple) else b
            coefficients, error = remez(f, w, a, end_, degrees[format])
            print(f"    // 2^{float(mp.log(error, 2)):.1f}")
            print(f"    const {name}: &'static [f64] = &[")
            for x in coefficients:
                print(f"        {float(x)!r},")
            print("    ];", flush=True)

main()
