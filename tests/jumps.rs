//! `break`, `continue`, `return`, labels, `loop`, `for` and `match` on tensors, on host values, and
//! in plain Rust.
#![deny(warnings)]
#![allow(unused_assignments, unreachable_code, reason = "what nobody reads, or comes to, is a case, too")]

use crate::support::check;
use anabranch::prelude::*;

/// A value that is known on the host.
const HOST_TRUE: bool = true;

agree!(early_return(x) over [-3, 0, 4]; {
    if x < 0 {
        return -x;
    }
    let y = x + 1;
    y * 2
});

agree!(several_returns(x) over -2..8; {
    if x < 0 {
        return int(0);
    } else if x == 1 {
        return int(10);
    }
    if x % 2 == 0 {
        x += 1;
        if x > 5 {
            return x * 100;
        }
        x += 1;
    }
    x
});

agree!(return_in_both_arms(x) over [-1, 1]; {
    if x > 0 { return x; } else { return x * 5; }
});

agree!(break_in_while(n) over 0..9; {
    let mut i = int(0);
    let mut sum = int(0);
    while i < 6 {
        if i * i > n {
            break;
        }
        sum += i;
        i += 1;
    }
    sum * 10 + i
});

agree!(continue_in_while(n) over 0..9; {
    let mut i = int(0);
    let mut sum = int(0);
    while i < n {
        i += 1;
        if i % 3 == 0 {
            continue;
        }
        sum += i;
    }
    sum
});

agree!(partial_jumps(n) over 0..12; {
    let mut i = int(0);
    let mut sum = int(0);
    while i < n {
        i += 1;
        if i % 2 == 0 {
            if i % 3 == 0 {
                continue;
            }
            if i > 8 {
                break;
            }
            sum += 10;
        }
        sum += i;
    }
    sum
});

agree!(return_from_loop(n) over 0..12; {
    let mut i = int(0);
    while i < n {
        if i * i == 49 {
            return i * 1000;
        }
        i += 1;
    }
    i
});

agree!(return_from_nested_loops(n) over 0..7; {
    let mut i = int(0);
    let mut steps = int(0);
    while i < n {
        let mut j = int(0);
        while j < i {
            steps += 1;
            if i * j == 6 {
                return steps * 100 + i;
            }
            j += 1;
        }
        i += 1;
    }
    steps
});

agree!(labels(n) over 0..8; {
    let mut i = int(0);
    let mut sum = int(0);
    'outer: while i < n {
        i += 1;
        let mut j = int(0);
        while j < 5 {
            j += 1;
            if i + j == 6 {
                continue 'outer;
            }
            if i * j > 12 {
                break 'outer;
            }
            sum += j;
        }
        sum += 100;
    }
    sum * 10 + i
});

agree!(endless_loop_with_break(n) over 0..8; {
    let mut i = int(0);
    loop {
        if i * 2 >= n {
            break;
        }
        i += 1;
    }
    i
});

agree!(loop_with_value(n) over 0..8; {
    let mut i = int(1);
    let found = loop {
        i *= 2;
        if i > n {
            break i * 10;
        }
        if i == 4 && n == 5 {
            break int(-1);
        }
    };
    found + i
});

agree!(loop_with_return(n) over 0..8; {
    let mut i = int(1);
    loop {
        i *= 2;
        if i > n {
            return i;
        }
    }
});

agree!(loop_with_return_and_break(n) over 0..8; {
    let mut i = int(1);
    loop {
        i *= 2;
        if i > n {
            return i;
        }
        if i == 4 {
            break i * 7;
        }
    }
});

agree!(counted(n) over [0, 1, 2, 7]; {
    let mut sum = int(0);
    for i in count(0, n) {
        sum = sum * 3 + i;
    }
    sum
});

agree!(counted_with_jumps(n) over [0, 1, 2, 7, 20]; {
    let mut sum = int(0);
    for i in count(2, n) {
        if i % 4 == 3 {
            continue;
        }
        if sum > 50 {
            break;
        }
        sum += i;
        for j in count(0, i) {
            if j > 3 {
                break;
            }
            sum += j;
        }
    }
    sum
});

