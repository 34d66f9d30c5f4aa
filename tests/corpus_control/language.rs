//! Jumps, labels, counted loops and late initialization.
//!
//! Each body is written once and used both as a `#[graph]` of tensors and as plain Rust on dual
//! numbers, which carry the first derivative. So every trip count and every exit is compared, with
//! its gradient. Many more such bodies are compared by their values in `tests/jumps.rs` and
//! `tests/control_flow.rs`.

use super::engine::check_corpus;

agree!(leaves_early(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 5]; {
    if n == 0 {
        return x * 3.0;
    }
    let mut i = int(0);
    while i < n {
        x = x * x + 0.25;
        if x > 2.0 {
            return x * 10.0;
        }
        i += 1;
    }
    x - 1.0
});

agree!(breaks_and_continues(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 5, 9]; {
    let mut sum = num(0.0);
    let mut i = int(0);
    while i < n {
        i += 1;
        if i % 3 == 0 {
            continue;
        }
        x *= 1.25;
        if x > 2.4 {
            sum += x * 100.0;
            break;
        }
        sum += x * x;
    }
    sum
});

agree!(leaves_two_loops_by_a_label(x: Num, n: Int) over [0.9, 1.1], [0, 1, 3, 6]; {
    let mut sum = num(0.0);
    'outer: for i in up_to(n) {
        for j in up_to(i) {
            if j == 3 {
                continue 'outer;
            }
            sum = sum * x + 1.0;
            if sum > 6.0 {
                break 'outer;
            }
        }
        sum *= x;
    }
    sum
});

agree!(an_endless_loop_with_a_value(x: Num, n: Int) over [0.7, 1.3], [0, 1, 4]; {
    let mut i = int(0);
    let last = loop {
        x = x * 1.5;
        if x > 20.0 {
            break x * x;
        }
        if i == n {
            break x;
        }
        i += 1;
    };
    last + 1.0
});

agree!(counted_with_a_return(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 7]; {
    let mut product = num(1.0);
    for i in up_to(n) {
        product *= x;
        if i == 4 {
            return product * 7.0;
        }
    }
    product
});

agree!(initialized_later(x: Num, n: Int) over [0.7, 1.3], [-1, 0, 1, 2]; {
    let y;
    let z;
    if n > 0 {
        y = x * 2.0;
        z = y * y;
    } else {
        y = x * x;
        if n == 0 { z = num(1.0); } else { z = y * x; }
    }
    y * z
});

agree!(assigned_with_a_branch_as_value(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 3]; {
    let mut i = int(0);
    while i < n {
        x += if i % 2 == 0 { x * x } else { num(0.5) };
        x *= if x > 3.0 { num(0.5) } else { x };
        i += 1;
    }
    x
});

agree!(shadowed_and_taken_apart(x: Num, n: Int) over [0.7, 1.3], [0, 1, 3]; {
    let (mut a, mut b) = (x, num(1.0));
    let mut i = int(0);
    while i < n {
        let x = a * b;
        (a, b) = (b + x, a);
        {
            let a = b * 2.0;
            b = a - x;
        }
        i += 1;
    }
    a * b * x
});

agree!(matched(x: Num, n: Int) over [0.7, 1.3], [-5, 0, 1, 2, 3, 4, 9]; {
    let mut y = x;
    let mut i = int(0);
    while i < 3 {
        y = match n + i {
            0 => y * y,
            1 | 2 => y * 2.0 + x,
            3..=5 => { if y > 2.0 { break; } y * x * 3.0 }
            -5..=-1 => num(0.5),
            k if k > 8 => {
                let _ = k;
                y * 0.5
            }
            _ => y + 1.0,
        };
        i += 1;
    }
    y
});

agree!(a_condition_that_is_a_block(x: Num, n: Int) over [0.7, 1.3], [0, 1, 4]; {
    let mut i = int(0);
    let mut y = x;
    while { let z = y * x; z < 5.0 } && i < n {
        y = y * y + x;
        i += 1;
    }
    y
});

#[test]
fn the_language_has_its_meaning_on_every_engine() {
    let cases = [
        leaves_early::case(),
        breaks_and_continues::case(),
        leaves_two_loops_by_a_label::case(),
        an_endless_loop_with_a_value::case(),
        counted_with_a_return::case(),
        initialized_later::case(),
        assigned_with_a_branch_as_value::case(),
        shadowed_and_taken_apart::case(),
        matched::case(),
        a_condition_that_is_a_block::case(),
    ];
    check_corpus("language", &cases, 10);
}

mod rows {
    use super::super::engine::{ControlCase, check_corpus, gives};
    use anabranch::prelude::*;

    type S = Tensor<f64>;

    #[graph]
    fn until_a_limit(x: S, limit: S) -> S {
        let mut sum = scalar(0.0);
        for row in x {
            if sum > limit {
                break;
            }
            sum += (row * row).sum();
        }
        sum
    }

    #[graph]
    fn the_first_that_fits(x: S, least: S) -> S {
        for row in x {
            if row.sum() > least {
                return row * row;
            }
        }
        x.row(0)
    }

    #[graph]
    fn pairs(x: S) -> S {
        let mut sum = scalar(0.0);
        for row in x {
            for element in row {
                if element < 0.0 {
                    continue;
                }
                sum = sum * element + element;
            }
        }
        sum
    }

    /// Two tensors, one of them in a tuple of its own, and the numbers of the rows.
    #[graph]
    fn rows_at_one_index(x: S, y: S) -> S {
        let mut sum = scalar(0.0);
        for (row, (z,), i) in (x, (y,), iota::<i32>(3)) {
            if i == 2 {
                break;
            }
            sum = sum * z + row.sum() * z;
        }
        sum
    }

    #[test]
    fn rows_of_tensors_are_right_on_every_engine() {
        let x = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
        let none: [[f64; 2]; 0] = [];
        let cases = [
            ControlCase::new("until a limit")
                .at(until_a_limit, (x, 10.0), gives(&[30.0]).first(&[2.0, 4.0, 6.0, 8.0, 0.0, 0.0, 0.0]))
                .at(until_a_limit, (x, 100.0), gives(&[91.0]).first(&[2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 0.0]))
                .at(until_a_limit, (none, 100.0), gives(&[0.0]).first(&[0.0])),
            ControlCase::new("the first that fits")
                .at(the_first_that_fits, (x, 4.0), gives(&[9.0, 16.0]).first(&[0.0, 0.0, 6.0, 8.0, 0.0, 0.0, 0.0]))
                .at(the_first_that_fits, (x, 99.0), gives(&[1.0, 2.0]).first(&[1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])),
            // ((2) 3 + 3) 5 + 5
            ControlCase::new("pairs")
                .at(pairs, [[2.0, -1.0], [3.0, 5.0]], gives(&[50.0]).first(&[15.0, 0.0, 15.0, 10.0]))
                .at(pairs, [[-2.0, -1.0]], gives(&[0.0]).first(&[0.0, 0.0])),
            // ((1 + 2) 7) 8 + (3 + 4) 8
            ControlCase::new("rows at one index").at(
                rows_at_one_index,
                (x, [7.0, 8.0, 9.0]),
                gives(&[224.0]).first(&[56.0, 56.0, 8.0, 8.0, 0.0, 0.0, 24.0, 28.0, 0.0]),
            ),
        ];
        check_corpus("language_rows", &cases, 4);
    }
}
