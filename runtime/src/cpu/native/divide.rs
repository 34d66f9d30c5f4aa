//! Division by constants, as multiplications and shifts.
//!
//! Torbjörn Granlund and Peter L. Montgomery, "Division by Invariant Integers using
//! Multiplication", PLDI 1994; the numbers as in Henry S. Warren, "Hacker's Delight", 2nd edition,
//! 10-1.

/// How to divide signed numbers by a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SignedDivision {
    /// The factor, of as many bits as the numbers, extended by its sign.
    pub(super) factor: i64,
    /// The quotient is the upper half of the product, plus the number if the factor is negative,
    /// shifted right by so many bits, plus 1 for negative numbers.
    pub(super) shift: u8,
}

/// Returns how to divide numbers of 32 or 64 bits by `d`, which is at least 2.
pub(super) fn signed_division(d: u64, bits: u32) -> SignedDivision {
    let d = u128::from(d);
    assert!(d >= 2 && d < 1 << (bits - 1), "a divisor of {bits} bits");
    let half = 1u128 << (bits - 1);
    // The largest number whose remainder is `d - 1`.
    let largest = half - 1 - half % d;
    let power = (bits..2 * bits).find(|&p| (1u128 << p) > largest * (d - (1u128 << p) % d));
    let power = power.expect("the product of two numbers is below the last power");
    let factor = ((1u128 << power) + d - (1u128 << power) % d) / d;
    let unused = 64 - bits;
    SignedDivision { factor: ((factor as u64) << unused).cast_signed() >> unused, shift: (power - bits) as u8 }
}

/// Returns the factor by which the upper half of a product of 64 bits is the quotient by `d`, which
/// is at least 2, for numbers below 2^32.
///
/// Daniel Lemire, Owen Kaser and Nathan Kurz, "Faster Remainder by Direct Computation", 2019.
pub(super) fn factor_of_unsigned(d: u32) -> u64 {
    assert!(d >= 2, "the factor has 64 bits");
    u64::MAX / u64::from(d) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_by_constants_are_those_of_divisions() {
        let divisors = (2..200).chain([641, 1 << 20, (1 << 20) + 1, 1_000_000_007, (1 << 31) - 1]);
        for d in divisors {
            let near = |q: i64| (-3..4).map(move |x| (q.wrapping_mul(d)).wrapping_add(x));
            let numbers = (-50..50).chain([i64::MAX / d, i64::MIN / d, i64::from(i32::MAX) / d]).flat_map(near);
            let numbers = numbers.chain([i64::MAX, i64::MIN, i64::from(i32::MAX), i64::from(i32::MIN), 0xffff_ffff]);
            for n in numbers {
                let of_64 = signed_division(d as u64, 64);
                let product = (i128::from(n) * i128::from(of_64.factor)) >> 64;
                let upper = (product as i64).wrapping_add(if of_64.factor < 0 { n } else { 0 });
                assert_eq!((upper >> of_64.shift) + i64::from(n < 0), n / d, "{n} / {d}");
                let n = n as i32;
                let of_32 = signed_division(d as u64, 32);
                let product = (i64::from(n) * of_32.factor) >> 32;
                let upper = (product as i32).wrapping_add(if of_32.factor < 0 { n } else { 0 });
                assert_eq!((upper >> of_32.shift) + i32::from(n < 0), n / d as i32, "{n} / {d}");
                let n = n as u32;
                let quotient = (u128::from(n) * u128::from(factor_of_unsigned(d as u32))) >> 64;
                assert_eq!(quotient as u32, n / d as u32, "{n} / {d}");
            }
        }
    }
}
