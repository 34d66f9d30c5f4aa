//! The accuracy of scalar functions, against values with 200 bits.
//!
//! Golden tables have the worst error of each function, so that every change shows:
//! `tests/golden/accuracy.txt` those of a sample, and `tests/golden/accuracy_all_exponents.txt`
//! those of a larger one with all exponents, which a run with `ANABRANCH_SLOW=1` compares. Each
//! error is within the bound that the definition of the operation states.

use crate::golden::check_file;
use anabranch_dsl::ops::{Exactness, Prim, prim};
use anabranch_dsl::scalars::{self, Beyond, Real};
use astro_float_num::{BigFloat, Consts, RoundingMode, Sign};
use std::fmt::Write;

const BITS: usize = 200;
const NEAREST: RoundingMode = RoundingMode::ToEven;

/// A function of numbers with many bits.
type Exact = fn(&BigFloat, &mut Consts) -> BigFloat;

/// A float format of the tests.
trait TestFormat: Real<Mask = bool> + Beyond + std::fmt::LowerExp {
    /// The number of exponents of finite numbers.
    const EXPONENTS: u64;
    const MANTISSA: u32;
    fn of_bits(bits: u64) -> Self;
    fn widened(self) -> f64;
}
impl TestFormat for f32 {
    const EXPONENTS: u64 = 255;
    const MANTISSA: u32 = 23;
    fn of_bits(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }
    fn widened(self) -> f64 {
        self.into()
    }
}
impl TestFormat for f64 {
    const EXPONENTS: u64 = 2047;
    const MANTISSA: u32 = 52;
    fn of_bits(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
    fn widened(self) -> f64 {
        self
    }
}

/// Converts a number exactly, also a subnormal one.
fn big(x: f64) -> BigFloat {
    if x == 0.0 || !x.is_subnormal() {
        return BigFloat::from_f64(x, BITS);
    }
    let mut scaled = BigFloat::from_f64(x * 2f64.powi(100), BITS);
    scaled.set_exponent(scaled.exponent().expect("the number is finite") - 100);
    scaled
}

/// Returns the first 64 bits of a finite number as a number in `[1/2, 1)`, with its exponent.
fn parts(x: &BigFloat) -> Option<(f64, f64, i32)> {
    let (mantissa, _, sign, exponent, _) = x.as_raw_parts()?;
    let first = *mantissa.last()?;
    let sign = if sign == Sign::Neg { -1.0 } else { 1.0 };
    // Two halves, each of which is exact.
    let (high, low) = ((first >> 32) as f64 / 2f64.powi(32), (first & 0xffff_ffff) as f64 / 2f64.powi(64));
    Some((sign * high, sign * low, exponent))
}

/// Returns the distance of `x` from an exact value in units in the last place of that value.
fn ulps<F: TestFormat>(x: F, exact: &BigFloat) -> f64 {
    if exact.is_nan() || x.widened().is_nan() {
        return if exact.is_nan() && x.widened().is_nan() { 0.0 } else { f64::INFINITY };
    }
    // Beyond the largest number by half a unit or more: infinite.
    let bias = (F::EXPONENTS / 2) as i32;
    let overflows = exact.is_inf()
        || parts(exact).is_some_and(|(high, low, exponent)| {
            exponent > bias + 1
                || (exponent == bias + 1 && high.abs() + low.abs() >= 1.0 - 2f64.powi(-(F::MANTISSA as i32) - 2))
        });
    if overflows {
        return if x.widened().is_infinite() && exact.is_negative() == (x.widened() < 0.0) {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if !x.widened().is_finite() {
        return f64::INFINITY;
    }
    let difference = big(x.widened()).sub(exact, BITS, NEAREST);
    let Some((high, low, exponent)) = parts(&difference).filter(|(high, ..)| *high != 0.0) else { return 0.0 };
    let exponent_of_exact = parts(exact).filter(|(high, ..)| *high != 0.0).map_or(i32::MIN / 2, |(.., e)| e);
    let unit = (exponent_of_exact - F::MANTISSA as i32 - 1).max(1 - bias - F::MANTISSA as i32);
    (high + low).abs() * 2f64.powi((exponent - unit).clamp(-1000, 1000))
}

fn one() -> BigFloat {
    BigFloat::from_f64(1.0, BITS)
}

/// Returns the complementary error function.
fn erfc(x: &BigFloat, c: &mut Consts) -> BigFloat {
    const MORE: usize = 2 * BITS;
    let number = |n: f64| BigFloat::from_f64(n, MORE);
    // Beyond this the value is 0 or 2 in all formats.
    if x.abs().cmp(&number(40.0)) == Some(1) {
        return number(if x.is_negative() { 2.0 } else { 0.0 });
    }
    let root_of_pi = c.pi(MORE, NEAREST).sqrt(MORE, NEAREST);
    let square = x.mul(x, MORE, NEAREST);
    let gaussian = square.neg().exp(MORE, NEAREST, c);
    if x.cmp(&number(3.0)) == Some(1) {
        // e^(-x^2) / (sqrt(pi) (x + (1/2) / (x + (2/2) / (x + (3/2) / ..))))
        let mut fraction = x.clone();
        for k in (1..=400).rev() {
            fraction = x.add(&number(f64::from(k) / 2.0).div(&fraction, MORE, NEAREST), MORE, NEAREST);
        }
        return gaussian.div(&root_of_pi.mul(&fraction, MORE, NEAREST), BITS, NEAREST);
    }
    if x.is_negative() {
        return number(2.0).sub(&erfc(&x.neg(), c), BITS, NEAREST);
    }
    number(1.0).sub(&near_erf(x, &square, &gaussian, &root_of_pi), BITS, NEAREST)
}

/// Returns the error function of a small number, which is not negative, by its series
/// `2 / sqrt(pi) e^(-x^2) (x + 2 x^3 / 3 + 4 x^5 / 15 + ..)`.
fn near_erf(x: &BigFloat, square: &BigFloat, gaussian: &BigFloat, root_of_pi: &BigFloat) -> BigFloat {
    const MORE: usize = 2 * BITS;
    let number = |n: f64| BigFloat::from_f64(n, MORE);
    let (mut term, mut sum) = (x.clone(), x.clone());
    for n in 1..250 {
        let by = number(2.0).div(&number(f64::from(2 * n + 1)), MORE, NEAREST);
        term = term.mul(square, MORE, NEAREST).mul(&by, MORE, NEAREST);
        sum = sum.add(&term, MORE, NEAREST);
    }
    let factor = number(2.0).mul(gaussian, MORE, NEAREST).div(root_of_pi, MORE, NEAREST);
    sum.mul(&factor, MORE, NEAREST)
}

fn erf(x: &BigFloat, c: &mut Consts) -> BigFloat {
    const MORE: usize = 2 * BITS;
    let size = x.abs();
    let value = if size.cmp(&one()) == Some(1) {
        one().sub(&erfc(&size, c), BITS, NEAREST)
    } else {
        let square = x.mul(x, MORE, NEAREST);
        let gaussian = square.neg().exp(MORE, NEAREST, c);
        near_erf(&size, &square, &gaussian, &c.pi(MORE, NEAREST).sqrt(MORE, NEAREST))
    };
    if x.is_negative() { value.neg() } else { value }
}

fn sigmoid(x: &BigFloat, c: &mut Consts) -> BigFloat {
    one().div(&one().add(&x.neg().exp(BITS, NEAREST, c), 2 * BITS, NEAREST), BITS, NEAREST)
}

/// Returns `log(1 + x)`.
fn log1p(x: &BigFloat, c: &mut Consts) -> BigFloat {
    // Enough bits for the sum of 1 and the smallest number.
    const ALL: usize = 1400;
    if x.exponent().is_some_and(|e| e < -(BITS as i32)) {
        return x.clone();
    }
    x.add(&one(), ALL, NEAREST).ln(2 * BITS, NEAREST, c)
}

fn expm1(x: &BigFloat, c: &mut Consts) -> BigFloat {
    if x.exponent().is_some_and(|e| e < -(BITS as i32)) {
        return x.clone();
    }
    x.exp(3 * BITS, NEAREST, c).sub(&one(), BITS, NEAREST)
}

fn softplus(x: &BigFloat, c: &mut Consts) -> BigFloat {
    let rest = log1p(&x.abs().neg().exp(BITS, NEAREST, c), c);
    if x.is_negative() { rest } else { x.add(&rest, BITS, NEAREST) }
}

fn gelu(x: &BigFloat, c: &mut Consts) -> BigFloat {
    const MORE: usize = 2 * BITS;
    let two = BigFloat::from_f64(2.0, MORE);
    let scaled = x.neg().div(&two.sqrt(MORE, NEAREST), MORE, NEAREST);
    x.mul(&erfc(&scaled, c), MORE, NEAREST).div(&two, BITS, NEAREST)
}

/// Returns whether this is a long run.
fn is_slow() -> bool {
    std::env::var_os("ANABRANCH_SLOW").is_some()
}

/// Returns numbers of both signs. A long run has some for each exponent, and more for those of
/// common numbers. A short one has a few for each exponent of common numbers, and others from the
/// whole range.
fn samples<F: TestFormat>() -> impl Iterator<Item = F> {
    let slow = is_slow();
    let bias = F::EXPONENTS / 2;
    let mut state = 1u64;
    let step = F::EXPONENTS.div_ceil(64);
    let exponents = (0..F::EXPONENTS).filter(move |e| slow || e % step == 0 || e.abs_diff(bias) < 12);
    exponents.flat_map(move |exponent| {
        let is_common = exponent.abs_diff(bias) < 12;
        let n = match (slow, is_common) {
            (true, true) => 32,
            (true, false) => 2,
            (false, true) => 6,
            (false, false) => 1,
        };
        let sample = |i: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mantissa = state >> (64 - F::MANTISSA);
            let sign = (i % 2) << (F::MANTISSA + if F::MANTISSA == 23 { 8 } else { 11 });
            F::of_bits(sign | (exponent << F::MANTISSA) | mantissa)
        };
        (0..2 * n).map(sample).collect::<Vec<F>>()
    })
}

/// Returns the worst error and the argument that has it.
fn worst<F: TestFormat>(f: impl Fn(F) -> F, exact: Exact, c: &mut Consts) -> (f64, F) {
    let mut worst = (0.0, F::of_bits(0));
    for x in samples::<F>() {
        let error = ulps(f(x), &exact(&big(x.widened()), c));
        if error > worst.0 {
            worst = (error, x);
        }
    }
    worst
}

/// Writes a line of the table for a function of one number.
macro_rules! rows {
    ($table:ident, $consts:ident: $($name:ident $op:ident $exact:expr;)*) => {$(
        let (f32s, f64s) = (
            worst::<f32>(|x| scalars::$name(x), $exact, &mut $consts),
            worst::<f64>(|x| scalars::$name(x), $exact, &mut $consts),
        );
        write_row(&mut $table, stringify!($name), prim::$op, f32s, f64s);
    )*};
}

/// Writes a line of the table, and checks the errors against the bound of the operation.
fn write_row(table: &mut String, name: &str, op: Prim, (a, x): (f64, f32), (b, y): (f64, f64)) {
    let Exactness::Ulps(bound) = op.def().exactness else { panic!("{op:?} states no bound in units") };
    assert!(a.max(b) <= f64::from(bound), "{name}: the errors {a} at {x:e} and {b} at {y:e} exceed {bound}");
    writeln!(table, "{name:9} {a:5.2}  {b:5.2}    # at {x:e} and {y:e}").expect("a string has room");
}

#[test]
fn errors_are_those_of_the_golden_table() {
    let mut c = Consts::new().expect("there is memory for constants");
    let (file, numbers) = if is_slow() {
        ("accuracy_all_exponents.txt", "# The numbers have all exponents: 64 for each common one, 4 for each other.\n")
    } else {
        (
            "accuracy.txt",
            "# This is a sample of some exponents: errors of other numbers may be larger.\n\
                          # Those of all exponents are in `accuracy_all_exponents.txt`.\n",
        )
    };
    let mut table = format!(
        "# The largest errors of scalar functions, in units in the last place: f32, f64.\n\
         {numbers}# Powers are those of the magnitude.\n"
    );
    rows! { table, c:
        exp EXP |x, c| x.exp(BITS, NEAREST, c);
        expm1 EXPM1 expm1;
        log LOG |x, c| if x.is_zero() { BigFloat::from_f64(f64::NEG_INFINITY, BITS) } else { x.ln(BITS, NEAREST, c) };
        log1p LOG1P log1p;
        sinh SINH |x, c| x.sinh(BITS, NEAREST, c);
        cosh COSH |x, c| x.cosh(BITS, NEAREST, c);
        tanh TANH |x, c| x.tanh(BITS, NEAREST, c);
        sigmoid SIGMOID sigmoid;
        silu SILU |x, c| x.mul(&sigmoid(x, c), BITS, NEAREST);
        softplus SOFTPLUS softplus;
        asin ASIN |x, c| x.asin(BITS, NEAREST, c);
        acos ACOS |x, c| x.acos(BITS, NEAREST, c);
        atan ATAN |x, c| x.atan(BITS, NEAREST, c);
        erf ERF erf;
        gelu GELU gelu;
    }
    // The angle of a point on the line through (1, 0) or through (0, 1).
    let (f32s, f64s) = (
        worst::<f32>(|y| scalars::atan2(y, 1.0), |y, c| y.atan(BITS, NEAREST, c), &mut c),
        worst::<f64>(|y| scalars::atan2(y, 1.0), |y, c| y.atan(BITS, NEAREST, c), &mut c),
    );
    write_row(&mut table, "atan2 y,1", prim::ATAN2, f32s, f64s);
    let complement: Exact = |x, c| {
        let pi = c.pi(BITS, NEAREST);
        if x.is_zero() {
            return pi.div(&BigFloat::from_f64(2.0, BITS), BITS, NEAREST);
        }
        let angle = one().div(x, BITS, NEAREST).atan(BITS, NEAREST, c);
        if x.is_negative() { pi.add(&angle, BITS, NEAREST) } else { angle }
    };
    let (f32s, f64s) = (
        worst::<f32>(|x| scalars::atan2(1.0, x), complement, &mut c),
        worst::<f64>(|x| scalars::atan2(1.0, x), complement, &mut c),
    );
    write_row(&mut table, "atan2 1,x", prim::ATAN2, f32s, f64s);
    macro_rules! angles {
        ($($name:ident $op:ident $far:ident $exact:expr;)*) => {$(
            let (f32s, f64s) = (
                worst::<f32>(|x| if scalars::is_far(x) { x.$far() } else { scalars::$name(x) }, $exact, &mut c),
                worst::<f64>(|x| if scalars::is_far(x) { x.$far() } else { scalars::$name(x) }, $exact, &mut c),
            );
            write_row(&mut table, stringify!($name), prim::$op, f32s, f64s);
        )*};
    }
    angles! {
        sin SIN far_sin |x, c| x.sin(BITS, NEAREST, c);
        cos COS far_cos |x, c| x.cos(BITS, NEAREST, c);
        tan TAN far_tan |x, c| x.tan(BITS, NEAREST, c);
    }
    // Powers whose results have all exponents.
    macro_rules! powers {
        ($($y:literal)*) => {$(
            let exact: Exact = |x, c| {
                if x.is_zero() {
                    return BigFloat::from_f64(0f64.powf($y), BITS);
                }
                let log = x.abs().ln(2 * BITS, NEAREST, c);
                log.mul(&BigFloat::from_f64(f64::from($y as f32), BITS), 2 * BITS, NEAREST).exp(BITS, NEAREST, c)
            };
            let f32s = worst::<f32>(|x| scalars::pow(x.abs(), $y), exact, &mut c);
            let f64s = worst::<f64>(|x| scalars::pow(x.abs(), f64::from($y as f32)), exact, &mut c);
            write_row(&mut table, concat!("pow ", $y), prim::POW, f32s, f64s);
        )*};
    }
    powers! { 0.5 2.0 -1.0 7.3 }
    check_file(file, &table);
}
