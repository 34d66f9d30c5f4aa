//! `let x;`: variables that are initialized later, in arms, loops and labeled blocks, also together
//! with jumps.
#![deny(warnings)]
#![allow(unused_assignments, clippy::needless_late_init, reason = "they are cases, too")]

agree!(deferred_and_changed_where_it_is_given(n) over -2..6; {
    let mut y;
    if n > 1 {
        y = n * 2;
        if n > 2 {
            y += 1;
        }
        if n > 3 {
            y += 1;
        }
        y += 100;
    } else {
        y = n;
    }
    y + 1
});

agree!(deferred_behind_a_return_that_stands_deeper(n) over -2..9; {
    let d;
    let mut y = n - 3;
    if n > 5 {
        d = y;
    } else {
        if n > 3 {
            y += 3;
        } else {
            if n == 0 {
                return y * 100;
            }
            if n == 1 {
                return y * 1000;
            }
            y += 4;
        }
        d = n * 10;
    }
    d + y
});

agree!(deferred_in_a_nested_pattern(n) over -2..4; {
    let (a, (b, [mut c, d]));
    if n > 1 {
        (a, (b, [c, d])) = (n, (n * 2, [n * 3, n * 4]));
    } else {
        (a, b, c, d) = (n - 1, n - 2, n - 3, n - 4);
    }
    if n > 0 {
        c += 1;
    }
    a * 1000 + b * 100 + c * 10 + d
});

agree!(deferred_in_a_loop(n) over 0..9; {
    let mut y;
    let mut i = int(0);
    loop {
        i += 1;
        if i == 2 {
            continue;
        }
        y = n * i;
        if i > 6 {
            y += 1;
        }
        if y > 5 || i > 9 {
            break;
        }
    }
    y * 10 + i
});

agree!(deferred_in_arms_in_a_loop(n) over 0..40; {
    let mut next;
    let mut x = n;
    loop {
        if x > 10 {
            next = x / 2;
            if x % 2 == 1 {
                next += 7;
                break;
            }
        } else {
            next = x - 1;
        }
        if next <= 3 {
            break;
        }
        x = next;
    }
    next * 100 + x
});

agree!(deferred_and_used_in_the_last_arms(n) over -2..5; {
    let y;
    let mut z;
    if n > 0 {
        y = n * 2;
        if n > 1 {
            z = y * 3;
            z += 1;
            z
        } else {
            z = y;
            z - 7
        }
    } else {
        y = n - 1;
        z = y;
        z += 2;
        y * z
    }
});

agree!(deferred_and_used_in_the_last_arms_of_a_loop(n) over -2..5; {
    let mut i = int(0);
    let mut sum = int(0);
    while i < 4 {
        i += 1;
        let y;
        if i > n {
            y = i * 2;
            sum += y;
        } else if i == n - 1 {
            y = sum;
            sum = y * 3;
        } else {
            y = n;
            sum -= y;
        }
    }
    sum
});

agree!(first_value_through_a_block(n) over -2..8; {
    let r;
    'a: {
        if n > 3 {
            r = n * 2;
            break 'a;
        }
        r = n + 100;
    }
    r
});
agree!(first_values_through_a_block(n) over -2..12; {
    let r;
    let mut s: Int;
    'a: {
        if n > 3 {
            if n > 5 {
                if n == 8 { return int(-1); }
                s = n;
                s += 1;
                r = n * 2;
                break 'a;
            }
            n += 1;
        }
        match n {
            0 => { (r, s) = (int(7), int(8)); break 'a }
            1 => { s = n; s *= 5; }
            _ => s = n - 1,
        }
        r = n + 100;
    }
    s += 1;
    r * 1000 + s
});
agree!(first_value_before_a_return(n) over -2..8; {
    let r;
    if n > 1 {
        if n > 4 {
            r = n * 2;
            return r + 1;
        }
        n += 1;
    }
    r = n * 3;
    r
});

agree!(first_values_in_some_arms_of_a_block(n) over -2..9; {
    let r;
    let s;
    'a: {
        if n > 2 {
            if n > 6 { r = n; s = n; break 'a; } else { s = n * 2; }
            if s > 8 { r = s + 1; break 'a; }
            n += 5;
        } else {
            s = n;
        }
        let mut i = int(0);
        while i < n {
            if i == 3 { return s; }
            i += 1;
        }
        r = i + s;
    }
    r * 100 + s
});
agree!(first_value_through_a_block_in_a_loop(n) over -2..9; {
    let mut i = int(0);
    let mut sum = int(0);
    'l: while i < 5 {
        i += 1;
        let r;
        'a: {
            if i > n { r = i; break 'a; }
            if i == 2 { continue 'l; }
            if i == n - 4 { break 'l; }
            r = n;
        }
        sum = sum * 3 + r;
    }
    sum
});
agree!(deferred(n) over -2..3; {
    let x;
    let mut y;
    if n > 0 {
        x = n * 2;
        y = x;
        y += 1;
    } else if n == 0 {
        x = int(5);
        y = int(6);
    } else {
        if n == -1 { x = int(8); } else { x = int(9); }
        y = x + n;
    }
    y += 1;
    x * 100 + y
});

agree!(first_value_before_a_break(n) over -1..9; {
    let w;
    loop {
        n += 1;
        if n > 5 {
            w = n * 2;
            break;
        }
    }
    w + n
});

agree!(first_value_before_one_of_several_breaks(n) over -1..12; {
    let mut w;
    'outer: loop {
        n += 1;
        match n {
            4 => {
                w = n * 3;
                break;
            }
            9 => {
                w = int(7);
                break 'outer;
            }
            _ => {}
        }
        if n > 10 {
            w = n;
            break;
        } else if n % 7 == 6 {
            continue;
        }
        n += 1;
    }
    w += n;
    w
});

agree!(first_value_behind_a_loop_or_in_it(n) over -1..9; {
    let w;
    'a: {
        for i in count(0, n) {
            if i > 3 {
                w = n * i;
                break 'a;
            }
        }
        w = n + 100;
    }
    w
});

agree!(two_declared_at_once(n) over -2..3; {
    let (a, mut b);
    if n > 0 {
        (a, b) = (n, n * 2);
    } else {
        a = int(5);
        b = n;
    }
    b += a;
    a * 10 + b
});

agree!(first_value_through_a_block_with_a_value(n) over -2..6; {
    let y;
    let z = 'b: {
        if n < 2 {
            y = n * n;
            break 'b n;
        }
        y = n * 3;
        n * n
    };
    y * 100 + z
});

agree!(initialized_only_before_jumps(n) over 0..8; {
    let mut sum = int(0);
    for i in up_to(int(6)) {
        let w;
        let _v: Int = if i > n {
            w = i;
            sum += w;
            continue;
        } else {
            w = i + 1;
            sum += w;
            break;
        };
    }
    for i in up_to(int(6)) {
        let v = {
            let (mut w, z);
            if i > n {
                w = i;
                w += 1;
                z = vec![w];
                sum += w + z[0];
                continue;
            }
            if i == n {
                sum += 3;
            } else {
                z = vec![i];
                sum += z[0];
                break;
            }
            sum + 1
        };
        sum += v;
    }
    sum
});
