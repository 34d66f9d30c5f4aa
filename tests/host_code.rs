//! Host code in graph functions can use all of Rust.

#![deny(warnings)]
#![allow(clippy::all, reason = "code as users write it, odd forms included")]

use anabranch::prelude::*;
use std::collections::HashMap;

#[graph]
fn jumps(xs: &[i32]) -> Result<i32, String> {
    let mut sum = 0;
    'rows: for (i, &x) in xs.iter().enumerate() {
        if x < 0 {
            continue;
        }
        let mut k = 0;
        while k < x {
            k += 1;
            if k == 7 {
                continue 'rows;
            }
            if k > 9 && i > 2 {
                break 'rows;
            }
            if k == 5 {
                continue;
            }
            sum += k;
        }
        if x == 100 {
            return Ok(-1);
        }
        let parsed: i32 = if x == 42 { "x".parse().map_err(|e| format!("{e}"))? } else { x };
        sum += parsed;
        if x > 1000 {
            return Err(format!("{x} is too large"));
        }
    }
    Ok(sum)
}

fn jumps_plain(xs: &[i32]) -> Result<i32, String> {
    let mut sum = 0;
    'rows: for (i, &x) in xs.iter().enumerate() {
        if x < 0 {
            continue;
        }
        let mut k = 0;
        while k < x {
            k += 1;
            if k == 7 {
                continue 'rows;
            }
            if k > 9 && i > 2 {
                break 'rows;
            }
            if k == 5 {
                continue;
            }
            sum += k;
        }
        if x == 100 {
            return Ok(-1);
        }
        let parsed: i32 = if x == 42 { "x".parse().map_err(|e| format!("{e}"))? } else { x };
        sum += parsed;
        if x > 1000 {
            return Err(format!("{x} is too large"));
        }
    }
    Ok(sum)
}

#[test]
fn jumps_mean_what_they_do() {
    for xs in [&[1, 2, 3][..], &[-1, 6, 7, 8], &[5, 42], &[3, 4, 5, 6, 1, 2], &[2000], &[0, 100], &[]] {
        assert_eq!(jumps(xs), jumps_plain(xs), "{xs:?}");
    }
}

#[graph]
fn collections(words: &[&str]) -> (Vec<String>, HashMap<String, usize>) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut order = Vec::new();
    let mut i = 0;
    while i < words.len() {
        let word = words[i].to_string();
        if let Some(n) = seen.get_mut(&word) {
            *n += 1;
        } else if word != "" && !word.starts_with('#') {
            seen.insert(word.clone(), 1);
            order.push(word);
        }
        i += 1;
    }
    (order, seen)
}

#[test]
fn collections_strings_and_options() {
    let (order, seen) = collections(&["a", "b", "", "#c", "a"]);
    assert_eq!(order, ["a", "b"]);
    assert_eq!((seen["a"], seen["b"]), (2, 1));
}

#[graph]
fn borrows(n: usize) -> Vec<usize> {
    let (mut even, mut odd) = (vec![], vec![]);
    for i in 0..n {
        let target = if i % 2 == 0 { &mut even } else { &mut odd };
        target.push(i);
        let owned = i.to_string();
        let label: &str = if i > 1 { &owned } else { "small" };
        if label == "small"
            && let Some(last) = target.last_mut()
            && *last == 1
        {
            *last += 10;
        }
    }
    let name: Box<dyn Fn(usize) -> usize> = if n > 3 { Box::new(|x| x + 1) } else { Box::new(move |x| x + n) };
    even.extend(odd.iter().copied().filter(|x| *x > 1).map(name));
    even
}

#[test]
fn borrows_and_coercions() {
    assert_eq!(borrows(5), [0, 2, 4, 12, 4]);
}

#[graph]
fn closures_and_matches(n: i32) -> i32 {
    let mut calls = 0;
    let mut add = |x: i32| {
        if x < 0 {
            return 0;
        }
        calls += 1;
        x
    };
    let mut total = 0;
    for i in -1..n {
        total += add(i);
    }
    match (total, calls) {
        (t, _) if t > 100 => 1,
        (t, c) if t == 0 || c == 0 => 2,
        (t, c) => {
            if t > c {
                t
            } else {
                c
            }
        }
    }
}

#[test]
fn closures_and_matches_keep_their_jumps() {
    assert_eq!([closures_and_matches(0), closures_and_matches(4), closures_and_matches(30)], [2, 6, 1]);
}

#[graph]
fn moves(flag: bool, text: String) -> String {
    let mut out = String::from("<");
    if flag {
        out.push_str(&text);
        out += ">";
    }
    let kept = if flag { out } else { text + "." };
    if kept.is_empty() { String::new() } else { kept }
}

#[test]
fn values_that_are_not_copy_move() {
    assert_eq!(moves(true, "a".into()), "<a>");
    assert_eq!(moves(false, "a".into()), "a.");
}

