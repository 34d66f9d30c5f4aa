//! Names of devices, and device constraints of programs.
//!
//! A device has a name such as `/peer:a/gpu:0`: its process, its kind, and its number among the
//! devices of that kind. A [`DeviceName`] specifies all three. A [`DevicePattern`] leaves some of
//! them open and matches every device that agrees with the rest. A node of a graph may have a
//! pattern along with the source location that requested it: [`DeviceConstraint`]. This module
//! handles names only. The engine that runs the graph decides which devices exist and which of them
//! a node gets.
//!
//! Invariants:
//!
//! - Names are small and `Copy`. Peer names and constraints are interned for the lifetime of the
//!   process.
//! - The displayed text of a name or pattern parses to the same value.

use crate::ir::intern;
use crate::{Diagnostic, Loc, Result};
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The default peer of a device name: the process that runs the program.
pub const LOCAL: &str = "local";

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// A CPU.
    Cpu,
    /// A GPU.
    Gpu,
}

impl DeviceKind {
    /// All kinds.
    pub const ALL: [DeviceKind; 2] = [DeviceKind::Cpu, DeviceKind::Gpu];

    /// Returns the name of the kind, as used in device names.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of one device: `/gpu:0`, `/peer:a/cpu:1`.
///
/// The peer [`LOCAL`] is omitted when a name is displayed, and is the default when it is parsed. A
/// program of one process never sees it.
///
/// ```
/// use anabranch::DeviceName;
///
/// let name: DeviceName = "/peer:a/gpu:0".parse()?;
/// assert_eq!((name.peer(), name.index()), ("a", 0));
/// assert_eq!("/peer:local/cpu:1".parse::<DeviceName>()?.to_string(), "/cpu:1");
/// assert!(
///     "/cpu:*".parse::<DeviceName>().is_err() && "/peer:*/cpu:0".parse::<DeviceName>().is_err()
/// );
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceName {
    peer: &'static str,
    kind: DeviceKind,
    index: u32,
}

impl DeviceName {
    /// Returns the name of a device of this process.
    pub fn local(kind: DeviceKind, index: u32) -> DeviceName {
        DeviceName { peer: LOCAL, kind, index }
    }

    /// Returns the name of the device of this kind and number on another peer.
    ///
    /// # Errors
    /// Fails if the peer name contains anything but letters, digits, `_`, `-` and `.`.
    pub fn of_peer(self, peer: &str) -> Result<DeviceName> {
        if !is_peer_name(peer) {
            let message = format!("{peer:?} is not a valid peer name");
            return Err(Diagnostic::new(message).help("use letters, digits, `_`, `-` and `.`"));
        }
        Ok(DeviceName { peer: intern(peer), ..self })
    }

    /// Returns the process that owns the device.
    pub fn peer(&self) -> &'static str {
        self.peer
    }

    /// Returns the kind of the device.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Returns the number of the device among those of its kind on its peer.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.peer != LOCAL {
            write!(f, "/peer:{}", self.peer)?;
        }
        write!(f, "/{}:{}", self.kind, self.index)
    }
}

impl FromStr for DeviceName {
    type Err = Diagnostic;

    fn from_str(text: &str) -> Result<DeviceName> {
        let DevicePattern { peer, kind, index } = text.parse()?;
        let (Some(kind), Some(index)) = (kind, index) else {
            let missing = if kind.is_none() { "kind" } else { "number" };
            let message = format!("`{text}` does not name a single device: its {missing} is not specified");
            return Err(Diagnostic::new(message).help("write a full name, such as `/cpu:0` or `/peer:a/gpu:1`"));
        };
        Ok(DeviceName { peer: peer.unwrap_or(LOCAL), kind, index })
    }
}