agree!(counted_with_return(n) over [0, 1, 2, 7, 20]; {
    let mut sum = int(0);
    for i in count(0, n) {
        for j in count(0, i) {
            if i * j > 10 {
                return sum * 100 + i * 10 + j;
            }
            sum += 1;
        }
    }
    sum
});

agree!(host_loop_with_staged_jumps(n) over 0..8; {
    let mut x = n;
    for step in [1, 2, 3, 4] {
        if x > 12 {
            break;
        }
        if x % 2 == 1 {
            x += step;
            continue;
        }
        x = x * 2 + step;
    }
    x
});

agree!(host_loop_with_return(n) over 0..8; {
    let mut x = n;
    for step in [1, 2, 3, 4] {
        if x > 10 {
            return x * 1000 + step;
        }
        x += step;
    }
    x
});

agree!(numbers_matched(n) over -2..12; {
    match n {
        0 => 100 + n,
        1 | 2 => n * 10,
        3..=5 => n * 20,
        -1 => int(7),
        k if k > 9 => k + 1,
        k => -k,
    }
});

agree!(match_with_jumps(n) over 0..12; {
    let mut i = int(0);
    let mut sum = int(0);
    while i < n {
        i += 1;
        match i % 5 {
            0 => continue,
            1 => sum += 2,
            3 if sum > 12 => break,
            _ => {
                sum += 1;
                if sum == 9 {
                    return int(-9);
                }
            }
        }
        sum += i;
    }
    sum
});

agree!(labeled_block(n) over -3..6; {
    let x = 'a: {
        if n < 0 {
            break 'a n * 2;
        }
        let m = n + 1;
        if m == 3 {
            break 'a int(30);
        }
        m
    };
    x + 1
});

agree!(values_with_jumps(n) over 0..10; {
    let mut i = int(0);
    let mut sum = int(0);
    while i < n {
        i += 1;
        let x = if i == 4 { continue } else { i * 2 };
        let y = if x > 8 { if x > 12 { break; } 1 + x } else { x * 3 };
        sum += if y == 10 { if sum > 50 { return sum; } y } else { 2 * y };
    }
    sum
});

agree!(condition_that_changes_a_variable(n) over -2..7; {
    let mut i = int(0);
    let mut sum = int(0);
    while {
        i += 1;
        i < n
    } {
        sum += i * 10;
    }
    sum * 10 + i
});

agree!(condition_with_constructs_in_a_loop_that_is_left(n) over 0..20; {
    let mut i = int(0);
    let mut k = n;
    let mut sum = int(0);
    while {
        i += 1;
        if k % 2 == 0 {
            k /= 2;
        } else {
            let mut j = int(0);
            while {
                j += 2;
                k -= 1;
                j < i && k > 3
            } {
                sum += 1;
            }
        }
        k > 1 && { i += 2; i < 15 }
    } {
        if sum > 4 {
            break;
        }
        if i == 4 {
            continue;
        }
        i += 1;
        sum += k;
    }
    sum * 1000 + i * 10 + k
});

agree!(numbers_in_let_in_a_loop(n) over -2..9; {
    let mut i = int(0);
    let total = loop {
        i += 1;
        if let 4 = i { continue; }
        let 0..=6 = i else { break i * 10 };
        while let k @ 3.. = n - i { n -= 1; if k == 5 { break; } }
        if let (2, 2..) = (i, n) { return n; }
    };
    total + n
});

agree!(loops_that_are_left_in_arms_and_closures(n) over -3..6; {
    let y = match Some(3) {
        Some(k) => loop {
            if n > k {
                return n * 100;
            }
            if n > 0 {
                break n * 2;
            }
            n += 1;
        },
        None => n,
    };
    let z = match Some(1) {
        Some(_) => 'a: {
            if y == 4 {
                return n + 1000;
            }
            if y > 2 {
                break 'a y;
            }
            y + 10
        },
        None => y,
    };
    let mut f = |k: Int| loop {
        if z > k {
            return z;
        }
        n += 2;
        if n > k {
            break n;
        }
    };
    f(int(7)) * 10 + z
});

