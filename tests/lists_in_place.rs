//! Lists that are used once are updated in place: no plan here copies such a list, so the time of a
//! loop is linear in its trip count.

use anabranch::Arguments;
use anabranch::dsl::function::{CallArgs, GraphFn};
use anabranch::prelude::*;

type S = Tensor<f64>;

/// Returns the number of copies of lists and stacks in the plan of a function and in its loops.
#[track_caller]
fn copies<Args, F: GraphFn<Args>>(f: F, args: impl CallArgs<Args>) -> (usize, usize) {
    let signature = Arguments::of(args).signature();
    let session = Session::new().expect("a session on the CPU");
    let plan = session.function(f).and_then(|f| f.explain(&signature)).unwrap_or_else(|e| panic!("{e}"));
    assert!(plan.contains(" of s"), "there is a list in the plan\n{plan}");
    // Instructions begin with their number; a loop ends with a jump back.
    let code: Vec<(usize, &str)> = plan
        .lines()
        .filter_map(|line| line.trim_start().split_once(' ').and_then(|(n, rest)| Some((n.parse().ok()?, rest))))
        .collect();
    let jump = |&(at, text): &(usize, &str)| {
        let to: usize = text.rsplit_once("jump ").and_then(|(_, to)| to.trim().parse().ok())?;
        (to < at).then_some(to..at)
    };
    let loops: Vec<_> = code.iter().filter_map(jump).collect();
    let copies = code.iter().filter(|(_, text)| text.contains("= copy s"));
    let in_loops = copies.clone().filter(|(at, _)| loops.iter().any(|l| l.contains(at))).count();
    if in_loops > 0 {
        println!("{plan}");
    }
    (copies.count(), in_loops)
}

#[test]
fn a_list_that_is_used_again_after_it_was_changed_is_copied() {
    #[graph]
    fn f(x: S) -> (S, S) {
        let mut a = List::new(());
        let b = a;
        a.push(x);
        (a.stack(), b.stack())
    }
    assert_eq!(copies(f, 1.0), (1, 0));
}

#[test]
fn a_list_that_is_forked_in_each_iteration_is_copied_there() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S) {
        let mut list = List::new(());
        let mut other = List::new(());
        let mut i = scalar(0);
        while i < n {
            list.push(x);
            other = list;
            other.push(x);
            i += 1;
        }
        (list.stack(), other.stack())
    }
    assert_eq!(copies(f, (1.0, 4)).1, 1);
}

#[test]
fn a_loop_that_pushes() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S) {
        let mut list = List::new(());
        let mut i = scalar(0);
        while i < n {
            list.push((x * i.cast::<f64>()).tanh());
            i += 1;
        }
        let y = list.stack().sum();
        (y, gradients(y, x))
    }
    assert_eq!(copies(f, (2.0, 4)), (0, 0));
}

#[test]
fn a_loop_over_the_elements_of_a_tensor() {
    #[graph]
    fn f(x: S, w: S) -> (S, S, S) {
        let rows = List::unstack(x);
        let mut h = zeros([2]);
        let mut i = scalar(0);
        while i < 3 {
            h = (h * w + rows.read(i)).tanh();
            i += 1;
        }
        let y = h.sum();
        let (dx, dw) = gradients(y, (x, w));
        (dx, dw, gradients((dx * dx).sum(), w))
    }
    // Two loops read the saved values of the forward loop, once each.
    assert_eq!(copies(f, ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0.1, 0.2])), (2, 0));
}

#[test]
fn a_recurrence_through_the_list() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S) {
        let mut list = List::new(());
        list.push(x);
        let mut i = scalar(0);
        while i < n {
            list.push((list.read(i) * x).tanh());
            i += 1;
        }
        let y = list.read(n);
        (y, gradients(y, x))
    }
    assert_eq!(copies(f, (2.0, 4)), (0, 0));
}

#[test]
fn a_branch_in_a_loop_that_pushes_or_reads() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S) {
        let xs = List::unstack(x);
        let mut list = List::new(());
        let mut sum = scalar(0.0);
        let mut i = scalar(0);
        while i < n {
            if sum < 5.0 {
                list.push((xs.read(i) * sum).tanh());
            } else {
                sum -= xs.read(0);
            }
            if i > 2 {
                sum += xs.read(1);
            }
            i += 1;
        }
        let y = list.stack().sum() + sum;
        (y, gradients(y, x))
    }
    assert_eq!(copies(f, ([2.0, 3.0, 4.0], 4)), (0, 0));
}

#[test]
fn writes_in_a_nested_loop() {
    #[graph]
    fn f(x: S, n: Tensor<i32>) -> (S, S) {
        let mut list = List::with_len(n * n, ());
        let mut i = scalar(0);
        while i < n {
            let mut j = scalar(0);
            while j < n {
                list.write(i * n + j, x * (i + j).cast::<f64>());
                j += 1;
            }
            i += 1;
        }
        let y = list.stack().tanh().sum();
        (y, gradients(y, x))
    }
    assert_eq!(copies(f, (2.0, 4)), (0, 0));
}

#[test]
fn a_for_over_a_tensor() {
    #[graph]
    fn f(x: S, w: S) -> (S, S) {
        let mut h = zeros([2]);
        for row in x {
            h = (h * w + row).tanh();
        }
        gradients(h.sum(), (x, w))
    }
    assert_eq!(copies(f, ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0.1, 0.2])), (0, 0));
}
