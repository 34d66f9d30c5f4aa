//! A function of 300 lines with 40 control-flow statements: it computes the same as plain Rust, and
//! compiles quickly.
//!
//! The build time is in `BENCHMARKS.md`, measured by `touch tests/long_function.rs` before
//! `cargo build -p anabranch-tests --test long_function`. The size of the expansion, which
//! determines the build time, is tested next to `#[graph]`.

/// Defines the function with or without an attribute.
macro_rules! long_function {
    ($(#[$attribute:meta])*) => {
        $(#[$attribute])*
        pub fn long_function(mut x: Int, mut y: Int, n: Int) -> Int {
            let (mut a, mut b, mut c) = (x, y, int(1));
            let (mut d, mut e, mut g) = (x - y, int(2), int(3));
            let mut i0 = int(0);
            while i0 < n && a != 3 {
                a = (a * 3 + i0) % 97;
                b += a % 3;
                let half = b / 2;
                if a > 3 || half < 0 {
                    c += half;
                    c %= 101;
                    let mut j = int(0);
                    while j < 1 {
                        d = d + c * j - 3;
                        d %= 89;
                        x += d;
                        j += 1;
                    }
                } else if b == 0 {
                    d = if d > c { d - c } else { c + 1 };
                    y -= d;
                    y %= 1009;
                } else {
                    c -= 1;
                    x += 3;
                }
                x = x * 3 + y - b;
                x %= 10007;
                y += half - a;
                i0 += 1;
            }
            b = (a + c) % 71;
            c = b - d % 3;
            let mut i1 = int(0);
            while i1 < n && b != 5 {
                b = (b * 5 + i1) % 97;
                c += b % 5;
                let half = c / 2;
                if b > 5 || half < 1 {
                    d += half;
                    d %= 101;
                    let mut j = int(0);
                    while j < 2 {
                        e = e + d * j - 5;
                        e %= 89;
                        x += e;
                        j += 1;
                    }
                } else if c == 1 {
                    e = if e > d { e - d } else { d + 1 };
                    y -= e;
                    y %= 1009;
                } else {
                    d -= 1;
                    x += 5;
                }
                x = x * 3 + y - c;
                x %= 10007;
                y += half - b;
                i1 += 1;
            }
            c = (b + d) % 71;
            d = c - e % 5;
            let mut i2 = int(0);
            while i2 < n && c != 7 {
                c = (c * 7 + i2) % 97;
                d += c % 7;
                let half = d / 2;
                if c > 7 || half < 2 {
                    e += half;
                    e %= 101;
                    let mut j = int(0);
                    while j < 3 {
                        g = g + e * j - 7;
                        g %= 89;
                        x += g;
                        j += 1;
                    }
                } else if d == 2 {
                    g = if g > e { g - e } else { e + 1 };
                    y -= g;
                    y %= 1009;
                } else {
                    e -= 1;
                    x += 7;
                }
                x = x * 3 + y - d;
                x %= 10007;
                y += half - c;
                i2 += 1;
            }
            d = (c + e) % 71;
            e = d - g % 7;
            let mut i3 = int(0);
            while i3 < n && d != 11 {
                d = (d * 11 + i3) % 97;
                e += d % 11;
                let half = e / 2;
                if d > 11 || half < 3 {
                    g += half;
                    g %= 101;
                    let mut j = int(0);
                    while j < 1 {
                        a = a + g * j - 11;
                        a %= 89;
                        x += a;
                        j += 1;
                    }
                } else if e == 3 {
                    a = if a > g { a - g } else { g + 1 };
                    y -= a;
                    y %= 1009;
                } else {
                    g -= 1;
                    x += 11;
                }
                x = x * 3 + y - e;
                x %= 10007;
                y += half - d;
                i3 += 1;
            }
            e = (d + g) % 71;
            g = e - a % 11;
            let mut i4 = int(0);
            while i4 < n && e != 13 {
                e = (e * 13 + i4) % 97;
                g += e % 13;
                let half = g / 2;
                if e > 13 || half < 4 {
                    a += half;
                    a %= 101;
                    let mut j = int(0);
                    while j < 2 {
                        b = b + a * j - 13;
                        b %= 89;
                        x += b;
                        j += 1;
                    }
                } else if g == 4 {
                    b = if b > a { b - a } else { a + 1 };
                    y -= b;
                    y %= 1009;
                } else {
                    a -= 1;
                    x += 13;
                }
                x = x * 3 + y - g;
                x %= 10007;
                y += half - e;
                i4 += 1;
            }
            g = (e + a) % 71;
            a = g - b % 13;
            let mut i5 = int(0);
            while i5 < n && g != 17 {
                g = (g * 17 + i5) % 97;
                a += g % 17;
                let half = a / 2;
                if g > 17 || half < 5 {
                    b += half;
                    b %= 101;
                    let mut j = int(0);
                    while j < 3 {
                        c = c + b * j - 17;
                        c %= 89;
                        x += c;
                        j += 1;
                    }
                } else if a == 5 {
                    c = if c > b { c - b } else { b + 1 };
                    y -= c;
                    y %= 1009;
                } else {
                    b -= 1;
                    x += 17;
                }
                x = x * 3 + y - a;
                x %= 10007;
                y += half - g;
                i5 += 1;
            }
            a = (g + b) % 71;
            b = a - c % 17;
            let mut i6 = int(0);
            while i6 < n && a != 19 {
                a = (a * 19 + i6) % 97;
                b += a % 19;
                let half = b / 2;
                if a > 19 || half < 6 {
                    c += half;
                    c %= 101;
                    let mut j = int(0);
                    while j < 1 {
                        d = d + c * j - 19;
                        d %= 89;
                        x += d;
                        j += 1;
                    }
                } else if b == 6 {
                    d = if d > c { d - c } else { c + 1 };
                    y -= d;
                    y %= 1009;
                } else {
                    c -= 1;
                    x += 19;
                }
                x = x * 3 + y - b;
                x %= 10007;
                y += half - a;
                i6 += 1;
            }
            b = (a + c) % 71;
            c = b - d % 19;
            let mut i7 = int(0);
            while i7 < n && b != 23 {
                b = (b * 23 + i7) % 97;
                c += b % 23;
                let half = c / 2;
                if b > 23 || half < 7 {
                    d += half;
                    d %= 101;
                    let mut j = int(0);
                    while j < 2 {
                        e = e + d * j - 23;
                        e %= 89;
                        x += e;
                        j += 1;
                    }
                } else if c == 7 {
                    e = if e > d { e - d } else { d + 1 };
                    y -= e;
                    y %= 1009;
                } else {
                    d -= 1;
                    x += 23;
                }
                x = x * 3 + y - c;
                x %= 10007;
                y += half - b;
                i7 += 1;
            }
            c = (b + d) % 71;
            d = c - e % 23;
            let mut i8 = int(0);
            while i8 < n && c != 29 {
                c = (c * 29 + i8) % 97;
                d += c % 29;
                let half = d / 2;
                if c > 29 || half < 8 {
                    e += half;
                    e %= 101;
                    let mut j = int(0);
                    while j < 3 {
                        g = g + e * j - 29;
                        g %= 89;
                        x += g;
                        j += 1;
                    }
                } else if d == 8 {
                    g = if g > e { g - e } else { e + 1 };
                    y -= g;
                    y %= 1009;
                } else {
                    e -= 1;
                    x += 29;
                }
                x = x * 3 + y - d;
                x %= 10007;
                y += half - c;
                i8 += 1;
            }
            d = (c + e) % 71;
            e = d - g % 29;
            let mut i9 = int(0);
            while i9 < n && d != 31 {
                d = (d * 31 + i9) % 97;
                e += d % 31;
                let half = e / 2;
                if d > 31 || half < 9 {
                    g += half;
                    g %= 101;
                    let mut j = int(0);
                    while j < 1 {
                        a = a + g * j - 31;
                        a %= 89;
                        x += a;
                        j += 1;
                    }
                } else if e == 9 {
                    a = if a > g { a - g } else { g + 1 };
                    y -= a;
                    y %= 1009;
                } else {
                    g -= 1;
                    x += 31;
                }
                x = x * 3 + y - e;
                x %= 10007;
                y += half - d;
                i9 += 1;
            }
            e = (d + g) % 71;
            g = e - a % 31;
            x + y + a + b + c + d + e + g
        }
    };
}

mod staged {
    use anabranch::prelude::*;
    type Int = Tensor<i32>;
    fn int(x: i32) -> Int {
        scalar(x)
    }
    long_function!(#[graph]);
}

mod plain {
    type Int = i32;
    fn int(x: i32) -> Int {
        x
    }
    long_function!();
}

#[test]
fn a_long_function_means_what_plain_rust_does() -> anabranch::Result<()> {
    let f = anabranch::Session::new()?.function(staged::long_function)?;
    for (x, y, n) in [(0, 0, 0), (1, 2, 1), (5, -3, 2), (40, 8, 7), (-7, 90, 12)] {
        assert_eq!(f.call((x, y, n))?, plain::long_function(x, y, n), "at {x}, {y}, {n}");
    }
    Ok(())
}