agree!(jumps_in_host_constructs(n) over 0..6; {
    let mut sum = int(0);
    let mut i = int(0);
    while i < n {
        i += 1;
        for item in [Some(1), None, Some(2)] {
            let Some(k) = item else { continue };
            if i == 4 {
                break;
            }
            sum += k * i;
        }
        match Some(3) {
            None => break,
            Some(k) if k > 100 => continue,
            Some(k) => sum += k,
        }
    }
    sum
});

agree!(no_trip_and_no_value(n) over 0..3; {
    while n > 100 {
        if n == 7 { return int(0); }
        n += 1;
    }
    loop {
        if n >= 0 { break; }
        n += 1;
    }
    n
});

agree!(numbers_in_if_let(n) over -2..14; {
    let mut sum = if let 3 = n { int(30) } else if let 4 | 5 = n { int(45) } else { n };
    if let 0..=9 = n {
        sum += 100;
    }
    if let k @ ..0 = n - 1 {
        sum += k * 1000;
    } else if let 12 = n {
        return int(-12);
    }
    if let 6..crate::jumps::LARGE = n && sum > 107 && let true = n < 9 {
        sum *= 2;
    }
    sum
});

agree!(numbers_in_while_let(n) over -2..14; {
    let mut steps = int(0);
    while let 0..=9 = n {
        n += 2;
        if n == 7 {
            continue;
        }
        steps += 1;
    }
    'outer: while let k @ 10..20 = n {
        n += 1;
        steps += k * 10;
        while let 13..=14 = n {
            n += 3;
            if steps > 250 {
                break 'outer;
            }
        }
        if n == 19 {
            return steps;
        }
    }
    steps * 100 + n
});

agree!(numbers_in_let_else(n) over -2..14; {
    let 0..=9 = n else { return n * 100 };
    let k @ ..6 = n * 2 else {
        n += 1;
        return n;
    };
    let mut sum = int(0);
    for i in count(0, n + 3) {
        let (0 | 2 | 4) = i + k % 2 else { continue };
        sum += i;
    }
    sum * 10 + k
});

/// A jump in the condition of a host loop.
#[graph]
fn sum_until(numbers: &[i32], x: Tensor) -> Tensor {
    let mut rest = numbers.len();
    let mut y = x;
    'all: loop {
        while {
            if rest == 0 {
                break 'all;
            }
            if numbers[rest - 1] < 0 {
                return y;
            }
            numbers[rest - 1] != 0
        } {
            rest -= 1;
            y += numbers[rest] as f32;
        }
        rest -= 1;
        y *= 2.0;
    }
    y + 0.5
}

#[test]
fn a_host_loop_is_left_from_its_condition() {
    assert_eq!(eval_with(|x| sum_until(&[1, 0, 3, 4], x), 1.0).unwrap(), 17.5);
    assert_eq!(eval_with(|x| sum_until(&[-1, 0, 3, 4], x), 1.0).unwrap(), 16.0);
}

const LARGE: i32 = 9;

agree!(numbers_in_tuples(m, n) over (0..5).flat_map(|m| (0..12).map(move |n| (m, n))); {
    let a = match (m, n + 1) {
        (0, 1) => int(1),
        (1 | 2, 2..crate::jumps::LARGE) => int(2),
        (k, crate::jumps::LARGE..) if k > 3 => int(-7),
        (k, 5..) => k * 3,
        (_, k) => if k == 3 { return m; } else { k + 100 },
    };
    let b = if let (1..=3, k @ 4..) = (m, n) { k } else { m };
    a * 1000 + b
});

agree!(numbers_matched_at_the_end(n) over -2..6; {
    'a: {
        if let 4.. = n {
            return int(50);
        }
        match n {
            0 => { return int(5); }
            1 => break 'a int(7),
            _ => {}
        }
        n + 1
    }
});

