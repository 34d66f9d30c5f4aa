//! What native code calls.

use crate::cpu::stack::Stack;

/// Calls a function of the interpreter on one register.
///
/// # Safety
/// `f` is a `fn(u64) -> u64`.
pub(super) unsafe extern "C" fn unary(f: *const (), a: u64) -> u64 {
    // SAFETY: the caller's.
    let f = unsafe { std::mem::transmute::<*const (), fn(u64) -> u64>(f) };
    f(a)
}

/// Calls a function of the interpreter on two registers.
///
/// # Safety
/// `f` is a `fn(u64, u64) -> u64`.
pub(super) unsafe extern "C" fn binary(f: *const (), a: u64, b: u64) -> u64 {
    // SAFETY: the caller's.
    let f = unsafe { std::mem::transmute::<*const (), fn(u64, u64) -> u64>(f) };
    f(a, b)
}

/// Pushes a number; gives whether there was memory for it.
///
/// # Safety
/// `stack` is a stack of numbers, and nothing else uses it.
pub(super) unsafe extern "C" fn push(stack: *mut Stack, value: u64) -> u8 {
    // SAFETY: the caller's.
    u8::from(unsafe { &mut *stack }.push_number(value).is_ok())
}

/// Pops a number into `to`; gives whether there was one.
///
/// # Safety
/// `stack` is a stack of numbers, and nothing else uses it; `to` can be written.
pub(super) unsafe extern "C" fn pop(stack: *mut Stack, to: *mut u64) -> u8 {
    // SAFETY: the caller's.
    let (stack, to) = unsafe { (&mut *stack, &mut *to) };
    match stack.pop_number() {
        Some(value) => {
            *to = value;
            1
        }
        None => 0,
    }
}

/// Empties a stack.
///
/// # Safety
/// Nothing else uses the stack.
pub(super) unsafe extern "C" fn clear(stack: *mut Stack) {
    // SAFETY: the caller's.
    unsafe { &mut *stack }.clear();
}

/// Makes a stack one of zeros without end.
///
/// # Safety
/// Nothing else uses the stack.
pub(super) unsafe extern "C" fn zeros(stack: *mut Stack) {
    // SAFETY: the caller's.
    unsafe { &mut *stack }.set_zeros();
}

/// Copies a stack, or takes its content; gives whether there was memory for the copy.
///
/// # Safety
/// The stacks are different, and nothing else uses them.
pub(super) unsafe extern "C" fn move_stack(dst: *mut Stack, src: *mut Stack, take: u8) -> u8 {
    // SAFETY: the caller's.
    let (dst, src) = unsafe { (&mut *dst, &mut *src) };
    if take == 0 {
        return u8::from(dst.copy_from(src).is_ok());
    }
    std::mem::swap(dst, src);
    1
}
