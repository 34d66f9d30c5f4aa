//! Jumps in nested constructs: bodies that combine loops, matches, labeled blocks, closures and
//! references, as tensors and as plain Rust.
#![allow(
    clippy::needless_late_init,
    clippy::collapsible_if,
    reason = "first values given later and jumps in nests are the subject"
)]

use super::engine::check_corpus;

agree!(a_loop_with_a_value_in_another(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 5]; {
    let mut i = int(0);
    let r = 'a: loop {
        let inner = loop {
            i += 1;
            x *= 1.1;
            if i > n { break 'a x * x; }
            if i % 2 == 0 { break x + 1.0; }
            if i > 7 { return x * 50.0; }
        };
        x = inner * 0.5;
        if x > 3.0 { break inner; }
    };
    r + x
});

agree!(a_match_with_jumps_as_a_value(x: Num, n: Int) over [0.7, 1.3], [-3, 0, 1, 2, 5, 9]; {
    let mut y = x;
    let mut i = int(-2);
    let r = loop {
        i += 1;
        let k = match n - i {
            k @ 0..=2 => k * 2,
            3 | 4 if i > 0 => break y * 3.0,
            -9..0 => { y += 1.0; int(7) }
            k if k * k == 64 => continue,
            _ => if i > 4 { return y * 0.1; } else { i }
        };
        y = y * x + 0.1;
        if k == 7 { break y; }
    };
    r * x
});

agree!(first_values_in_arms_of_a_match(x: Num, n: Int) over [0.7, 1.3], [-1, 0, 1, 2, 5]; {
    let mut total = num(0.0);
    for i in up_to(n) {
        let a; let b: Num; let c;
        match i {
            0 => { a = x; b = x * x; }
            1 => { a = num(2.0); if x > 1.0 { b = x; } else { b = x * 3.0; } }
            _ => { b = num(0.5); a = b * x; }
        }
        c = if i == 2 { continue } else { a * b };
        total += c;
    }
    total
});

agree!(a_first_value_after_a_return(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 5]; {
    let y; let mut z;
    if n == 0 { return x * 3.0; }
    if n > 2 { y = x * x; z = y; } else { y = x; z = x * 2.0; }
    z += 1.0;
    y * z
});

agree!(a_first_value_beside_a_jump(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 5]; {
    let mut t = x;
    for i in up_to(n) {
        let c;
        c = if i == 2 { continue } else { t * x };
        t += c;
    }
    t
});

agree!(a_first_value_after_a_continue(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 5]; {
    let y;
    if n > 2 { y = x * x; } else if n == 1 { return x; } else { y = x * 2.0; }
    for i in up_to(n) {
        let q;
        if i == 1 { continue; }
        q = x * y;
        if i > 3 { break; }
        x += q;
    }
    y + x
});