/// Matches on values behind references, and on values other than numbers.
#[graph]
fn host_matches(counts: &[usize], name: &'static str, x: Tensor) -> Tensor {
    let mut y = x;
    for count in counts {
        match count {
            0 => y += 1.0,
            1..=3 => y *= 2.0,
            _ => y -= 1.0,
        }
        if let 2 = count {
            y += 0.5;
        }
        match (count, name.to_owned()) {
            (0, text) => y += text.len() as f32,
            (n, _) => y += *n as f32,
        }
        match (count % 2 == 0, name) {
            (true, "four") => y += 4.0,
            (false, _) => y += 0.25,
            _ => {}
        }
    }
    y
}

#[test]
fn host_numbers_are_matched_by_the_host() {
    let expected = |mut y: f32, counts: &[usize], name: &str| {
        for &count in counts {
            y = [y + 1.0, y * 2.0, y * 2.0, y * 2.0, y - 1.0][count.min(4)];
            y += if count == 2 { 0.5 } else { 0.0 };
            y += if count == 0 { name.len() } else { count } as f32;
            y += if count % 2 == 1 {
                0.25
            } else if name == "four" {
                4.0
            } else {
                0.0
            };
        }
        y
    };
    for name in ["four", "other"] {
        let y = eval_with(|x| host_matches(&[0, 1, 2, 3, 7], name, x), 8.0).unwrap();
        assert_eq!(y, expected(8.0, &[0, 1, 2, 3, 7], name));
    }
}

agree!(panics_not_reached(n) over 0..4; {
    let m = match n {
        0 => int(1),
        1..=3 => n * 2,
        _ => unreachable!("n is small"),
    };
    if m > 100 {
        panic!("m is {}", "large");
    }
    m
});

agree!(closures_with_jumps(n) over 0..6; {
    let classify = |x: Int| {
        if x > 3 {
            return x * 10;
        }
        let mut y = x;
        while y < 10 {
            if y == 4 {
                return int(44);
            }
            y += 2;
        }
        y
    };
    classify(n) + classify(n + 1)
});

fn parsed(text: &str) -> Result<f32, std::num::ParseFloatError> {
    text.parse::<f32>()
}

#[graph]
fn scaled(x: Tensor, text: &str) -> Result<Tensor, std::num::ParseFloatError> {
    let mut y = x;
    while y < 100.0 {
        if y > 10.0 {
            y *= parsed(text)?;
        }
        y += 1.0;
    }
    Ok(y)
}

#[test]
fn a_question_mark_ends_the_trace_with_its_error() {
    assert_eq!(eval_with(|x| scaled(x, "2"), 8.0).unwrap(), 191.0);
    let error = eval_with(|x| scaled(x, "two"), 8.0).unwrap_err().to_string();
    assert!(error.contains("invalid float literal"), "{error}");
    let error = eval_with(|x: Tensor| scaled(x, "two").unwrap_or(x) + 1.0f32, 8.0).unwrap_err().to_string();
    assert!(error.contains("was left early"), "{error}");
    assert!(error.contains("tests/jumps.rs"), "{error}");
}

/// Returns early if a tensor condition holds, and with an error if the host finds one.
#[graph]
fn early_or_parsed(x: Tensor, text: &str) -> Result<Tensor, std::num::ParseFloatError> {
    if x < 0.0 {
        return Ok(-x);
    }
    let factor = parsed(text)?;
    let mut y = x;
    while y < 100.0 {
        if y == 50.0 {
            return Ok(y);
        }
        y = y * factor + 1.0;
    }
    let last = if y > 1000.0 { Ok(y + 0.5) } else { parsed(text).map(|f| y * f) };
    Ok(last? + 1.0)
}

