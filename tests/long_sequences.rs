//! Long chains and long sequences of jumps: they compute the same as plain Rust, nest no deeper
//! than a thread's stack allows.
//!
//! The file is a program of its own, because compiling it takes about 40 s of CPU time in a dev
//! build, which an edit of any other test would cost as well.

#![allow(unused_assignments, reason = "what nobody reads is a case, too")]

use anabranch::Array;
use anabranch::prelude::*;

#[macro_use]
#[allow(dead_code, reason = "this program needs only a part of it")]
mod support;

/// Calls a macro with the numbers below 24.
macro_rules! twenty_four {
    ($then:ident $($args:tt)*) => {
        $then! { $($args)* [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23] }
    };
}

/// Calls a macro with the numbers below 300.
macro_rules! three_hundred {
    ($then:ident $($args:tt)*) => {
        $then! { $($args)* [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34
            35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66
            67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98
            99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122
            123 124 125 126 127 128 129 130 131 132 133 134 135 136 137 138 139 140 141 142 143 144 145 146
            147 148 149 150 151 152 153 154 155 156 157 158 159 160 161 162 163 164 165 166 167 168 169 170
            171 172 173 174 175 176 177 178 179 180 181 182 183 184 185 186 187 188 189 190 191 192 193 194
            195 196 197 198 199 200 201 202 203 204 205 206 207 208 209 210 211 212 213 214 215 216 217 218
            219 220 221 222 223 224 225 226 227 228 229 230 231 232 233 234 235 236 237 238 239 240 241 242
            243 244 245 246 247 248 249 250 251 252 253 254 255 256 257 258 259 260 261 262 263 264 265 266
            267 268 269 270 271 272 273 274 275 276 277 278 279 280 281 282 283 284 285 286 287 288 289 290
            291 292 293 294 295 296 297 298 299
        ] }
    };
}

/// Calls a macro with the numbers below 1000.
macro_rules! thousand {
    ($then:ident $($args:tt)*) => {
        $then! { $($args)* [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34
            35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66
            67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98
            99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122
            123 124 125 126 127 128 129 130 131 132 133 134 135 136 137 138 139 140 141 142 143 144 145 146
            147 148 149 150 151 152 153 154 155 156 157 158 159 160 161 162 163 164 165 166 167 168 169 170
            171 172 173 174 175 176 177 178 179 180 181 182 183 184 185 186 187 188 189 190 191 192 193 194
            195 196 197 198 199 200 201 202 203 204 205 206 207 208 209 210 211 212 213 214 215 216 217 218
            219 220 221 222 223 224 225 226 227 228 229 230 231 232 233 234 235 236 237 238 239 240 241 242
            243 244 245 246 247 248 249 250 251 252 253 254 255 256 257 258 259 260 261 262 263 264 265 266
            267 268 269 270 271 272 273 274 275 276 277 278 279 280 281 282 283 284 285 286 287 288 289 290
            291 292 293 294 295 296 297 298 299 300 301 302 303 304 305 306 307 308 309 310 311 312 313 314
            315 316 317 318 319 320 321 322 323 324 325 326 327 328 329 330 331 332 333 334 335 336 337 338
            339 340 341 342 343 344 345 346 347 348 349 350 351 352 353 354 355 356 357 358 359 360 361 362
            363 364 365 366 367 368 369 370 371 372 373 374 375 376 377 378 379 380 381 382 383 384 385 386
            387 388 389 390 391 392 393 394 395 396 397 398 399 400 401 402 403 404 405 406 407 408 409 410
            411 412 413 414 415 416 417 418 419 420 421 422 423 424 425 426 427 428 429 430 431 432 433 434
            435 436 437 438 439 440 441 442 443 444 445 446 447 448 449 450 451 452 453 454 455 456 457 458
            459 460 461 462 463 464 465 466 467 468 469 470 471 472 473 474 475 476 477 478 479 480 481 482
            483 484 485 486 487 488 489 490 491 492 493 494 495 496 497 498 499 500 501 502 503 504 505 506
            507 508 509 510 511 512 513 514 515 516 517 518 519 520 521 522 523 524 525 526 527 528 529 530
            531 532 533 534 535 536 537 538 539 540 541 542 543 544 545 546 547 548 549 550 551 552 553 554
            555 556 557 558 559 560 561 562 563 564 565 566 567 568 569 570 571 572 573 574 575 576 577 578
            579 580 581 582 583 584 585 586 587 588 589 590 591 592 593 594 595 596 597 598 599 600 601 602
            603 604 605 606 607 608 609 610 611 612 613 614 615 616 617 618 619 620 621 622 623 624 625 626
            627 628 629 630 631 632 633 634 635 636 637 638 639 640 641 642 643 644 645 646 647 648 649 650
            651 652 653 654 655 656 657 658 659 660 661 662 663 664 665 666 667 668 669 670 671 672 673 674
            675 676 677 678 679 680 681 682 683 684 685 686 687 688 689 690 691 692 693 694 695 696 697 698
            699 700 701 702 703 704 705 706 707 708 709 710 711 712 713 714 715 716 717 718 719 720 721 722
            723 724 725 726 727 728 729 730 731 732 733 734 735 736 737 738 739 740 741 742 743 744 745 746
            747 748 749 750 751 752 753 754 755 756 757 758 759 760 761 762 763 764 765 766 767 768 769 770
            771 772 773 774 775 776 777 778 779 780 781 782 783 784 785 786 787 788 789 790 791 792 793 794
            795 796 797 798 799 800 801 802 803 804 805 806 807 808 809 810 811 812 813 814 815 816 817 818
            819 820 821 822 823 824 825 826 827 828 829 830 831 832 833 834 835 836 837 838 839 840 841 842
            843 844 845 846 847 848 849 850 851 852 853 854 855 856 857 858 859 860 861 862 863 864 865 866
            867 868 869 870 871 872 873 874 875 876 877 878 879 880 881 882 883 884 885 886 887 888 889 890
            891 892 893 894 895 896 897 898 899 900 901 902 903 904 905 906 907 908 909 910 911 912 913 914
            915 916 917 918 919 920 921 922 923 924 925 926 927 928 929 930 931 932 933 934 935 936 937 938
            939 940 941 942 943 944 945 946 947 948 949 950 951 952 953 954 955 956 957 958 959 960 961 962
            963 964 965 966 967 968 969 970 971 972 973 974 975 976 977 978 979 980 981 982 983 984 985 986
            987 988 989 990 991 992 993 994 995 996 997 998 999
        ] }
    };
}