agree!(jumps_of_every_kind_in_a_nest(x: Num, n: Int) over [0.7, 1.3], [0, 1, 3, 6]; {
    let mut acc = num(0.0);
    'o: for i in up_to(n) {
        let mut k = int(0);
        while k < 4 {
            k += 1;
            if x > 0.1 {
                match (i + k) % 5 {
                    0 => { acc += x; continue 'o; }
                    1 if acc > 3.0 => { acc *= x; break; }
                    2 => for j in up_to(k) {
                        acc = acc * 0.5 + x;
                        if j == 2 { if acc > 1.0 { break 'o; } else { continue; } }
                        acc += x * x;
                    },
                    3 => if acc > 8.0 { return acc * x * 100.0; },
                    _ => { acc += 0.25; }
                }
            } else { break 'o; }
            acc += x;
        }
        acc *= 1.1;
    }
    acc
});

agree!(leaves_three_loops(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 4, 7]; {
    let mut s = x;
    for i in up_to(n) {
        for j in up_to(i) {
            let mut k = int(0);
            loop {
                if k > j { break; }
                s = s * x + 0.1;
                if i * j + k == 5 { return s * s; }
                if s > 9.0 { return s - x; }
                k += 1;
            }
        }
    }
    s * 2.0
});

agree!(labelled_blocks_in_a_loop(x: Num, n: Int) over [0.7, 1.3], [-1, 0, 1, 2, 5]; {
    let mut y = x;
    let mut i = int(0);
    while i < 4 {
        i += 1;
        let q = 'b: {
            if n == 0 { break 'b x; }
            'c: {
                if n == i { break 'b y * 0.5; }
                if n > 3 { break 'c; }
                y += 0.1;
                }
            y *= x;
            x * x
        };
        y += q;
    }
    y
});

agree!(arrays_and_tuples_taken_apart(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 3, 6]; {
    let mut a = [x, x * x, num(1.0)];
    let mut t = (num(2.0), (x, num(0.5)));
    for i in up_to(n) {
        [a[0], _, a[2]] = [a[2], x, a[0] * 1.1];
        (t.0, (_, t.1.1)) = (t.1.1 + a[0], (x, t.0 * x));
        if i % 2 == 0 { std::mem::swap(&mut t.0, &mut t.1.0); }
        a[1] += t.1.0;
        a.swap(0, 1);
        t.0 *= 0.5;
    }
    a[0] + a[1] * 2.0 + a[2] * 3.0 + t.0 + t.1.0 * 5.0 + t.1.1 * 7.0
});

agree!(through_references(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 5]; {
    let mut y = x;
    let mut v = vec![x, x * 2.0, num(3.0)];
    let mut o = Some(x);
    {
        let r = &mut y;
        let mut i = int(0);
        while i < n { *r = *r * x + 0.1; i += 1; if *r > 2.0 { *r -= 1.0; break; } }
    }
    for e in v.iter_mut() { if *e > 1.0 { *e *= x; } }
    for e in &mut v { if n > 1 { *e += x; continue; } *e += 1.0; }
    if let Some(e) = o.as_mut() { if n == 2 { *e += x * 5.0; } }
    if let Some(e) = &mut o { for _i in up_to(n) { *e *= 1.5; } }
    if n > 0 { v.swap(0, 1); }
    let [p, q, ..] = &mut v[..] else { return x };
    let p: &mut Num = p; let q: &mut Num = q; if n > 1 { std::mem::swap(p, q); }
    v.iter().fold(num(0.0), |a, b| a * 0.5 + *b) + y + o.unwrap()
});

agree!(closures_with_jumps(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 5]; {
    let f = |a: Num, k: Int| {
        if k % 2 == 0 { return a * x; }
        let (mut a, mut i) = (a, int(0));
        while i < k {
            a += 0.1;
            if a > 2.0 { return a * 3.0; }
            i += 1;
        }
        a
    };
    let mut y = x;
    for i in up_to(n) { y = f(y, i); if y > 4.0 { break; } }
    let mut sum = num(0.0);
    if n > 0 { [1.0, 2.0].iter().for_each(|k| sum += y * *k); }
    y + sum
});

agree!(integers_and_truths_decide(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 5, 13]; {
    let mut i = n;
    let mut steps = int(0);
    let mut odd = n > 3;
    let mut y = x;
    while i > 0 {
        odd = !odd;
        if odd && i % 2 == 1 { y = y * x; } else if !odd || i > 4 { y += x; }
        i = if i % 3 == 0 { i / 3 } else { i - 1 };
        steps += 1;
    }
    if odd { y * 2.0 } else { if steps > 3 { y } else { y * -1.0 } }
});

agree!(host_loops_in_a_loop_of_tensors(x: Num, n: Int) over [0.7, 1.3], [0, 1, 2, 5]; {
    let mut y = x;
    let mut i = int(0);
    'o: while i < n {
        i += 1;
        for k in [1.0, 2.0, 3.0] {
            let Some(w) = (if k == 2.0 { None } else { Some(k) }) else { y += 0.01; continue };
            if y > 6.0 { break; }
            if y > 4.5 { continue 'o; }
            if y * w > 12.0 { return y * w; }
            y = y * x + w * 0.3;
        }
        y -= 0.1;
    }
    y
});

#[test]
fn nested_jumps_are_right_on_every_engine() {
    let cases = [
        a_loop_with_a_value_in_another::case(),
        a_match_with_jumps_as_a_value::case(),
        first_values_in_arms_of_a_match::case(),
        a_first_value_after_a_return::case(),
        a_first_value_beside_a_jump::case(),
        a_first_value_after_a_continue::case(),
        jumps_of_every_kind_in_a_nest::case(),
        leaves_three_loops::case(),
        labelled_blocks_in_a_loop::case(),
        arrays_and_tuples_taken_apart::case(),
        through_references::case(),
        closures_with_jumps::case(),
        integers_and_truths_decide::case(),
        host_loops_in_a_loop_of_tensors::case(),
    ];
    check_corpus("jumps", &cases, 14);
}