#[test]
fn a_result_is_returned_early_under_a_tensor() {
    for (x, text, expected) in
        [(-3.0, "2", 3.0), (50.0, "2", 50.0), (24.5, "2", 50.0), (8.0, "2", 287.0), (200.0, "9", 1801.0)]
    {
        assert_eq!(eval_with(|x| early_or_parsed(x, text), x).unwrap(), expected, "{x} {text}");
    }
    let error = eval_with(|x| early_or_parsed(x, "two"), 8.0).unwrap_err().to_string();
    assert!(error.contains("invalid float literal"), "{error}");
}

#[graph]
fn negative_is_an_error(x: Tensor) -> Result<Tensor, String> {
    if x < 0.0 {
        return Err("negative".to_owned());
    }
    Ok(x)
}

#[graph]
fn negative_is_the_error_of_a_loop(x: Tensor) -> Result<Tensor, String> {
    let mut y = x;
    while y < 10.0 {
        if y < 0.0 {
            return Err("negative".to_owned());
        }
        y += 1.0;
    }
    Ok(y)
}

#[test]
fn an_error_under_a_tensor_is_refused() {
    for f in [negative_is_an_error, negative_is_the_error_of_a_loop] {
        let error = eval_with(f, 8.0).unwrap_err().to_string();
        assert!(error.contains("an `Err` under a tensor condition"), "{error}");
        assert!(error.contains("tests/jumps.rs") && error.contains("assert!(..)"), "{error}");
    }
}

#[graph]
fn rows(x: Tensor, limit: Tensor) -> Tensor {
    let mut sum = scalar(0.0);
    for row in x {
        if sum > limit {
            break;
        }
        sum += (row * row).sum();
    }
    sum
}

#[test]
fn a_for_goes_over_the_leading_axis() {
    let x = [[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]];
    assert_eq!(eval_with(rows, (x, 10.0f32)).unwrap(), 30.0);
    assert_eq!(eval_with(rows, (x, 100.0f32)).unwrap(), 91.0);
    let gradient = |x: Tensor, limit: Tensor| gradients(rows(x, limit), x);
    let gradient = eval_with(gradient, (x, 10.0f32)).unwrap();
    assert_eq!(gradient.as_slice(), [2.0, 4.0, 6.0, 8.0, 0.0, 0.0]);
}

#[graph]
fn ranges(n: Tensor<i32>) -> [Tensor<i32>; 4] {
    let mut digits = [scalar(1), scalar(1), scalar(1), scalar(1)];
    for i in range(3..=n) {
        digits[0] = digits[0] * 10 + i;
    }
    for i in range(1..n).step_by(3) {
        digits[1] = digits[1] * 10 + i;
    }
    for i in range(n).rev() {
        digits[2] = digits[2] * 10 + i;
    }
    for i in range(1..n).step_by(2).rev() {
        digits[3] = digits[3] * 10 + i;
    }
    digits
}

#[test]
fn ranges_count_as_host_ranges_do() {
    for n in [-3, 0, 1, 2, 5, 8] {
        let number = |digits: &mut dyn Iterator<Item = i32>| digits.fold(1, |n: i32, d| n * 10 + d);
        let expected = [
            number(&mut (3..=n)),
            number(&mut (1..n).step_by(3)),
            number(&mut (0..n).rev()),
            number(&mut (1..n).step_by(2).rev()),
        ];
        let got = eval_with(ranges, n).unwrap().map(|a| a.item());
        assert_eq!(got, expected, "{n}");
    }
}

