//! `&`, `|`, `^`, `!`, `<<`, `>>` on integer tensors: the results of Rust in all engines, including
//! native code.

use crate::support::{check, check_each, error_of};
use anabranch::prelude::*;

#[test]
fn operators_of_bits_take_scalars_on_both_sides_and_broadcast() {
    fn f(x: Tensor<i32>, y: Tensor<i32>) -> (Tensor<i32>, [Tensor<i32>; 3]) {
        let rows = y.reshape([2, 1]);
        let mut z = x & 12;
        z |= y.row(0);
        z ^= 1;
        z <<= 2;
        z >>= rows.row(1);
        z &= !(5 ^ x);
        ((x & rows) | (x >> 1), [z, (1 << x) - (7 | x), 6 & !x])
    }
    let (x, y) = ([3, 12, -7], [9, 2]);
    let mut expected = Vec::new();
    for y in y {
        expected.extend(x.map(|x| (x & y) | (x >> 1)));
    }
    expected.extend(x.map(|x: i32| (((((x & 12) | 9) ^ 1) << 2) >> 2) & !(5 ^ x)));
    expected.extend(x.map(|x: i32| 1i32.wrapping_shl(x as u32).wrapping_sub(7 | x)));
    expected.extend(x.map(|x| 6 & !x));
    let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
    check(f, (x, y), &expected);
}

/// The generator `xorshift32`, the bit count of its last value, and a shift by more than the number
/// of bits.
#[graph]
fn generated(seed: Tensor<u32>, n: Tensor<i32>) -> (Tensor<u32>, Tensor<i32>, Tensor<u32>) {
    let (mut x, mut count) = (seed, n);
    for _ in range(n) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        count ^= 1 << count;
    }
    let (mut left, mut bits) = (x, scalar(0));
    while left != 0 {
        bits += (left & 1).cast();
        left >>= 1;
    }
    (x, bits, x >> count.cast::<u32>())
}

#[test]
fn loops_over_bits_are_those_of_rust() {
    let cases = [(1u32, 0), (2_463_534_242, 1), (77, 40), (u32::MAX, 100)].map(|(seed, n)| {
        let (mut x, mut count) = (seed, n);
        for _ in 0..n {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            count ^= 1i32.wrapping_shl(count as u32);
        }
        let expected = [f64::from(x), f64::from(x.count_ones()), f64::from(x.wrapping_shr(count as u32))];
        ((seed, n), expected)
    });
    check_each(generated, cases);
}

#[test]
fn each_type_shifts_in_loops_by_counts_modulo_its_bits() {
    #[graph]
    fn f(a: Tensor<u8>, b: Tensor<i64>, c: Tensor<i32>, n: Tensor<i32>) -> (Tensor<u8>, Tensor<i64>, Tensor<i32>) {
        let (mut a, mut b, mut c) = (a, b, c);
        for i in range(n) {
            a = (a << (i + 3).cast()) | (!a >> 9);
            b = (b >> i.cast()) ^ (b << 65);
            c = (c >> (i - 2)) - !(c << 33);
        }
        (a, b, c)
    }
    let cases = [0, 1, 5, 12].map(|n| {
        let (mut a, mut b, mut c) = (0xA5u8, -1_234_567i64, -99i32);
        for i in 0..n {
            a = a.wrapping_shl((i + 3) as u32) | (!a).wrapping_shr(9);
            b = b.wrapping_shr(i as u32) ^ b.wrapping_shl(65);
            c = c.wrapping_shr((i - 2) as u32).wrapping_sub(!c.wrapping_shl(33));
        }
        ((0xA5u8, -1_234_567i64, -99i32, n), [f64::from(a), b as f64, f64::from(c)])
    });
    check_each(f, cases);
}

#[test]
fn bits_of_shapes_that_do_not_fit_are_an_error_at_the_operator() {
    let error = error_of(|x: Tensor<i32>, y: Tensor<i32>| x & y, ([1, 2], [1, 2, 3])).to_string();
    assert!(
        error.contains("bit_and: shapes [2] and [3] cannot be broadcast together") && error.contains("bits.rs"),
        "{error}"
    );
}