#[graph]
fn moved_by_both(flag: bool, items: Vec<u8>, log: &mut Vec<Vec<u8>>) -> usize {
    if flag {
        log.push(items);
    } else if items.is_empty() {
        drop(items);
    } else {
        log.extend([items.clone(), items]);
    }
    log.len()
}

#[test]
fn arms_of_conditions_that_are_bool_by_their_form_may_move_the_same_value() {
    let mut log = vec![];
    assert_eq!(moved_by_both(true, vec![1], &mut log), 1);
    assert_eq!(moved_by_both(false, vec![], &mut log), 1);
    assert_eq!(moved_by_both(false, vec![2], &mut log), 3);
}

#[graph]
fn diverging(x: i32) -> i32 {
    let y = if x > 3 { x } else { return -1 };
    if y > 10 {
        return 10;
    } else {
        return y;
    }
}

#[test]
fn arms_that_do_not_end() {
    assert_eq!([diverging(1), diverging(5), diverging(50)], [-1, 5, 10]);
}

#[graph]
fn labeled_blocks_and_loops(n: i32) -> i32 {
    let found = 'search: {
        for i in 0..n {
            if i * i > 20 {
                break 'search i;
            }
        }
        -1
    };
    let mut k = found;
    loop {
        k += 1;
        if k > 8 {
            break k;
        }
    }
}

#[test]
fn break_with_a_value() {
    assert_eq!([labeled_blocks_and_loops(3), labeled_blocks_and_loops(20)], [9, 9]);
}

/// Defines a plain function and a graph function with the same body, and compares their results.
/// There is no engine to compare, as in `agree!`: the values are of host types that have no
/// tensors.
macro_rules! equals_plain {
    ($name:ident($($arg:ident: $ty:ty),*) -> $out:ty, $($input:expr),+; $body:block) => {
        #[test]
        fn $name() {
            #[graph]
            fn graph_function($($arg: $ty),*) -> $out $body
            fn plain($($arg: $ty),*) -> $out $body
            for input in [$($input),+] {
                let call = |f: fn($($ty),*) -> $out| { let ($($arg,)*) = input; f($($arg),*) };
                assert_eq!(call(graph_function), call(plain));
            }
        }
    };
}

equals_plain!(comparisons_of_all_kinds(a: i64, s: &str, v: &[f64]) -> u32,
    (3, "abc", &[1.0, f64::NAN][..]), (-1, "", &[]), (100, "x", &[0.5]); {
    let mut bits = 0u32;
    let mut bit = 1;
    let mut note = |b: bool| { if b { bits |= bit } bit <<= 1; };
    note(-1 < a);
    note(a as u8 as char == 'd');
    note((a, s) < (3, "b"));
    note(s[..] == *"abc");
    note(s == "abc" && s != String::from("abd"));
    note(v == [0.5]);
    note(v.to_vec() == vec![0.5]);
    note(v.first() == Some(&0.5));
    note(v.iter().copied().fold(0.0, |m, x| if x > m { x } else { m }) >= 1.0);
    note(v.first().map(|x| x.partial_cmp(&0.7)) == Some(Some(std::cmp::Ordering::Less)));
    note(&a == &3 || *&a <= 2);
    note(!(a == 3) == (a != 3));
    note(v.iter().all(|x| *x == *x));
    note(v.len() == 1 && v[0] < 1.0);
    note((1..10).contains(&a) == (1 <= a && a < 10));
    note(s.chars().next() > Some('a') || None == s.chars().last());
    note(s.as_bytes() <= &b"abc"[..]);
    note(Box::new(a) > Box::new(2));
    bits
});

equals_plain!(inference_of_literals(n: usize) -> Vec<u16>, (0,), (1,), (7,); {
    let mut out = Vec::new();
    let mut i = 0;
    let step = if n > 3 { 2 } else { 1 };
    while i < n {
        let x = if i == 4 { 300 } else { i as u16 };
        out.push(x);
        i += step;
    }
    let total = out.iter().fold(0, |a, b| a + b);
    if total > 5 { out.push(total) };
    out
});

equals_plain!(question_marks_everywhere(text: &'static str) -> Option<u32>, ("12 7",), ("x",), ("5",), ("",); {
    let mut words = text.split(' ');
    let mut sum = 0;
    while words.clone().next()?.len() > sum as usize {
        let n: u32 = words.next()?.parse().ok()?;
        sum += if n > 10 { n - words.clone().next()?.parse::<u32>().ok()? } else { n };
    }
    if sum == 0 { None } else { Some(sum) }
});

equals_plain!(nested_values(a: i32, b: i32) -> String, (1, 2), (2, 1), (0, 0); {
    let label = match a.cmp(&b) {
        std::cmp::Ordering::Less => if b > 1 { "less" } else { "just less" },
        std::cmp::Ordering::Equal if a == 0 => "zero",
        _ => { if a < 5 { "more" } else { "much more" } }
    };
    let mut text = format!("{label}{}", if a > b { a } else { b });
    let tail = loop {
        if text.len() > 8 { break text.pop(); }
        text.push(if a == b { '=' } else { '.' });
    };
    text + &tail.map_or(String::new(), |c| if c == '.' { "!".into() } else { c.to_string() })
});

