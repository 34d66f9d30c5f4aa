//! Blocks with a value after a statement that certainly jumps: the value is never computed, but it
//! has a type, which other code may depend on.
#![deny(warnings)]
#![allow(
    unreachable_code,
    unused_variables,
    unused_assignments,
    unused_must_use,
    unused_labels,
    unused_braces,
    clippy::diverging_sub_expression,
    clippy::possible_missing_else,
    clippy::needless_late_init,
    reason = "what never runs is the case"
)]

agree!(after_a_break_and_a_continue_of_outer_targets(n) over 0..4; {
    let mut i = int(0);
    let mut sum = int(0);
    'a: loop {
        i += 1;
        if i > 3 {
            break;
        }
        'b: {
            let c = {
                if i > n {
                    break 'b;
                }
                {
                    sum += 10;
                    continue 'a;
                }
                int(1)
            };
            sum += c + 100;
        }
        sum += 1;
    }
    sum
});

agree!(whose_type_later_code_needs(n) over 0..4; {
    let mut i = int(0);
    'a: loop {
        i += 1;
        if i > 5 {
            return i;
        }
        let mut c = {
            if i > n {
                break 'a;
            }
            continue 'a;
            Vec::new()
        };
        c.push(String::from("x"));
        let text: &str = &c[0];
        i += if text.is_empty() { 1 } else { 2 };
    }
    i * 10
});

agree!(of_several_types(n) over -2..6; {
    let mut i = int(0);
    'a: while i < 6 {
        i += 1;
        'b: {
            let (a, b) = { if i > n { break 'b; } { continue 'a; } (int(1), [num(2.0)]) };
            let _: Num = b[0] + num(1.0);
            i += a;
        }
        'b: {
            let a: Option<Int> = { if i * 2 > n { break 'b; } { continue 'a; } None };
            i += a.unwrap();
        }
        'b: {
            let a = { if i * 3 > n { break 'b; } { continue 'a; } "text" };
            i += a.len() as i32;
        }
        'b: {
            let f = { if i * 4 > n { break 'b; } { continue 'a; } |x: Int| x + 1 };
            i = f(i);
        }
        'b: {
            let a = { if i * 5 > n { break 'b; } { continue 'a; } vec![int(1)] };
            i += a[0];
        }
        'b: {
            let a: Int = { if i * 6 > n { break 'b; } { continue 'a; } };
            i += a;
        }
        i += 1;
    }
    i
});

agree!(in_nested_blocks(n) over 0..8; {
    let mut sum = int(0);
    for i in up_to(int(6)) {
        let x = { { { if i == n { break; } { { continue; int(1) } } } } };
        sum += x;
        let x = if i > n { { continue; int(2) } } else { { break; int(3) } };
        sum += x;
    }
    for i in up_to(int(6)) {
        sum += i;
        let x: Int = if i < n { { continue; } } else { { return sum; int(3) } };
        sum += x;
    }
    sum
});

agree!(in_arms_of_an_if_that_goes_on(n) over 0..8; {
    let mut sum = int(0);
    for i in up_to(int(6)) {
        sum += 1;
        let x = if i > n { continue; int(2) } else { i };
        sum += x;
        let y = if i == 3 { int(7) } else { sum += 2; continue; int(8) };
        sum += y;
        if i == n { sum += 5; continue; i } else { i };
        sum += 3;
    }
    sum
});

