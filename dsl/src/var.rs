//! Variables: named, typed state that outlives a step.
//!
//! A variable is an identity with a type and an initial value. The current value of a variable is
//! stored in a session, on a device. So several sessions can use the same model, each with its own
//! state.

use crate::device::{DeviceConstraint, DevicePattern, IntoDevice};
use crate::trace;
use crate::{Array, Diagnostic, Element, HostTensor, IntoArray, Loc, Result, Tensor, TensorType};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The maximum bytes of the name of a shared variable.
#[doc(hidden)]
pub const MAX_SHARED_NAME: usize = 128;

/// A variable whose element type is known at run time. Cloning returns another handle of the same
/// variable.
#[derive(Clone, Debug)]
pub struct AnyVar(Arc<VarInner>);

#[derive(Debug)]
struct VarInner {
    id: u64,
    name: String,
    ty: TensorType,
    init: HostTensor,
    is_trained: bool,
    on: Option<DeviceConstraint>,
    shared: Option<String>,
    watchers: Mutex<Vec<Weak<dyn DropWatcher>>>,
}

/// A store of data for variables, such as their values in a session, that frees it when they are
/// dropped.
pub trait DropWatcher: Send + Sync {
    /// Notifies that the last handle of the variable with this identity was dropped.
    fn dropped(&self, id: u64);
}

impl Drop for VarInner {
    fn drop(&mut self) {
        let watchers = self.watchers.get_mut().unwrap_or_else(PoisonError::into_inner);
        watchers.drain(..).filter_map(|watcher| watcher.upgrade()).for_each(|watcher| watcher.dropped(self.id));
    }
}

impl AnyVar {
    /// Creates a variable. The name appears in messages, files and graphs.
    pub fn new(name: impl Into<String>, init: HostTensor) -> AnyVar {
        AnyVar::with(name.into(), init, true)
    }

    /// Creates a variable that optimizers do not update, such as a running mean.
    pub fn untrained(name: impl Into<String>, init: HostTensor) -> AnyVar {
        AnyVar::with(name.into(), init, false)
    }

    fn with(name: String, init: HostTensor, is_trained: bool) -> AnyVar {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (ty, on, watchers) = (init.ty(), trace::device_scope(), Mutex::default());
        AnyVar(Arc::new(VarInner { id, name, ty, init, is_trained, on, shared: None, watchers }))
    }

    /// Returns the identity, unique in the process.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the name in messages and graphs. A name need not be unique.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns whether optimizers update it, if its elements are floats.
    pub fn is_trained(&self) -> bool {
        self.0.is_trained
    }

    /// Returns its device constraint, set by [`Var::on`] or by the scope of [`on`](crate::on()) in
    /// which it was created.
    pub fn devices(&self) -> Option<DeviceConstraint> {
        self.0.on
    }

    /// Sets the device constraint.
    ///
    /// # Panics
    /// Panics if there are other handles of the variable.
    #[must_use]
    pub fn with_devices(mut self, on: Option<DeviceConstraint>) -> AnyVar {
        let inner = Arc::get_mut(&mut self.0).expect("devices are set before the variable is shared");
        inner.on = on;
        self
    }

    /// Returns the name under which sessions share the variable, set by [`Var::share_as`].
    pub fn shared_name(&self) -> Option<&str> {
        self.0.shared.as_deref()
    }

    /// Returns the type of its value. The shape is always known.
    pub fn ty(&self) -> &TensorType {
        &self.0.ty
    }

    /// Returns whether this is the only handle of the variable.
    #[doc(hidden)]
    pub fn is_only_handle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Notifies `watcher`, if it still exists then, when the last handle of the variable is
    /// dropped.
    #[doc(hidden)]
    pub fn watch(&self, watcher: Weak<dyn DropWatcher>) {
        let mut watchers = self.0.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|other| other.strong_count() > 0);
        if !watchers.iter().any(|other| other.ptr_eq(&watcher)) {
            watchers.push(watcher);
        }
    }

    /// Returns the initial value.
    pub fn init(&self) -> &HostTensor {
        &self.0.init
    }
}