/// A pattern of device names in which peer, kind and number may each be open: `/gpu:0`, `/cpu:*`,
/// `/gpu`, `/peer:a`.
///
/// ```text
/// pattern = peer | device | peer device
/// peer    = "/peer:" (name | "*")
/// device  = "/" ("cpu" | "gpu" | "*") (":" (number | "*"))?
/// ```
///
/// An omitted field matches anything, as does `*`. A session with peers takes a number without a
/// peer for that of a device of its own process: see [`absolute`](Self::absolute).
///
/// ```
/// use anabranch::{DeviceName, DevicePattern};
///
/// let any_gpu: DevicePattern = "/gpu:*".parse()?;
/// let of_a: DevicePattern = "/peer:a".parse()?;
/// assert!(any_gpu.matches(&"/peer:b/gpu:3".parse()?));
/// assert_eq!(any_gpu.merge(&of_a).unwrap().to_string(), "/peer:a/gpu");
/// assert_eq!(any_gpu.merge(&"/cpu:0".parse()?), None);
/// # Ok::<(), anabranch::Diagnostic>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DevicePattern {
    peer: Option<&'static str>,
    kind: Option<DeviceKind>,
    index: Option<u32>,
}

impl DevicePattern {
    /// The pattern that matches every device.
    pub const ANY: DevicePattern = DevicePattern { peer: None, kind: None, index: None };

    /// Returns the process, unless it is open.
    pub fn peer(&self) -> Option<&'static str> {
        self.peer
    }

    /// Returns the kind, unless it is open.
    pub fn kind(&self) -> Option<DeviceKind> {
        self.kind
    }

    /// Returns the number, unless it is open.
    pub fn index(&self) -> Option<u32> {
        self.index
    }

    /// Returns whether no field is open, so that the pattern matches a single device.
    pub fn is_full(&self) -> bool {
        self.peer.is_some() && self.kind.is_some() && self.index.is_some()
    }

    /// Returns the pattern among the devices of several processes, as this process means it. A
    /// number counts the devices of one process, so without a peer it is one of this process:
    /// `/cpu:0` is `/peer:local/cpu:0`. Without a number, an open peer is any process.
    ///
    /// Nested scopes are joined [before](Self::within): `/cpu:0` in `/peer:a` is a device of `a`.
    #[must_use]
    pub fn absolute(&self) -> DevicePattern {
        DevicePattern { peer: self.peer.or(self.index.map(|_| LOCAL)), ..*self }
    }

    /// Returns whether the pattern matches a device.
    pub fn matches(&self, device: &DeviceName) -> bool {
        self.peer.is_none_or(|p| p == device.peer)
            && self.kind.is_none_or(|k| k == device.kind)
            && self.index.is_none_or(|i| i == device.index)
    }

    /// Returns the pattern of the devices that both match, or `None` if they contradict each other.
    pub fn merge(&self, other: &DevicePattern) -> Option<DevicePattern> {
        fn agreed<T: Copy + PartialEq>(a: Option<T>, b: Option<T>) -> Option<Option<T>> {
            match (a, b) {
                (Some(x), Some(y)) if x != y => None,
                _ => Some(a.or(b)),
            }
        }
        Some(DevicePattern {
            peer: agreed(self.peer, other.peer)?,
            kind: agreed(self.kind, other.kind)?,
            index: agreed(self.index, other.index)?,
        })
    }

    /// Returns the pattern of this scope nested in `outer`: open fields are taken from `outer`.
    ///
    /// A number counts devices of one kind. So with another kind or peer, the number of `outer` is
    /// dropped.
    #[must_use]
    pub fn within(&self, outer: &DevicePattern) -> DevicePattern {
        let changes = |own: bool| self.index.is_none() && own;
        let other_kind = self.kind.is_some() && outer.kind.is_some() && self.kind != outer.kind;
        let other_peer = self.peer.is_some() && outer.peer.is_some() && self.peer != outer.peer;
        DevicePattern {
            peer: self.peer.or(outer.peer),
            kind: self.kind.or(outer.kind),
            index: if changes(other_kind || other_peer) { None } else { self.index.or(outer.index) },
        }
    }
}

impl From<DeviceName> for DevicePattern {
    fn from(name: DeviceName) -> DevicePattern {
        DevicePattern { peer: Some(name.peer), kind: Some(name.kind), index: Some(name.index) }
    }
}

