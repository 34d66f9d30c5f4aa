//! Properties of methods of the standard library and of anabranch.
//!
//! There is one table and one rule: the properties of a method follow from its name, and all of
//! them are in the row of that name. A method without a row may modify its receiver and return
//! anything.
//!
//! A name promises nothing about the types of users. Where a wrong guess would change a value, the
//! type decides instead: `dsl/src/staged/receiver.rs` finds out whether the receiver is of a known
//! type, and the emitted checks report a value that is not of the kind that its method returns.

use Property::*;

/// A property that the methods of one name share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    /// Modifies nothing in any type of the standard library or of anabranch.
    ///
    /// A `mut` variable of such a type is not carried just because it is the receiver. Names that
    /// some types use for methods that modify the receiver do not have this property.
    Keeps,
    /// Modifies nothing in the types that implement a trait, unless they have a method of their own
    /// that takes precedence. The trait is given by its name in `dsl/src/staged/receiver.rs`; it
    /// declares the method with `&self` and no arguments.
    KeepsByTrait(&'static str),
    /// Returns a `bool` for every type.
    Bool,
    /// Returns a host number. `len` does not, because the length of a list is a tensor.
    HostNumber,
    /// Returns a host iterator.
    Iterator,
    /// Returns a host iterator if the receiver is a host iterator.
    Adapter,
    /// Returns an iterator over mutable references to items of the receiver.
    LendsItems,
    /// Returns an iterator over some items of the receiver.
    SomeItems,
    /// Pairs each item of the receiver with its position.
    Numbered,
    /// Returns `Some` of a mutable reference to an item.
    LendsItem,
    /// Returns the contents of an option or result.
    Unwraps,
    /// Returns a mutable reference to the receiver, an iterator.
    Borrows,
    /// Modifies its receiver, in all types of the standard library and of anabranch that graph
    /// functions use.
    Modifies,
    /// Returns whether an item is in the receiver, which may be a range of numbers.
    RangeTest,
}