macro_rules! chains {
    (($(#[$attribute:meta])*) $($k:tt)*) => {
        $(#[$attribute])*
        pub fn of_match(x: Int) -> Int {
            match x {
                $($k => x * 2 + $k,)*
                _ => x - 1,
            }
        }
        $(#[$attribute])*
        pub fn of_else_if(x: Int) -> Int {
            let mut t = int(7);
            $(if x == $k { t += x * $k; } else)* if x == -5 { t = int(3); }
            t
        }
        /// Conditions that compare no variable with a number are tested one after the other.
        $(#[$attribute])*
        pub fn of_computed_conditions(x: Int) -> Int {
            let y = x - 7;
            let mut t = int(7);
            $(if x * 3 + y == $k { t += x + $k; } else)* { t = y; }
            t
        }
    };
}

mod long {
    thousand! { agree modules [staged plain] of chains }
}

macro_rules! sequences {
    (($(#[$attribute:meta])*) $($k:tt)*) => {
        $(#[$attribute])*
        pub fn of_returns(x: Int) -> Int {
            $(if x == $k { return x * 2 + $k; })*
            int(-1) + x
        }
        $(#[$attribute])*
        pub fn of_continues(n: Int) -> Int {
            let (mut i, mut t) = (n - 4, int(0));
            while i < n {
                i += 1;
                $(if i == $k { t += 2 * $k; continue; })*
                t += 1000;
            }
            t
        }
    };
}

mod sequence {
    three_hundred! { agree modules [staged plain] of sequences }
}

macro_rules! loops_that_arms_end {
    (($(#[$attribute:meta])*) $($k:tt)*) => {
        $(#[$attribute])*
        pub fn by_break(x: Int) -> Int {
            let (mut i, mut t) = (x, int(0));
            loop {
                i += 1;
                match i {
                    $($k => { t += $k * 2; break; })*
                    _ => t += 1,
                }
                t += 100;
                if t > 1000 { break; }
            }
            t + i
        }
        /// The macro must assume that each condition has a type of its own.
        $(#[$attribute])*
        pub fn by_break_value(x: Int) -> Int {
            let mut i = x;
            let found = loop {
                i += 1;
                $(if i + $k == 290 + x { break i * 2 + $k; } else)* { i += 1; }
            };
            found + i
        }
    };
}

mod ended_loop {
    three_hundred! { agree modules [staged plain] of loops_that_arms_end }
}

macro_rules! kinds {
    (($(#[$attribute:meta])*) $($k:tt)*) => {
        /// No condition is evaluated twice, or after one that holds.
        $(#[$attribute])*
        pub fn changing_conditions(x: Int) -> Int {
            let (mut n, mut t) = (x, int(0));
            $(
                if { t += 1; n -= $k; n < 0 } {
                    t += $k * 100;
                } else
            )* {
                t = -t;
            }
            t * 1000 + n
        }
        $(#[$attribute])*
        pub fn values(x: Int) -> Int {
            let t = match x {
                $(k @ ($k | -$k) if k % 3 != 1 => k * $k + 1,)*
                $($k => {
                    let y = x + 3;
                    if y % 2 == 0 { y } else { y * 5 }
                })*
                k => k,
            };
            let y;
            $(if t == $k + 2 { y = int($k); } else)* { y = t + 3; }
            t * 1000 + y
        }
        $(#[$attribute])*
        pub fn arms_that_jump(n: Int) -> Int {
            let (mut i, mut t) = (int(0), int(0));
            while i < n {
                i += 1;
                $(
                    if i % 50 == $k {
                        if $k % 4 == 1 { t += 1; continue; }
                        if i > 60 && $k == 20 { break; }
                        if t > 5000 { return t; }
                        t += $k;
                    } else
                )* {
                    t += 2;
                }
                t += 100;
            }
            t
        }
        $(#[$attribute])*
        pub fn continues(n: Int) -> Int {
            let (mut i, mut t) = (int(0), int(0));
            while i < n {
                i += 1;
                $(if i % 45 == $k { t += $k; continue; })*
                t += 1000;
            }
            t
        }
        $(#[$attribute])*
        pub fn in_inner_loops(n: Int) -> Int {
            let (mut i, mut t) = (int(0), int(0));
            'outer: while i < n {
                i += 1;
                let mut j = int(0);
                while j < 3 {
                    j += 1;
                    let s = i * 7 + j;
                    $(
                        if s % 97 == 2 * $k { t += $k; continue; }
                        if s % 89 == 3 * $k { t += 2 * $k; continue 'outer; }
                        let u = s + t;
                        if u % 101 == $k + 60 { t += 1; break; }
                        if u == 5000 + $k { break 'outer; }
                        if u == 6000 + 3 * $k { return -t; }
                    )*
                    t += 10;
                }
            }
            t
        }
        $(#[$attribute])*
        pub fn break_values(x: Int) -> Int {
            let mut i = x;
            let found = loop {
                i += 1;
                $(if i % 60 == $k { break i * 2 + $k; })*
                if i > 200 { break i; }
            };
            found + i
        }
        $(#[$attribute])*
        pub fn match_with_break_values(x: Int) -> Int {
            let i = x;
            let found = loop {
                match i {
                    $($k => break i * 2 + $k,)*
                    _ => break i - 1,
                }
            };
            found + i
        }
        $(#[$attribute])*
        pub fn match_in_for(n: Int) -> Int {
            let mut t = int(0);
            for i in up_to(n) {
                match i * 3 - 20 {
                    $($k => {
                        t += $k;
                        if $k % 3 == 0 { break; }
                        if $k % 3 == 1 { continue; }
                        return t * 2;
                    })*
                    j if j > 50 => return t,
                    _ => t += 7,
                }
                t += 100;
            }
            t
        }
        $(#[$attribute])*
        pub fn arms_that_all_leave(n: Int) -> Int {
            let mut t = int(0);
            let mut i = n;
            while i < 20 {
                i += 1;
                match i {
                    $($k => {
                        t += $k;
                        if $k == 5 { break }
                        if $k == 12 { return t }
                        continue
                    })*
                    _ => break,
                }
            }
            t + i
        }
        $(#[$attribute])*
        pub fn variables_between(x: Int) -> Int {
            let first = x * 3;
            $(
                let x = x + 1;
                let y = x * $k;
                if y == first { return x * 2 + y; }
                let mut z = y - first;
                if z == 4 { z += 1; return z; }
                z += x;
            )*
            x + y + z + first
        }
    };
}

mod of_all_kinds {
    twenty_four! { agree modules [staged plain host] of kinds }
}

/// Runs a function on a thread with a small stack, as a server may have.
fn on_small_stack<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(f).expect("a thread");
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[test]
fn conditions_of_a_chain_are_tested_in_order_and_until_one_holds() {
    agree!(of_all_kinds::changing_conditions as plain, host over [-4, 0, 1, 5, 60, 300, 779, 780, 2000]);
}

#[test]
fn chains_have_values() {
    agree!(of_all_kinds::values as plain, host over -45..45);
}

#[test]
fn arms_of_a_long_chain_may_jump() {
    agree!(of_all_kinds::arms_that_jump as plain, host over [0, 1, 5, 29, 49, 70, 90, 200]);
}

#[test]
fn a_loop_may_have_many_jumps() {
    agree!(of_all_kinds::continues as plain, host over [0, 1, 39, 40, 44, 45, 100]);
    agree!(of_all_kinds::in_inner_loops as plain, host over [0, 1, 2, 9, 30]);
    agree!(of_all_kinds::break_values as plain, host over [-30, 0, 38, 39, 40, 58, 59, 190, 300]);
}

#[test]
fn arms_of_a_match_may_end_a_loop() {
    agree!(of_all_kinds::match_with_break_values as plain, host over [-1, 0, 11, 23, 24]);
    agree!(of_all_kinds::match_in_for as plain, host over [0, 1, 7, 8, 12, 30]);
    agree!(of_all_kinds::arms_that_all_leave as plain, host over [-9, -1, 0, 4, 6, 12, 15, 19, 20, 40]);
}

#[test]
fn three_hundred_arms_may_end_a_loop() {
    on_small_stack(|| agree!(ended_loop::by_break as plain over [-20, -1, 0, 150, 298, 299]));
    on_small_stack(|| agree!(ended_loop::by_break_value as plain over [-3, 0, 200, 500]));
}

#[test]
fn variables_may_stand_between_jumps() {
    agree!(of_all_kinds::variables_between as plain, host over -10..60);
}

#[test]
fn a_thousand_arms_run_on_a_small_stack() {
    on_small_stack(|| agree!(long::of_match as plain over [-1, 0, 1, 500, 998, 999, 1000]));
}

#[test]
fn a_chain_of_a_thousand_runs_on_a_small_stack() {
    on_small_stack(|| agree!(long::of_else_if as plain over [-5, 0, 1, 500, 999, 1000]));
    // The arms of 1, 497 and 997 run for 2, 126 and 251, the last arm for all others.
    on_small_stack(|| agree!(long::of_computed_conditions as plain over [-5, 1, 2, 126, 251, 252, 1000]));
}

#[test]
fn three_hundred_early_exits_run_on_a_small_stack() {
    on_small_stack(|| agree!(sequence::of_returns as plain over [-1, 0, 150, 299, 300]));
    on_small_stack(|| agree!(sequence::of_continues as plain over [-1, 0, 2, 150, 299, 301, 304]));
}

fn cast(k: i32) -> f32 {
    k as f32
}

mod gradient {
    use super::{Tensor, cast};
    use anabranch::prelude::graph;
    macro_rules! functions {
        ([$($k:tt)*]) => {
            #[graph]
            pub fn of_arms(k: Tensor<i32>, x: Tensor<f32>) -> Tensor<f32> {
                match k {
                    $($k => x * x * cast($k),)*
                    _ => x,
                }
            }
            #[graph]
            pub fn of_returns(k: Tensor<i32>, x: Tensor<f32>) -> Tensor<f32> {
                $(if k == $k { return x * x * cast($k); })*
                x
            }
        };
    }
    twenty_four! { functions }
}

#[test]
fn long_chains_and_sequences_have_gradients() {
    on_small_stack(|| {
        for f in [gradient::of_arms, gradient::of_returns] {
            let of = move |k: Tensor<i32>, x: Tensor<f32>| {
                let y = f(k, x);
                (y, gradients(y, x))
            };
            let compiled = Session::new().expect("a session").function(of).expect("a function");
            for k in [-1, 0, 7, 23, 24] {
                let (value, gradient) =
                    if (0..24).contains(&k) { (k as f32 * 2.25, k as f32 * 3.0) } else { (1.5, 1.0) };
                let expected = (value, gradient);
                let items = |(y, dy): (Array<f32>, Array<f32>)| (y.item(), dy.item());
                let interpreted = eval_with(of, (k, 1.5)).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(items(interpreted), expected, "interpreted, {k}");
                assert_eq!(items(compiled.call((k, 1.5)).unwrap_or_else(|e| panic!("{e}"))), expected, "compiled, {k}");
            }
        }
    });
}