impl fmt::Display for DevicePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(peer) = self.peer {
            write!(f, "/peer:{peer}")?;
        }
        match (self.kind, self.index) {
            (None, None) if self.peer.is_some() => Ok(()),
            (None, None) => f.write_str("/*"),
            (Some(kind), None) => write!(f, "/{kind}"),
            (None, Some(index)) => write!(f, "/*:{index}"),
            (Some(kind), Some(index)) => write!(f, "/{kind}:{index}"),
        }
    }
}

impl FromStr for DevicePattern {
    type Err = Diagnostic;

    fn from_str(text: &str) -> Result<DevicePattern> {
        parsed(text).map_err(|why| {
            Diagnostic::new(format!("{text:?} is not a valid device name: {why}"))
                .help("write a name such as `/cpu:0` or `/peer:a/gpu:1`; an omitted field or `*` matches anything")
        })
    }
}

/// Parses a pattern, or returns the reason why it is invalid.
fn parsed(text: &str) -> Result<DevicePattern, String> {
    let parts = text.strip_prefix('/').ok_or("it does not start with `/`")?;
    let mut pattern = DevicePattern::ANY;
    for (i, part) in parts.split('/').enumerate() {
        let (word, value) = part.split_once(':').map_or((part, None), |(word, value)| (word, Some(value)));
        match (word, value) {
            ("peer", _) if i > 0 => return Err("the peer must come first".to_owned()),
            ("peer", None) => return Err("`peer` must be followed by `:` and a name".to_owned()),
            ("peer", Some("*")) => {}
            ("peer", Some(name)) if is_peer_name(name) => pattern.peer = Some(intern(name)),
            ("peer", Some(name)) => {
                return Err(format!("the peer name {name:?} must consist of letters, digits, `_`, `-` and `.`"));
            }
            _ if i > usize::from(parts.starts_with("peer:")) => {
                return Err(format!("the kind must come last, but `/{part}` follows it"));
            }
            ("*", _) => pattern.index = index(value)?,
            (kind, _) => {
                let known = DeviceKind::ALL.into_iter().find(|k| k.name() == kind);
                pattern.kind =
                    Some(known.ok_or_else(|| format!("{kind:?} is not a device kind, expected `cpu` or `gpu`"))?);
                pattern.index = index(value)?;
            }
        }
    }
    if pattern.peer.is_none() && pattern.index.is_some() && parts.starts_with("peer:") {
        return Err("a number counts the devices of one process, so `/peer:*` cannot have one".to_owned());
    }
    Ok(pattern)
}

/// Parses the number of a device, which is open if omitted or `*`.
fn index(text: Option<&str>) -> Result<Option<u32>, String> {
    match text {
        None | Some("*") => Ok(None),
        Some(digits) => match digits.parse() {
            Ok(number) if digits.bytes().all(|b| b.is_ascii_digit()) => Ok(Some(number)),
            _ => Err(format!("`{digits}` is not the number of a device, such as 0, or `*`")),
        },
    }
}

fn is_peer_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

/// The argument of [`on`](crate::on) and [`Var::on`](crate::Var::on): a name as text, or a parsed
/// name.
pub trait IntoDevice {
    /// Returns the pattern that a text or name stands for.
    ///
    /// # Errors
    /// Fails if the text is not a valid device name.
    fn into_device(self) -> Result<DevicePattern>;
}

impl IntoDevice for &str {
    fn into_device(self) -> Result<DevicePattern> {
        self.parse()
    }
}

impl IntoDevice for &String {
    fn into_device(self) -> Result<DevicePattern> {
        self.parse()
    }
}

impl IntoDevice for String {
    fn into_device(self) -> Result<DevicePattern> {
        self.parse()
    }
}

impl IntoDevice for DevicePattern {
    fn into_device(self) -> Result<DevicePattern> {
        Ok(self)
    }
}

impl IntoDevice for DeviceName {
    fn into_device(self) -> Result<DevicePattern> {
        Ok(self.into())
    }
}

