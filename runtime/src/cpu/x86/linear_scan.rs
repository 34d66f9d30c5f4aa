//! The choice of registers by a linear scan over live ranges without holes.
//!
//! If registers run out, the value with the least weight has none anywhere.
//!
//! M. Poletto and V. Sarkar, "Linear Scan Register Allocation", ACM TOPLAS 21(5), 1999.

/// The range in which a value is needed, both ends included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveInterval {
    /// The index of the value.
    pub(crate) value: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The cost of having no register.
    pub(crate) weight: f64,
    /// A value in whose register it should be.
    pub(crate) hint: Option<usize>,
}

/// Sets the registers of the values of intervals, which are sorted by their starts. Of the free
/// registers, the last one is taken first.
pub(crate) fn linear_scan<'a>(
    intervals: impl Iterator<Item = &'a LiveInterval>,
    mut free: Vec<u8>,
    registers: &mut [Option<u8>],
) {
    let mut active: Vec<(LiveInterval, u8)> = Vec::new();
    for &interval in intervals {
        active.retain(|&(other, register)| {
            let is_needed = other.end >= interval.start;
            if !is_needed {
                free.push(register);
            }
            is_needed
        });
        let hinted = interval.hint.and_then(|value| registers[value]).and_then(|r| free.iter().position(|&f| f == r));
        let register = match hinted {
            Some(at) => Some(free.remove(at)),
            None => free.pop(),
        };
        let register = register.or_else(|| {
            let (least, _) =
                active.iter().enumerate().min_by(|(_, (a, _)), (_, (b, _))| a.weight.total_cmp(&b.weight))?;
            if active[least].0.weight >= interval.weight {
                return None;
            }
            // The interval takes the register of another one.
            let (other, register) = active.swap_remove(least);
            registers[other.value] = None;
            Some(register)
        });
        registers[interval.value] = register;
        active.extend(register.map(|register| (interval, register)));
    }
}