/// A variable with elements of type `T`. Cloning returns another handle of the same variable.
///
/// Inside a graph function [`get`](Var::get) and [`set`](Var::set) read and assign the variable, in
/// program order. The function's assignments take effect together when its step ends, and not at
/// all if the step fails.
#[derive(Debug)]
pub struct Var<T: Element = f32> {
    any: AnyVar,
    element: PhantomData<T>,
}

impl<T: Element> Clone for Var<T> {
    fn clone(&self) -> Self {
        Var { any: self.any.clone(), element: PhantomData }
    }
}

impl<T: Element> Var<T> {
    /// Creates a variable with a name and an initial value.
    pub fn new(name: impl Into<String>, init: impl IntoArray<T>) -> Var<T> {
        let init: Array<T> = init.into_array();
        Var { any: AnyVar::new(name, init.into_host()), element: PhantomData }
    }

    /// Creates a variable that optimizers do not update, such as a running mean.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let steps = Var::<f32>::untrained("steps", 0.0);
    /// assert!(!steps.any().is_trained());
    /// ```
    pub fn untrained(name: impl Into<String>, init: impl IntoArray<T>) -> Var<T> {
        let init: Array<T> = init.into_array();
        Var { any: AnyVar::untrained(name, init.into_host()), element: PhantomData }
    }

    /// Constrains the variable to the devices that match `device`: it is stored, read and assigned
    /// there. Fields that the name omits are those of the scope in which the variable is created,
    /// as with [`on`](crate::on()).
    ///
    /// # Errors
    /// Aborts the trace, or panics outside one, at the caller's line if `device` is not the name of
    /// a device, or if the variable already has other handles, which might be in use.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let table = Var::<f32>::new("table", [0.0, 1.0]).on("/peer:a/cpu");
    /// assert_eq!(table.any().devices().unwrap().devices().to_string(), "/peer:a/cpu");
    /// ```
    #[track_caller]
    #[must_use]
    pub fn on(self, device: impl IntoDevice) -> Var<T> {
        let loc = Loc::caller();
        let devices = trace::named_at(device, loc);
        if !self.any.is_only_handle() {
            let message = format!("the variable `{}` is already in use", self.any.name());
            trace::fail(
                Diagnostic::new(message)
                    .at(loc, "its device is set here")
                    .help("set the device when the variable is created, before it is cloned"),
            );
        }
        let outer = self.any.devices().map_or(DevicePattern::ANY, DeviceConstraint::devices);
        Var { any: self.any.with_devices(Some(DeviceConstraint::new(devices.within(&outer), loc))), ..self }
    }

    /// Shares the value between all sessions that use a variable of this name at one peer. The
    /// device of the variable must be a single device of a peer.
    ///
    /// The value is stored at the peer, apart from all sessions, until the peer ends. The first
    /// session that uses the variable sets its initial value; later ones, with a variable of the
    /// same type, continue with the value that is there. A call that assigns the variable locks it
    /// at the peer for the time of the call. A call that assigns nothing reads the newest value.
    ///
    /// # Errors
    /// Aborts the trace, or panics outside one, at the caller's line if the name is empty or longer
    /// than 128 bytes, or if the variable already has other handles, which might be in use.
    ///
    /// ```
    /// # use anabranch::prelude::*;
    /// let n = Var::<i64>::new("n", 0).on("/peer:0/cpu:0").share_as("experiment.n");
    /// assert_eq!(n.any().shared_name(), Some("experiment.n"));
    /// ```
    #[track_caller]
    #[must_use]
    pub fn share_as(mut self, name: impl Into<String>) -> Var<T> {
        let (loc, name) = (Loc::caller(), name.into());
        if name.is_empty() || name.len() > MAX_SHARED_NAME {
            let message = format!("the name of a shared variable has {} bytes", name.len());
            let error = Diagnostic::new(message).at(loc, "it is shared here");
            trace::fail(error.help(format!("use a name of 1 to {MAX_SHARED_NAME} bytes")));
        }
        match Arc::get_mut(&mut self.any.0) {
            Some(inner) => inner.shared = Some(name),
            None => trace::fail(
                Diagnostic::new(format!("the variable `{}` is already in use", self.any.name()))
                    .at(loc, "it is shared here")
                    .help("share the variable when it is created, before it is cloned"),
            ),
        }
        self
    }