/// A device constraint of a node or variable, with the source location that specifies it.
///
/// A constraint has the size of a pointer, since every node has a field for one. Two constraints
/// are equal if they match the same devices, whatever their locations.
#[derive(Clone, Copy)]
pub struct DeviceConstraint(&'static Said);

#[derive(PartialEq, Eq, Hash)]
struct Said {
    devices: DevicePattern,
    loc: Loc,
}

impl DeviceConstraint {
    /// Creates a constraint specified at a source location.
    pub fn new(devices: DevicePattern, loc: Loc) -> DeviceConstraint {
        static ALL: LazyLock<Mutex<HashMap<(DevicePattern, Loc), &'static Said>>> = LazyLock::new(Mutex::default);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        DeviceConstraint(all.entry((devices, loc)).or_insert_with(|| Box::leak(Box::new(Said { devices, loc }))))
    }

    /// Returns the pattern of allowed devices.
    pub fn devices(self) -> DevicePattern {
        self.0.devices
    }

    /// Returns the source location that specifies the constraint.
    ///
    /// For nested scopes, this is the location of the innermost scope.
    pub fn loc(self) -> Loc {
        self.0.loc
    }
}

impl PartialEq for DeviceConstraint {
    fn eq(&self, other: &DeviceConstraint) -> bool {
        self.0.devices == other.0.devices
    }
}
impl Eq for DeviceConstraint {}

impl Hash for DeviceConstraint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.devices.hash(state);
    }
}

impl fmt::Debug for DeviceConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.0.devices, self.0.loc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> DevicePattern {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    /// Returns all patterns over a few values of each field.
    fn patterns() -> Vec<DevicePattern> {
        let mut all = Vec::new();
        for peer in [None, Some("a"), Some("b-2.x"), Some(LOCAL)] {
            for kind in [None, Some(DeviceKind::Cpu), Some(DeviceKind::Gpu)] {
                for index in [None, Some(0), Some(1), Some(u32::MAX)] {
                    all.push(DevicePattern { peer, kind, index });
                }
            }
        }
        all
    }

    fn names() -> Vec<DeviceName> {
        patterns()
            .into_iter()
            .filter_map(|p| Some(DeviceName { peer: p.peer.unwrap_or("c"), kind: p.kind?, index: p.index? }))
            .collect()
    }

    #[test]
    fn what_is_displayed_parses_to_the_same() {
        for p in patterns() {
            assert_eq!(pattern(&p.to_string()), p, "{p}");
        }
        for n in names() {
            assert_eq!(n.to_string().parse::<DeviceName>().unwrap(), n, "{n}");
        }
    }

