//! Functions that native code calls.
//!
//! On x86-64 they follow one calling convention on all systems.

use crate::cpu::memory::stack::StackStorage;

/// Gives functions the calling convention of native code.
macro_rules! called {
    ($($(#[$attribute:meta])* pub(super) unsafe fn $name:ident($($parameters:tt)*) $(-> $result:ty)? $body:block)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            $(#[$attribute])*
            pub(super) unsafe extern "sysv64" fn $name($($parameters)*) $(-> $result)? $body

            #[cfg(not(target_arch = "x86_64"))]
            $(#[$attribute])*
            pub(super) unsafe extern "C" fn $name($($parameters)*) $(-> $result)? $body
        )*
    };
}

called! {
    /// Calls a function of the interpreter on one register.
    ///
    /// # Safety
    /// `f` must be a `fn(u64) -> u64`.
    pub(super) unsafe fn unary(f: *const (), a: u64) -> u64 {
        // SAFETY: guaranteed by the caller.
        let f = unsafe { std::mem::transmute::<*const (), fn(u64) -> u64>(f) };
        f(a)
    }

    /// Calls a function of the interpreter on two registers.
    ///
    /// # Safety
    /// `f` must be a `fn(u64, u64) -> u64`.
    pub(super) unsafe fn binary(f: *const (), a: u64, b: u64) -> u64 {
        // SAFETY: guaranteed by the caller.
        let f = unsafe { std::mem::transmute::<*const (), fn(u64, u64) -> u64>(f) };
        f(a, b)
    }

    /// Pushes a number. Returns 1, or 0 if there is no memory for it.
    ///
    /// # Safety
    /// `stack` must be a stack of numbers that nothing else accesses.
    pub(super) unsafe fn push(stack: *mut StackStorage, value: u64) -> u64 {
        // SAFETY: guaranteed by the caller.
        u64::from(unsafe { &mut *stack }.push_number(value).is_ok())
    }

    /// Pops a number into `to`. Returns 1, or 0 if the stack is empty.
    ///
    /// # Safety
    /// `stack` must be a stack of numbers that nothing else accesses, and `to` must be writable.
    pub(super) unsafe fn pop(stack: *mut StackStorage, to: *mut u64) -> u64 {
        // SAFETY: guaranteed by the caller.
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
    /// Nothing else may access the stack.
    pub(super) unsafe fn clear(stack: *mut StackStorage) {
        // SAFETY: guaranteed by the caller.
        unsafe { &mut *stack }.clear();
    }

    /// Sets a stack to infinitely many zeros.
    ///
    /// # Safety
    /// Nothing else may access the stack.
    pub(super) unsafe fn zeros(stack: *mut StackStorage) {
        // SAFETY: guaranteed by the caller.
        unsafe { &mut *stack }.set_zeros();
    }

    /// Copies a stack, or moves its content. Returns 1, or 0 if there is no memory for the copy.
    ///
    /// # Safety
    /// The stacks must be different, and nothing else may access them.
    pub(super) unsafe fn move_stack(dst: *mut StackStorage, src: *mut StackStorage, take: u64) -> u64 {
        // SAFETY: guaranteed by the caller.
        let (dst, src) = unsafe { (&mut *dst, &mut *src) };
        if take == 0 {
            return u64::from(dst.copy_from(src).is_ok());
        }
        std::mem::swap(dst, src);
        1
    }
}
