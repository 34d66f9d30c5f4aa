//! Forms of Rust that are rare in models, on tensors, on host values, and in plain Rust.

macro_rules! forms {
    (($(#[$attribute:meta])*)) => {
        #[derive(anabranch::Carry, Clone, Copy)]
        pub struct Cell<T> {
            h: T,
        }

        #[derive(anabranch::Carry, Clone, Copy)]
        pub struct Cells<T> {
            first: Cell<T>,
            second: Cell<T>,
        }

        impl Cell<Int> {
            /// Has the name of a method that modifies nothing in other types.
            fn clamp(&mut self, x: Int) -> Int {
                self.h += x;
                self.h
            }
        }

        impl Cells<Int> {
            fn new(x: Int) -> Cells<Int> {
                Cells { first: Cell { h: x }, second: Cell { h: x + 1 } }
            }
            fn first(&mut self) -> &mut Cell<Int> {
                &mut self.first
            }
            fn both(&mut self) -> (&mut Cell<Int>, &mut Cell<Int>) {
                (&mut self.first, &mut self.second)
            }
            fn sum(&self) -> Int {
                self.first.h * 1000 + self.second.h
            }
            fn bump(&mut self) -> Int {
                self.first.h += 1;
                self.first.h
            }
        }

        $(#[$attribute])*
        fn return_before_field(cells: &mut Cells<Int>, x: Int) {
            let cell = cells.first();
            if x > 0 {
                return;
            }
            cell.h = x * 10;
        }
        $(#[$attribute])*
        fn field_in_each_arm(cells: &mut Cells<Int>, x: Int) {
            let (a, b) = cells.both();
            if x > 0 {
                a.h = x * 10;
            } else {
                b.h = x * 20;
            }
        }
        $(#[$attribute])*
        fn rest_after_loop(cells: &mut Cells<Int>, x: Int) {
            let cell = cells.first();
            let mut y = x;
            while y < 10 {
                if y == 4 {
                    return;
                }
                y += 2;
            }
            cell.h = y;
        }
        pub fn references_from_methods(x: Int) -> Int {
            let mut cells = Cells::new(x);
            return_before_field(&mut cells, x);
            field_in_each_arm(&mut cells, x + 1);
            rest_after_loop(&mut cells, x + 2);
            cells.sum()
        }
        $(#[$attribute])*
        pub fn continue_before_field(x: Int) -> Int {
            let mut cells = Cells::new(x);
            for i in up_to(int(4)) {
                let cell = cells.first();
                if cell.h > 4 {
                    continue;
                }
                cell.h = cell.h + i + x;
            }
            cells.sum()
        }
        $(#[$attribute])*
        pub fn left_side_before_change(x: Int) -> Int {
            let mut cells = Cells::new(x);
            let mut y = int(0);
            if cells.first.h < (if x > 0 { cells.bump() } else { x }) {
                y += 1;
            }
            if cells.second.h == { if x > 2 { cells.second.h *= 2; } x + 1 } {
                y += 2;
            }
            y * 1000 + cells.sum()
        }
        $(#[$attribute])*
        pub fn receiver_before_change(x: Int) -> Int {
            let mut cells = Cells::new(x);
            let y = cells.first.h.clamp(x - 100, if x > 0 { cells.bump() } else { x });
            let z = cells.second.clamp(if x > 2 { cells.sum() } else { x });
            y * 100 + z * 10 + cells.sum()
        }
        /// The number of the variable for the assigned value is that of the last `if`, too.
        $(#[$attribute])*
        pub fn assigned_value_with_a_return(x: Int) -> Int {
            let k = 2;
            let near = (0..3).contains(&k);
            let mut y = x;
            y = if x > 1 {
                if x > 4 {
                    return x;
                }
                y + 1
            } else {
                y
            };
            if near { y * 2 } else { y }
        }
        $(#[$attribute])*
        pub fn raw_identifier(x: Int) -> Int {
            let r#type;
            if x > 0 {
                r#type = x * 2;
            } else {
                r#type = x - 1;
            }
            r#type
        }
        $(#[$attribute])*
        pub fn arms_that_panic(x: Int) -> Int {
            let y;
            if x > -100 {
                y = x * 2;
            } else {
                panic!("too small");
            }
            let z;
            match x {
                0 => z = y + 3,
                -100..=100 => z = y + 1,
                _ => unreachable!(),
            }
            let n;
            if 2 > 1 {
                n = 3;
            } else {
                unreachable!()
            }
            y * 100 + z + n
        }
        $(#[$attribute])*
        pub fn asserted_ranges(x: Int) -> Int {
            assert!((-100..=100).contains(&x));
            assert!(matches!(x, -100..=100) && !matches!(x, 101 | 102));
            x
        }
        $(#[$attribute])*
        pub fn coerced_in_arms(x: Int) -> Int {
            let kind = 1;
            let act: Box<dyn Fn(Int) -> Int>;
            if kind == 1 {
                act = Box::new(|v| v * 2);
            } else {
                act = Box::new(|v| v + 1);
            }
            act(x)
        }
    };
}

mod form {
    agree!(modules [staged plain host] of forms []);
}

#[test]
fn references_from_methods_are_carried_at_the_end_of_a_body() {
    agree!(form::references_from_methods as plain, host over -12..12);
    agree!(form::continue_before_field as plain, host over -3..8);
}

#[test]
fn operands_are_copied_before_later_operands_change_them() {
    agree!(form::left_side_before_change as plain, host over -3..8);
    agree!(form::receiver_before_change as plain, host over -3..8);
}

#[test]
fn helper_variables_have_different_names() {
    agree!(form::assigned_value_with_a_return as plain, host over -3..8);
    agree!(form::raw_identifier as plain, host over -3..4);
}

#[test]
fn arms_that_panic_need_not_initialize() {
    agree!(form::arms_that_panic as plain, host over -3..8);
}

#[test]
fn tests_of_numbers_are_asserted() {
    agree!(form::asserted_ranges as plain, host over -3..8);
    let error = crate::support::error_of(form::staged::asserted_ranges, 101);
    assert!(error.message.contains("contains"), "{error}");
}

#[test]
fn values_of_arms_are_coerced_to_the_declared_type() {
    agree!(form::coerced_in_arms as plain, host over -3..8);
}