    #[test]
    fn what_is_open_may_be_written_as_a_star_or_left_out() {
        for (text, canonical) in [
            ("/peer:*/cpu:*", "/cpu"),
            ("/peer:a/*", "/peer:a"),
            ("/peer:*", "/*"),
            ("/*:*", "/*"),
            ("/gpu:07", "/gpu:7"),
            ("/peer:local/gpu:0", "/peer:local/gpu:0"),
        ] {
            assert_eq!(pattern(text).to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn a_merged_pattern_stands_for_what_both_stand_for() {
        let (all, names) = (patterns(), names());
        let mut contradictions = 0;
        for a in &all {
            for b in &all {
                let merged = a.merge(b);
                contradictions += usize::from(merged.is_none());
                assert_eq!(merged, b.merge(a), "{a} and {b}");
                for n in &names {
                    let both = a.matches(n) && b.matches(n);
                    assert_eq!(merged.is_some_and(|m| m.matches(n)), both, "{a} and {b} on {n}");
                }
            }
        }
        assert!(contradictions > 100, "{contradictions}");
    }

    #[test]
    fn a_full_pattern_stands_for_one_device() {
        for p in patterns() {
            let n = names().iter().filter(|n| p.matches(n)).count();
            assert_eq!(p.is_full(), n == 1, "{p} stands for {n}");
        }
        let name: DeviceName = "/gpu:1".parse().unwrap();
        assert!(DevicePattern::from(name).is_full());
        assert!(!pattern("/gpu:1").is_full(), "the peer is open");
    }

    #[test]
    fn an_absolute_number_without_a_peer_is_of_this_process() {
        for (relative, absolute) in [
            ("/cpu:0", "/peer:local/cpu:0"),
            ("/*:1", "/peer:local/*:1"),
            ("/peer:a/cpu:0", "/peer:a/cpu:0"),
            ("/cpu", "/cpu"),
            ("/peer:a", "/peer:a"),
            ("/*", "/*"),
        ] {
            assert_eq!(pattern(relative).absolute().to_string(), absolute, "{relative}");
        }
        for p in patterns() {
            assert_eq!(p.absolute().absolute(), p.absolute(), "{p}");
            assert!(names().iter().all(|n| p.matches(n) || !p.absolute().matches(n)), "{p}");
        }
    }

    #[test]
    fn an_inner_scope_replaces_field_by_field() {
        for (inner, outer, both) in [
            ("/gpu:1", "/peer:a", "/peer:a/gpu:1"),
            ("/peer:b", "/peer:a/gpu", "/peer:b/gpu"),
            ("/peer:b", "/peer:a/gpu:1", "/peer:b/gpu"),
            ("/cpu", "/gpu:1", "/cpu"),
            ("/gpu", "/gpu:1", "/gpu:1"),
            ("/*:2", "/gpu:1", "/gpu:2"),
            ("/*", "/peer:a/gpu:1", "/peer:a/gpu:1"),
        ] {
            assert_eq!(pattern(inner).within(&pattern(outer)).to_string(), both, "{inner} in {outer}");
        }
    }

    #[test]
    fn a_name_that_is_wrong_says_why() {
        for (text, why) in [
            ("", "it does not start with `/`"),
            ("cpu:0", "it does not start with `/`"),
            ("/", "\"\" is not a device kind, expected `cpu` or `gpu`"),
            ("/tpu:0", "\"tpu\" is not a device kind, expected `cpu` or `gpu`"),
            ("/cpu:", "`` is not the number of a device, such as 0, or `*`"),
            ("/cpu:-1", "`-1` is not the number of a device, such as 0, or `*`"),
            ("/cpu:4294967296", "`4294967296` is not the number of a device, such as 0, or `*`"),
            ("/cpu:0/gpu:0", "the kind must come last, but `/gpu:0` follows it"),
            ("/cpu:0/peer:a", "the peer must come first"),
            ("/peer", "`peer` must be followed by `:` and a name"),
            ("/peer:", "the peer name \"\" must consist of letters, digits, `_`, `-` and `.`"),
            ("/peer:a b", "the peer name \"a b\" must consist of letters, digits, `_`, `-` and `.`"),
            ("/peer:a/cpu:0/", "the kind must come last, but `/` follows it"),
            ("/peer:*/cpu:0", "a number counts the devices of one process, so `/peer:*` cannot have one"),
        ] {
            let error = text.parse::<DevicePattern>().expect_err(text);
            assert_eq!(error.message, format!("{text:?} is not a valid device name: {why}"));
            assert!(error.help.is_some());
        }
        let error = "/gpu".parse::<DeviceName>().unwrap_err();
        assert_eq!(error.message, "`/gpu` does not name a single device: its number is not specified");
    }

    #[test]
    fn a_constraint_is_small_and_is_the_devices_it_stands_for() {
        assert_eq!(size_of::<Option<DeviceConstraint>>(), size_of::<usize>());
        let loc = Loc { file: "a.rs", line: 1, column: 2 };
        let (a, b) =
            (DeviceConstraint::new(pattern("/cpu:0"), loc), DeviceConstraint::new(pattern("/cpu:0"), Loc::UNKNOWN));
        assert_eq!(a, b);
        assert_eq!((a.loc(), b.loc()), (loc, Loc::UNKNOWN));
        assert_ne!(a, DeviceConstraint::new(pattern("/cpu:1"), loc));
    }
}