    /// Returns the variable of an untyped handle, if its elements are of type `T`.
    pub fn from_any(any: AnyVar) -> Option<Var<T>> {
        (any.ty().dtype == T::DTYPE).then_some(Var { any, element: PhantomData })
    }

    /// Returns the untyped handle.
    pub fn any(&self) -> &AnyVar {
        &self.any
    }

    /// Returns the current value, in a graph function.
    #[track_caller]
    pub fn get(&self) -> Tensor<T> {
        Tensor::from_any(trace::read_var(&self.any))
    }

    /// Assigns a new value of the same shape, in a graph function.
    #[track_caller]
    pub fn set(&self, value: Tensor<T>) {
        trace::assign_var(&self.any, value.untyped());
    }
}

/// A tree of variables: layers, models, optimizer states. Derive it for structs of variables and
/// modules.
pub trait Module {
    /// Calls `visit` for every variable with its path from here, such as `layers.0.weight`, in the
    /// order of the fields.
    fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar));

    /// Returns all variables with their paths. A shared variable appears once, under its first
    /// path.
    fn vars(&self) -> Vec<(String, AnyVar)> {
        let mut all: Vec<(String, AnyVar)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        self.visit(&mut VarPath::default(), &mut |path, var| {
            if seen.insert(var.id()) {
                all.push((path.to_owned(), var.clone()));
            }
        });
        all
    }
}

/// The path of a variable in a tree of modules.
#[derive(Debug, Default)]
pub struct VarPath(String);

impl VarPath {
    /// Runs `f` with `name` added to the path.
    pub fn with<R>(&mut self, name: &str, f: impl FnOnce(&mut VarPath) -> R) -> R {
        let len = self.0.len();
        if len > 0 {
            self.0.push('.');
        }
        self.0.push_str(name);
        let r = f(self);
        self.0.truncate(len);
        r
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Element> Module for Var<T> {
    fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
        visit(path.as_str(), &self.any);
    }
}

macro_rules! module_by_items {
    ($([$($g:tt)*] $t:ty),*) => {$(
        impl<$($g)*> Module for $t {
            fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
                for (i, item) in self.iter().enumerate() {
                    path.with(&i.to_string(), |p| item.visit(p, visit));
                }
            }
        }
    )*};
}
module_by_items!([M: Module] Vec<M>, [M: Module, const N: usize] [M; N], [M: Module] [M]);

impl<M: Module> Module for Option<M> {
    fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
        if let Some(m) = self {
            m.visit(path, visit);
        }
    }
}

macro_rules! module_by_deref {
    ($($t:ty),*) => {$(
        impl<M: Module + ?Sized> Module for $t {
            fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
                (**self).visit(path, visit);
            }
        }
    )*};
}
module_by_deref!(&M, Box<M>, Arc<M>);

macro_rules! module_tuples {
    ($($($m:ident $i:tt),+;)*) => {$(
        impl<$($m: Module),+> Module for ($($m,)+) {
            fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
                $(path.with(stringify!($i), |p| self.$i.visit(p, visit));)+
            }
        }
    )*};
}
module_tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
}

/// Checks that a value has the type of a variable. `name` is the name or path of the variable in
/// the error.
pub fn check_value(name: &str, var: &AnyVar, value: &HostTensor) -> Result<()> {
    if value.ty() == *var.ty() {
        return Ok(());
    }
    let message = format!("the variable `{name}` is {}, but the value is {}", var.ty(), value.ty());
    Err(Diagnostic::new(message).help("a variable keeps the element type and the shape of its initial value"))
}