/// The table, sorted by name.
const METHODS: &[(&str, &[Property])] = &[
    ("abs", &[Keeps]),
    ("append", &[Modifies]),
    ("argmax", &[Keeps]),
    ("argmin", &[Keeps]),
    ("as_bytes", &[Keeps]),
    ("as_deref", &[Keeps]),
    ("as_mut", &[LendsItem]),
    ("as_ptr", &[Keeps]),
    ("as_ref", &[Keeps]),
    ("as_slice", &[Keeps]),
    ("as_str", &[Keeps]),
    ("binary_search", &[Keeps]),
    ("borrow", &[Keeps]),
    ("by_ref", &[Borrows]),
    ("bytes", &[Keeps, Iterator]),
    ("capacity", &[Keeps]),
    ("cast", &[Keeps]),
    ("ceil", &[Keeps]),
    ("chain", &[Iterator]),
    ("chars", &[Keeps, Iterator]),
    ("checked_add", &[Keeps]),
    ("checked_div", &[Keeps]),
    ("checked_mul", &[Keeps]),
    ("checked_sub", &[Keeps]),
    ("chunks", &[Keeps, Iterator]),
    ("chunks_exact", &[Keeps, Iterator]),
    ("chunks_exact_mut", &[LendsItems]),
    ("chunks_mut", &[LendsItems]),
    ("clamp", &[Keeps]),
    ("clear", &[Modifies]),
    ("clone", &[KeepsByTrait("CloneMethod")]),
    ("cloned", &[Keeps, Iterator]),
    ("cmp", &[Keeps]),
    ("concat", &[Keeps]),
    ("contains", &[Keeps, RangeTest]),
    ("contains_key", &[Keeps, Bool]),
    ("copied", &[Keeps, Iterator]),
    ("cos", &[Keeps]),
    ("count_ones", &[Keeps]),
    ("deref", &[Keeps]),
    ("dim", &[Keeps]),
    ("div_ceil", &[Keeps]),
    ("drain", &[Iterator, Modifies]),
    ("dtype", &[Keeps]),
    ("ends_with", &[Keeps, Bool]),
    ("enumerate", &[Keeps, Iterator, Numbered]),
    ("eq", &[Keeps]),
    ("exp", &[Keeps]),
    ("expect", &[Unwraps]),
    ("extend", &[Modifies]),
    ("filter", &[Iterator]),
    ("first", &[Keeps]),
    ("first_mut", &[LendsItem]),
    ("floor", &[Keeps]),
    ("fract", &[Keeps]),
    ("ge", &[Keeps]),
    ("get", &[Keeps]),
    ("get_mut", &[LendsItem]),
    ("gt", &[Keeps]),
    ("hash", &[Keeps]),
    ("insert", &[Modifies]),
    ("into_iter", &[Iterator]),
    ("is_alphabetic", &[Keeps]),
    ("is_empty", &[Keeps, Bool]),
    ("is_err", &[Keeps, Bool]),
    ("is_finite", &[Keeps]),
    ("is_infinite", &[Keeps]),
    ("is_nan", &[Keeps]),
    ("is_negative", &[Keeps]),
    ("is_none", &[Keeps, Bool]),
    ("is_none_or", &[Keeps, Bool]),
    ("is_ok", &[Keeps, Bool]),
    ("is_ok_and", &[Keeps, Bool]),
    ("is_positive", &[Keeps]),
    ("is_power_of_two", &[Keeps]),
    ("is_some", &[Keeps, Bool]),
    ("is_some_and", &[Keeps, Bool]),
    ("iter", &[Keeps, Iterator]),
    ("iter_mut", &[Iterator, LendsItems]),
    ("join", &[Keeps]),
    ("keys", &[Keeps, Iterator]),
    ("last", &[Keeps]),
    ("last_mut", &[LendsItem]),
    ("le", &[Keeps]),
    ("leading_zeros", &[Keeps]),
    ("len", &[Keeps]),
    ("lines", &[Keeps, Iterator]),
    ("ln", &[Keeps]),
    ("log10", &[Keeps]),
    ("log2", &[Keeps]),
    ("lt", &[Keeps]),
    ("map", &[Keeps]),
    ("max", &[Keeps]),
    ("max_by", &[Keeps]),
    ("min", &[Keeps]),
    ("mul_add", &[Keeps]),
    ("ne", &[Keeps]),
    ("neg", &[Keeps]),
    ("next", &[Modifies]),
    ("next_power_of_two", &[Keeps]),
    ("not", &[Keeps]),
    ("ok_or", &[Keeps]),
    ("ok_or_else", &[Keeps]),
    ("partial_cmp", &[Keeps]),
    ("pop", &[Modifies]),
    ("pop_back", &[Modifies]),
    ("pop_front", &[Modifies]),
    ("pow", &[Keeps]),
    ("powf", &[Keeps]),
    ("powi", &[Keeps]),
    ("product", &[Keeps]),
    ("push", &[Modifies]),
    ("push_back", &[Modifies]),
    ("push_front", &[Modifies]),
    ("push_str", &[Modifies]),
    ("rank", &[Keeps, HostNumber]),
    ("recip", &[Keeps]),
    ("rem_euclid", &[Keeps]),
    ("remove", &[Modifies]),
    ("repeat", &[Keeps]),
    ("retain", &[Modifies]),
    ("rev", &[Keeps, Adapter, SomeItems]),
    ("round", &[Keeps]),
    ("saturating_sub", &[Keeps]),
    ("shape", &[Keeps]),
    ("signum", &[Keeps]),
    ("sin", &[Keeps]),
    ("skip", &[SomeItems]),
    ("sort", &[Modifies]),
    ("sort_by", &[Modifies]),
    ("sort_by_key", &[Modifies]),
    ("sort_unstable", &[Modifies]),
    ("split_at", &[Keeps]),
    ("sqrt", &[Keeps]),
    ("starts_with", &[Keeps, Bool]),
    ("step_by", &[Adapter, SomeItems]),
    ("sum", &[Keeps]),
    ("take", &[SomeItems]),
    ("tan", &[Keeps]),
    ("tanh", &[Keeps]),
    ("to_lowercase", &[Keeps]),
    ("to_owned", &[KeepsByTrait("ToOwnedMethod")]),
    ("to_string", &[KeepsByTrait("ToStringMethod")]),
    ("to_uppercase", &[Keeps]),
    ("to_vec", &[Keeps]),
    ("total_cmp", &[Keeps]),
    ("trailing_zeros", &[Keeps]),
    ("transpose", &[Keeps]),
    ("trim", &[Keeps]),
    ("trunc", &[Keeps]),
    ("truncate", &[Modifies]),
    ("unwrap", &[Keeps, Unwraps]),
    ("unwrap_or", &[Keeps]),
    ("unwrap_or_default", &[Keeps]),
    ("unwrap_or_else", &[Keeps]),
    ("values", &[Keeps, Iterator]),
    ("values_mut", &[Iterator, LendsItems]),
    ("windows", &[Keeps, Iterator]),
    ("wrapping_add", &[Keeps]),
    ("wrapping_mul", &[Keeps]),
    ("wrapping_sub", &[Keeps]),
    ("zip", &[Keeps, Iterator]),
];