agree!(after_a_loop_that_a_jump_leaves(n) over 0..8; {
    let mut sum = int(0);
    let mut i = int(0);
    'a: while i < 6 {
        i += 1;
        'b: {
            let x = {
                let mut j = int(0);
                while j < i {
                    j += 1;
                    if j + i == n { break 'b; }
                    if j * i == n { continue 'a; }
                }
                sum += j;
                { continue 'a; }
                int(5)
            };
            sum += x;
        }
        'b: {
            let x: Int = {
                let mut j = int(0);
                while j < i {
                    j += 1;
                    if j + i == n + 1 { break 'b; }
                }
                sum += j;
                { continue 'a; }
            };
            sum += x;
        }
        let x: Int = 'c: {
            let mut j = int(0);
            while j < i {
                j += 1;
                if j + i == n + 2 { continue 'a; }
            }
            sum += j;
            { continue 'a; }
        };
        sum += x;
    }
    sum * 100 + i
});

agree!(after_loops_at_the_end_of_blocks_and_functions(n) over 0..8; {
    let mut i = int(0);
    let y = 'b: {
        let mut j = int(0);
        while j < 5 {
            j += 1;
            if j == n { break 'b j; }
            if j * 2 == n { return int(-7); }
        }
        { break 'b j * 10; }
        int(8)
    };
    while i < y {
        i += 4;
        if i * 2 == n { return i; }
    }
    { return y - i; }
    int(9)
});

agree!(in_arms_of_a_match(n) over -1..6; {
    let mut sum = int(0);
    for i in up_to(int(6)) {
        sum += 1;
        let x = match i {
            0 => { { continue; int(1) } }
            1 if n > 2 => { break; int(2) }
            _ => { sum += 2; continue; int(3) }
        };
        sum += x;
    }
    for i in up_to(int(6)) {
        sum += 1;
        let x = match i {
            0 => { continue; vec![int(1)] }
            1..=3 => vec![i],
            _ if n == 4 => { return sum; Vec::new() }
            _ => { sum += 2; continue; vec![] }
        };
        sum += x[0];
        let Some(y) = Some(sum) else {
            if i == n { continue; }
            return int(3);
        };
        let 2..=4 = y - i else {
            sum += 1;
            { if i == n { continue; } }
            { if i < n { break; } else { continue; } }
        };
    }
    sum
});

agree!(in_closures(n) over 0..6; {
    let f = |x: Int| {
        let y = {
            if x > 2 { return x; }
            { return x * 2; }
            int(1)
        };
        y + 1
    };
    let g = |x: Int| {
        if x > 3 { return x; }
        { return x * 2; }
        int(1)
    };
    let h = |x: Int| {
        let mut i = int(0);
        while i < x {
            i += 1;
            if i * i > x { return i; }
        }
        return x * 7;
        i
    };
    f(n) * 100 + g(n) * 10 + h(n)
});

agree!(after_an_early_exit(n) over 0..8; {
    let mut sum = int(0);
    let mut i = int(0);
    'a: loop {
        i += 1;
        if i > 6 { return sum; }
        if i == n { continue; }
        'b: {
            if i == n + 1 { break 'b; }
            sum += 1;
            let c = {
                if i * 2 == n { sum += 7; continue 'a; }
                sum += 1;
                if i > n { break 'b; }
                sum += 1;
                if i == 2 { return sum * 2; }
                { continue 'a; }
                int(1)
            };
            let d = c * 2;
            sum += d;
        }
        sum += 50;
    }
    sum
});

agree!(as_assigned_values(n) over 0..6; {
    let mut sum = int(0);
    let mut i = int(0);
    while i < 3 {
        i += 1;
        sum += { if i > n { break; } continue; int(1) };
    }
    while i < 5 {
        i += 1;
        sum += i;
        sum += { if i > n { break; } continue; int(1) };
        let t: (Int, Int);
        t = { if i > n { break; } else { continue; (i, int(1)) } };
        sum += t.1;
    }
    sum
});

agree!(at_the_end_of_the_function(n) over 0..6; {
    if n > 4 {
        return n;
        int(3)
    } else {
        if n == 3 { return n * 2; int(4) }
        else if n == 2 { return n * 3; int(5) }
        else { return n * 4; { int(6) } }
    }
});

agree!(in_the_rest_after_loops_that_jumps_leave(n) over 0..9; {
    let mut sum = int(0);
    let mut i = int(0);
    'a: while i < 6 {
        i += 1;
        let text = 'b: {
            let text = {
                let mut j = int(0);
                while j < i {
                    j += 1;
                    if j + i == n { break 'b int(1); }
                    if j * i == n { continue 'a; }
                }
                sum += j;
                continue 'a;
                String::from("never")
            };
            sum += text.len() as i32;
            int(2)
        };
        sum += text;
    }
    sum * 10 + i
});

agree!(after_two_loops_with_different_targets(n) over 0..9; {
    let mut i = int(0);
    let y = 'b: {
        let mut j = int(0);
        while j < 5 {
            j += 1;
            if j == n { break 'b j; }
        }
        while j < 9 {
            j += 1;
            if j == n { return int(-1); }
        }
        { return j * 100; }
    };
    let z: Int = 'c: {
        while i < y {
            i += 1;
            if i * 2 == n { break 'c i; }
        }
        while i < y + 3 {
            i += 1;
            if i == n { return i; }
        }
        if n > 3 { return i + 20; } else { return i + 30; }
    };
    y * 10 + z
});

fn nothing() {}

agree!(that_are_unit(n) over 0..6; {
    let mut sum = int(0);
    let mut i = int(0);
    while i < 5 {
        i += 1;
        if i == n { sum += 5; continue; crate::dead_values::nothing() }
        if i == n + 1 { sum += 7; continue; crate::dead_values::nothing() } else { sum += 1 }
        if i == n + 2 { sum += 1 } else { sum += 9; { continue; crate::dead_values::nothing() } }
        sum += i;
    }
    if sum > 30 { return sum; crate::dead_values::nothing() }
    if n > 2 {
        if n > 3 { return sum + 1; } else { return sum + 2; }
        n += 1;
        if n > 4 { n += 1; } else if n > 6 { n += 3; } else { n += 4; }
    }
    if n > 1 {
        return sum * 2;
        match n { 0 => {} _ => { n = int(3); } }
    }
    'b: { if n > 0 { break 'b; crate::dead_values::nothing() } else { return n; } }
    'b: { if n > 0 { break 'b; } { break 'b; } crate::dead_values::nothing() }
    sum
});

agree!(in_discarded_ifs(n) over 0..6; {
    let mut sum = int(0);
    for i in up_to(int(5)) {
        sum += 1;
        if i == n { vec![i] } else { vec![sum] };
        if i == n { continue; vec![i] } else { vec![sum] };
        sum += 2;
        if i > n { sum += 1; continue; String::new() } else { sum += 3; continue; String::new() };
    }
    sum
});

agree!(with_variables_initialized_in_arms(n) over 0..8; {
    let mut sum = int(0);
    for i in up_to(int(6)) {
        let x;
        let y = if i > n { x = i; sum += 1; continue; (x, Vec::new()) } else { x = i + 1; (x, vec![i]) };
        let z;
        if i == 3 { z = x; continue; z } else { z = x * 2; y.0 };
        sum += x + y.0 + y.1[0] + z;
        let v = if i == 4 { continue; z } else { { break; x } };
        sum += v;
    }
    sum
});

agree!(in_long_chains_and_sequences(n) over -1..45; {
    let mut sum = int(0);
    let x = if n == 0 { return int(7); int(1) } else if n == 1 { int(2) } else if n == 2 { return int(9); int(1) }
        else if n == 3 { int(2) } else if n == 4 { int(3) } else if n == 5 { int(5) } else if n == 6 { int(6) }
        else if sum == 1 { int(2) } else if sum == 2 { int(3) } else if sum == 3 { int(5) } else if n == 7 { int(6) }
        else if n == 8 { return int(9); int(1) } else if n == 9 { int(9) } else if n == 10 { int(3) } else if n == 11 { int(4) }
        else if n == 12 { return int(9); int(1) } else if n == 13 { int(9) } else if n == 14 { int(3) } else if n == 15 { int(4) }
        else if n == 16 { return int(9); int(1) } else if n == 17 { int(9) } else if n == 18 { int(3) } else if n == 19 { int(4) }
        else { return int(11); int(8) };
    sum += x;
    let y = {
        if n == 0 { return sum + 1; }
        sum += 1;
        if n == 1 { return sum + 1; }
        sum += 1;
        if n == 3 { return sum + 1; }
        if n == 4 { return sum + 1; }
        if n == 5 { return sum + 1; }
        if n == 6 { return sum + 1; }
        if n == 7 { return sum + 1; }
        if n == 8 { return sum + 1; }
        if n == 9 { return sum + 1; }
        if n == 10 { return sum + 1; }
        sum += 3;
        if n == 11 { return sum + 1; }
        if n == 12 { return sum + 1; }
        if n == 13 { return sum + 1; }
        if n == 14 { return sum + 1; }
        if n == 15 { return sum + 1; }
        if n == 16 { return sum + 1; }
        if n == 17 { return sum + 1; }
        if n == 18 { return sum + 1; }
        return sum;
        int(1)
    };
    x + y
});

agree!(in_conditions(n) over 0..6; {
    let mut i = int(0);
    let mut sum = int(0);
    loop {
        i += 1;
        let go = { if i > n { return sum; } { sum += 1; if i < 5 { continue; } } i < 9 };
        if go { sum += 10; } else { break; }
        let go = { if i > n { return sum; } else { return sum + 1; i < 9 } };
        if go { sum += 10; }
    }
    sum
});

agree!(after_a_loop_when_a_jump_ends_the_block(n) over 0..9; {
    let mut sum = int(0);
    let mut i = int(0);
    'a: while i < 6 {
        i += 1;
        'b: {
            let mut j = int(0);
            while j < i {
                j += 1;
                if j + i == n { break 'b; }
                if j * i == n { continue 'a; }
            }
            sum += j;
            if i > n { sum += 7; break 'b; } else { sum += 3; continue 'a; }
        }
        sum += 100;
    }
    sum * 10 + i
});

agree!(after_a_loop_that_returns_in_a_block(n) over 0..5; {
    'b: {
        for i in up_to(n % 3) {
            if n > i { return int(5); }
        }
        break 'b;
    }
    n + 2
});