#[test]
fn a_range_up_to_an_extent_counts_in_the_graph() {
    #[graph]
    fn weighted(x: Tensor<f64>) -> Tensor<f64> {
        let mut sum = scalar(0.0);
        for i in range(x.dim(0)) {
            sum += x.row(i) * i.cast::<f64>();
        }
        for i in range(3).rev() {
            sum = sum * 2.0 + i.cast::<f64>();
        }
        sum
    }
    check(weighted, [5.0, 3.0, 2.0], &[8.0 * 7.0 + 8.0 + 2.0]);
    check(|x| gradients(weighted(x), x), [5.0, 3.0, 2.0], &[0.0, 8.0, 16.0]);
    let types = [anabranch::TensorType::new(anabranch::DType::F64, [1000])];
    let graph = anabranch::dsl::function::trace_fn("f", &weighted, &types).unwrap().0.graph.to_string();
    assert_eq!(graph.matches("while").count(), 2, "{graph}");

    let error = eval(|| {
        let _ = range(1usize << 40);
    });
    let error = error.unwrap_err();
    assert_eq!(error.message, "range: 1099511627776 is more than an i32 can count");
    assert_eq!(error.loc().expect("a location").file, "tests/jumps.rs");
}

#[test]
fn a_range_runs_up_to_the_largest_number_of_its_type() {
    #[graph]
    fn bytes(n: Tensor<u8>) -> Tensor<i32> {
        let mut sum = scalar(0);
        for i in range(250u8..=n) {
            sum = sum * 10 + (i - 249).cast::<i32>();
        }
        for i in range(n..=255u8).rev().step_by(2) {
            sum = sum * 10 + (i % 10).cast::<i32>();
        }
        sum
    }
    for (n, sum) in [(255u8, 1_234_565), (252, 12_353), (0, 0)] {
        let host = (250..=n).fold(0, |s, i| s * 10 + i32::from(i - 249));
        let host =
            (n..=255).rev().step_by(2).fold(host, |s: i32, i| s.wrapping_mul(10).wrapping_add(i32::from(i % 10)));
        assert!(n == 0 || host == sum, "{n}: {host}");
        assert_eq!(eval_with(bytes, n).unwrap(), host, "{n}");
    }

    #[graph]
    fn trips<T: anabranch::Integer>(a: Tensor<T>, b: Tensor<T>, step: Tensor<T>) -> [Tensor<i32>; 3] {
        let mut trips = [scalar(0), scalar(0), scalar(0)];
        for _ in range(a..b).step_by(step) {
            trips[0] += 1;
            if trips[0] > 10 {
                break;
            }
        }
        for _ in range(a..=b).step_by(step) {
            trips[1] += 1;
            if trips[1] > 10 {
                break;
            }
        }
        for _ in range(a..=b).rev() {
            trips[2] += 1;
            if trips[2] > 10 {
                break;
            }
        }
        trips
    }
    macro_rules! check {
        ($t:ident: $($a:expr, $b:expr, $step:expr;)*) => {$({
            let (a, b, step): ($t, $t, $t) = ($a, $b, $step);
            let host = [
                (a..b).step_by(step as usize).take(11).count(),
                (a..=b).step_by(step as usize).take(11).count(),
                (a..=b).rev().take(11).count(),
            ];
            let got = eval_with(trips::<$t>, (a, b, step)).unwrap().map(|n| n.item() as usize);
            assert_eq!(got, host, "{} {a} {b}", stringify!($t));
        })*};
    }
    check!(i32: i32::MIN, i32::MAX, 1; i32::MIN, i32::MAX, 2_000_000_000; i32::MAX - 1, i32::MAX, 1; i32::MAX, i32::MIN, 1; -3, 4, 2;);
    check!(i64: i64::MIN, i64::MAX, 1; i64::MAX - 1, i64::MAX, 1; i64::MAX, i64::MIN, 1; -3, 4, 2; 5, 5, 1;);
    check!(u32: 0u32, u32::MAX, 1_000_000_000; u32::MAX - 2, u32::MAX, 1; 7u32, 3u32, 1;);
    check!(u8: 0u8, 255u8, 100; 255u8, 255u8, 1; 255u8, 0u8, 1;);
}

/// `assert_eq!` and similar macros, on tensors and on host values.
#[graph]
fn asserts_equality(x: Tensor, n: usize) -> Tensor {
    assert_eq!(n, 3, "the host says {}", n);
    debug_assert_ne!(format!("{n}")[..], *"4",);
    let doubled = x + x;
    assert_eq!(doubled, x * 2.0);
    if x.sum() > 10.0 {
        assert_eq!(x.max(), 9.0, "n is {n}");
        assert_ne!(x, doubled);
    }
    x.sum()
}