equals_plain!(linked_list(n: u32) -> Vec<u32>, (0,), (3,), (6,); {
    struct Node { value: u32, next: Option<Box<Node>> }
    let mut head: Option<Box<Node>> = None;
    for value in 0..n {
        if value != 4 {
            head = Some(Box::new(Node { value, next: head.take() }));
        }
    }
    let mut out = vec![];
    let mut cursor = &mut head;
    while let Some(node) = cursor {
        if node.value > 1 {
            node.value *= 10;
        }
        out.push(node.value);
        cursor = &mut node.next;
    }
    out
});

equals_plain!(swaps_and_slices(n: usize) -> Vec<usize>, (1,), (5,), (8,); {
    let mut v: Vec<usize> = (0..n).map(|i| (i * 7 + 3) % n).collect();
    let mut sorted = false;
    while !sorted {
        sorted = true;
        for i in 1..v.len() {
            let (left, right) = v.split_at_mut(i);
            if left[i - 1] > right[0] {
                std::mem::swap(&mut left[i - 1], &mut right[0]);
                sorted = false;
            }
        }
    }
    if let [first, .., last] = &mut v[..] && *first < *last {
        (*first, *last) = (*last, *first);
    }
    v
});

/// A trait with graph functions as methods.
trait Area {
    fn area(&self) -> f64;
    #[graph]
    fn larger<'a>(&'a self, other: &'a Self) -> &'a Self
    where
        Self: Sized,
    {
        if self.area() > other.area() { self } else { other }
    }
}
impl Area for (f64, f64) {
    #[graph]
    fn area(&self) -> f64 {
        if self.0 < 0.0 { 0.0 } else { self.0 * self.1 }
    }
}

#[test]
fn methods_of_traits() {
    assert_eq!((1.0, 2.0).larger(&(3.0, 1.0)), &(3.0, 1.0));
    assert_eq!((-1.0, 2.0).area(), 0.0);
}

#[graph]
fn counting(limit: u32) -> impl Iterator<Item = u32> + use<> {
    let mut n = 0;
    std::iter::from_fn(move || {
        n += 1;
        if n > limit {
            return None;
        }
        Some(if n % 2 == 0 { n } else { 0 })
    })
}

#[test]
fn closures_that_leave() {
    assert_eq!(counting(4).collect::<Vec<_>>(), [0, 2, 0, 4]);
}

#[graph]
fn conditions(o: Option<i32>, s: &str, r: &i32) -> i32 {
    let mut n = 0;
    if o == Some(3) {
        n += 1;
    }
    if s == "x" || s == String::from("y") {
        n += 2;
    }
    if r > &3 {
        n += 4;
    }
    if matches!(o, Some(k) if k > 2) {
        n += 8;
    }
    let small = 3u8;
    if small as i32 == *r {
        n += 16;
    }
    while let Some(k) = o {
        if k == 0 || n > 100 {
            break;
        }
        n += 100;
    }
    if let Some(k) = o
        && k > 100
    {
        n = 0
    } else if n % 2 == 0 {
        n += 1000
    }
    n
}

#[test]
fn comparisons_of_host_values() {
    assert_eq!(conditions(Some(3), "x", &4), 115);
    assert_eq!(conditions(None, "y", &3), 1018);
    assert_eq!(conditions(Some(101), "", &0), 0);
}

/// A receiver is borrowed before the arguments, which may read it.
#[test]
fn arguments_look_at_the_receiver() {
    struct Acc {
        items: Vec<i32>,
    }
    impl Acc {
        fn add(&mut self, a: i32, b: i32) -> &mut Acc {
            self.items.push(a + b);
            self
        }
        fn read(&self, i: usize) -> i32 {
            self.items[i]
        }
        fn count(&self) -> i32 {
            self.items.len() as i32
        }
    }
    fn both(acc: &Acc, x: i32) -> i32 {
        acc.count() * 100 + x
    }
    macro_rules! function {
        ($(#[$attribute:meta])* $name:ident) => {
            $(#[$attribute])*
            fn $name(x: i32) -> i32 {
                let mut acc = Acc { items: vec![] };
                let mut list = [1, 2, 3];
                for i in 0..4i32 {
                    acc.add(acc.count(), if i == 0 { x } else { acc.read(0) }).add(1, 2);
                    acc.items.push(if acc.read(0) > 3 { acc.count() } else { acc.items[0] });
                    list[(i % 3) as usize] += if x > 2 { list[0] } else { list[1] };
                    list[0] = if x > 2 { list[1] } else { list[2] };
                }
                let n = both(&acc, if x > 1 { acc.read(2) } else { 3 });
                n + acc.items.iter().sum::<i32>() * 7 + list[0] + if acc.count() == if x > 0 { acc.read(1) } else { 12 } { 1 } else { 2 }
            }
        };
    }
    function!(
        #[graph]
        staged
    );
    function!(plain);
    for x in -2..8 {
        assert_eq!(staged(x), plain(x), "at {x}");
    }
}