/// Returns what is known of the methods of this name.
fn properties(name: &str) -> &'static [Property] {
    METHODS.binary_search_by_key(&name, |(method, _)| method).map_or(&[], |row| METHODS[row].1)
}

/// Returns whether the methods of this name have a property.
pub(crate) fn method_is(name: impl ToString, property: Property) -> bool {
    properties(&name.to_string()).contains(&property)
}

/// The types that have a method of a certain name that leaves its receiver unmodified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// The types that implement this trait, see [`Property::KeepsByTrait`].
    ByTrait(&'static str),
    /// The types of the standard library and of anabranch.
    OfKnownTypes,
}

/// Returns which types have a method of this name that leaves its receiver unmodified, if any do.
pub(crate) fn keeps_receiver(name: &str) -> Option<Keeps> {
    properties(name).iter().find_map(|property| match property {
        Property::Keeps => Some(self::Keeps::OfKnownTypes),
        KeepsByTrait(of_trait) => Some(self::Keeps::ByTrait(of_trait)),
        _ => None,
    })
}

/// Returns whether a method returns a mutable borrow of its receiver or of a part, by the naming
/// convention of the standard library.
pub(crate) fn lends_by_name(name: &str) -> bool {
    name.ends_with("_mut")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_each_name_has_one_row() {
        assert!(METHODS.is_sorted_by(|a, b| a.0 < b.0));
        assert!(METHODS.iter().all(|(_, properties)| !properties.is_empty()));
    }

    #[test]
    fn a_row_says_whether_the_receiver_is_kept() {
        for (name, of_trait) in
            [("clone", "CloneMethod"), ("to_owned", "ToOwnedMethod"), ("to_string", "ToStringMethod")]
        {
            assert_eq!(keeps_receiver(name), Some(self::Keeps::ByTrait(of_trait)), "{name}");
        }
        for name in ["len", "abs", "zip"] {
            assert_eq!(keeps_receiver(name), Some(self::Keeps::OfKnownTypes), "{name}");
        }
        assert!(["push", "next", "any", "iter_mut"].iter().all(|name| keeps_receiver(name).is_none()));
    }

    #[test]
    fn what_lends_its_receiver_does_not_keep_it() {
        for (name, properties) in METHODS {
            let lends = [LendsItems, LendsItem, Borrows].iter().any(|p| properties.contains(p));
            let modifies = properties.contains(&Modifies);
            assert!(!(lends || modifies) || keeps_receiver(name).is_none(), "{name}");
            assert!(keeps_receiver(name).is_none() || !lends_by_name(name), "{name}");
        }
    }
}