#[test]
fn equality_is_asserted_in_the_graph() {
    let run = |x: [f32; 2]| eval_with(|x| asserts_equality(x, 3), x).map(|y| y.item());
    assert_eq!(run([1.0, 2.0]).unwrap(), 3.0);
    assert_eq!(run([9.0, 2.0]).unwrap(), 11.0);
    let error = run([8.0, 5.0]).unwrap_err().to_string();
    assert!(error.contains("assertion `x.max() == 9.0` failed: n is 3"), "{error}");
    assert!(error.contains("tests/jumps.rs"), "{error}");
    let unequal = eval_with(
        |x: Tensor| {
            #[graph]
            fn f(x: Tensor) -> Tensor {
                assert_ne!(x, x + 0.0);
                x
            }
            f(x)
        },
        1.0,
    );
    assert!(unequal.unwrap_err().to_string().contains("assertion `x != x + 0.0` failed"));
    let host = std::panic::catch_unwind(|| eval_with(|x| asserts_equality(x, 4), 1.0));
    let message = host.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(*message, "assertion `left == right` failed: the host says 4\n  left: 4\n right: 3");
}

agree!(a_return_that_tracing_does_not_come_to(n) over -1..3; {
    let host = 1;
    if host != 3 {
    } else {
        if n > 0 {
            return n;
        } else {
            return n * 2;
        }
    }
    n * 3
});

agree!(a_host_return_behind_a_staged_one(n) over -3..6; {
    let host = 3;
    let mut d = int(1);
    if n != 2 {
        if host == 3 {
            {
                match n % 4 {
                    0 | 2 => {}
                    _ => {
                        return n * 100;
                    }
                }
                d += n;
            }
            return d;
        }
        d = int(5);
    } else if n > 10 {
    }
    d * 7
});

agree!(what_an_inner_arm_changes_at_the_end_of_a_body(n) over -3..9; {
    let mut sum = int(0);
    for i in count(0, n) {
        let mut u = i;
        sum += u;
        if i > 1 {
            match n % 6 {
                0 => {}
                1 => {
                    u = int(1);
                }
                _ => {
                    u += 2;
                }
            }
        }
    }
    sum
});

agree!(both_arms_left_by_host_conditions(n) over -2..7; {
    let host = 1;
    let mut sum = int(0);
    let mut t = int(10);
    loop {
        if t <= 0 {
            break;
        }
        t -= 1;
        sum += n;
        if sum > n * 3 {
            break;
        }
        if host != 2 {
            continue;
        }
    }
    sum
});

agree!(a_labeled_block_left_before_a_return(n) over -1..4; {
    'a: {
        for i in count(0, n) {
            if i == 1 {
                break 'a;
            }
        }
        return n * 5;
    }
    n + 1
});

agree!(an_arm_that_jumps_behind_a_jump_in_it(n) over -1..8; {
    if n > 1 {
        match n {
            2 => {}
            3 | 4 => {
                n += 10;
            }
            _ => {
                return n * 100;
            }
        }
        return n;
    } else {
        n += 1;
    }
    n * 7
});

agree!(what_stands_behind_a_block_that_jumps(n) over -1..3; {
    if n > 0 {
        return n;
    }
    {
        return n + 10;
    }
    n * 2
});

agree!(a_labeled_block_given_its_value_behind_what_may_return(n) over -2..5; {
    let x = 'b: {
        if n > 2 {
            n += 1;
        } else if n > 1 {
        } else {
            return n * 100;
        }
        break 'b n * 2;
    };
    x + n
});

agree!(a_host_jump_at_the_end_behind_a_staged_one(n) over -1..6; {
    let mut i = int(0);
    while i < n {
        i += 1;
        if i == 3 {
            return int(7);
        }
    }
    {
        if crate::jumps::HOST_TRUE {
            return i * 10;
        }
    }
    n * 2
});

agree!(a_value_that_certainly_jumps_behind_a_loop_that_may(n) over -1..6; {
    n = {
        let mut i = int(0);
        loop {
            if i >= 2 {
                break;
            }
            i += 1;
            if n > 3 {
                return int(100);
            }
        }
        n += 2;
        return n * 10;
    };
    n
});

agree!(a_value_behind_a_return(n) over -1..4; {
    if n > 1 {
        return n + 5;
        if n > 2 { n } else { int(4) }
    } else {
        n * 3
    }
});

agree!(what_stands_behind_arms_that_all_jump(n) over -1..4; {
    if n > 0 {
        if n > 1 {
            return n;
        } else {
            return n + 10;
        }
        n += 2;
        if n > 3 {
            return n;
        }
        let w = n;
        n = w + 1;
    }
    n * 2
});

agree!(a_right_side_that_changes_the_left(b, a) over (-3..5).flat_map(|b| (0..6).map(move |a| (b, a))); {
    b += if b > 2 { b -= 1; b } else { a };
    b *= { b += 1; if a > 1 { b -= 1; } b };
    if b == if a > 3 { b += 1; b } else { a } {
        b = -b;
    }
    let mut items = [a, b];
    items[1] -= if a > b { items[0] = a * 2; items[1] } else { items[1] += 3; items[0] };
    items[0] * 100 + items[1]
});

/// No tensor has decided anything before the first jump under a tensor condition, so the host may
/// still end the loop.
#[test]
fn a_host_value_may_end_an_unrolled_loop_before_a_tensor_can() {
    #[graph]
    fn by_question_mark(x: Tensor<f32>, items: &[Option<f32>]) -> Option<Tensor<f32>> {
        let mut t = x;
        for &item in items {
            let w = item?;
            if t > w {
                return Some(t);
            }
            t += w;
        }
        Some(t * 10.0)
    }
    #[graph]
    fn by_let_else(x: Tensor<f32>, items: &[Option<f32>]) -> Option<Tensor<f32>> {
        let mut t = x;
        for &item in items {
            let Some(w) = item else { return None };
            if t > w {
                return Some(t);
            }
            t += w;
        }
        Some(t * 10.0)
    }
    #[graph]
    fn by_result(x: Tensor<f32>, items: &[Option<f32>]) -> Result<Tensor<f32>, String> {
        let mut t = x;
        for (i, item) in items.iter().enumerate() {
            let w = item.ok_or_else(|| format!("nothing at {i}"))?;
            if t > w {
                return Ok(t);
            }
            t += w;
        }
        Ok(t * 10.0)
    }
    let functions = [by_question_mark, by_let_else, |x: Tensor<f32>, items: &[Option<f32>]| by_result(x, items).ok()];
    for (i, f) in functions.into_iter().enumerate() {
        let of =
            |items: &'static [Option<f32>]| move |x: Tensor<f32>| f(x, items).unwrap_or_else(|| scalar(-1.0) + x * 0.0);
        let called = |items, x: f32| eval_with(of(items), x).map(|y| y.item());
        let all = &[Some(1.0), Some(2.0), Some(3.0)];
        assert_eq!(called(all, 1.5), Ok(1.5), "function {i}");
        assert_eq!(called(all, 0.5), Ok(1.5 + 2.0), "function {i}");
        assert_eq!(called(all, -9.0), Ok(-30.0), "function {i}");
        assert_eq!(called(&[None, Some(1.0)], 0.5), Ok(-1.0), "function {i}");
        assert_eq!(called(&[], 0.5), Ok(5.0), "function {i}");
        // One path has a value, and the other has none.
        let error = called(&[Some(1.0), None], 0.5).expect_err("the structure depends on a tensor");
        let text = error.to_string();
        assert!(error.loc().is_some_and(|loc| loc.file.ends_with("jumps.rs")), "{text}");
        assert!(!text.contains("dsl/src") && !text.contains("__result"), "{text}");
    }
}
