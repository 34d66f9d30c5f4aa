//! The records of the wire form.
//!
//! **The declarations are the format**: the order of fields and variants determines the bytes. Any
//! change needs a new [`VERSION`](super::VERSION). `encode.rs` and `decode.rs` translate between
//! these records and the tables of a graph.
//!
//! Names borrow from the encoded bytes. An extent, a number of a node or a position is at most 64
//! bits in 7-bit groups, smallest first. Entities have the numbers of the graph's tables.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

/// The sizes of the parts, in their order.
#[derive(Serialize, Deserialize)]
pub(super) struct SizesForm {
    pub(super) ops: u32,
    pub(super) types: u32,
    pub(super) vars: u32,
    pub(super) queues: u32,
    pub(super) values: u32,
    pub(super) regions: u32,
    pub(super) nodes: u32,
    /// The bytes of the elements of all constants, which are the last part.
    pub(super) elements: u64,
}

/// An operation of the registry, with the names of its attributes.
#[derive(Serialize, Deserialize)]
pub(super) struct OpNameForm<'a> {
    pub(super) name: &'a str,
    #[serde(borrow)]
    pub(super) attrs: Vec<&'a str>,
}

#[derive(Serialize, Deserialize)]
pub(super) enum DimForm<'a> {
    Known(u64),
    Named(&'a str),
    Unknown,
}

#[derive(Serialize, Deserialize)]
pub(super) struct TensorTypeForm<'a> {
    /// The position in `DType::ALL`.
    pub(super) dtype: u8,
    #[serde(borrow)]
    pub(super) shape: Axes<DimForm<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) enum TypeForm<'a> {
    #[serde(borrow)]
    Tensor(TensorTypeForm<'a>),
    Stack(TensorTypeForm<'a>),
    List(TensorTypeForm<'a>),
}

#[derive(Serialize, Deserialize)]
pub(super) struct VarForm<'a> {
    pub(super) name: &'a str,
    #[serde(borrow)]
    pub(super) ty: TensorTypeForm<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct QueueForm<'a> {
    pub(super) name: &'a str,
    #[serde(borrow)]
    pub(super) element: Vec<TensorTypeForm<'a>>,
}

/// A region in use. `None` stands for an unused number.
#[derive(Serialize, Deserialize)]
pub(super) struct RegionForm {
    pub(super) params: Vec<u32>,
    pub(super) nodes: Vec<u32>,
    pub(super) yields: Vec<u32>,
}

/// A node in use. `None` stands for an unused number.
#[derive(Serialize, Deserialize)]
pub(super) struct NodeForm<'a> {
    #[serde(borrow)]
    pub(super) op: OpForm<'a>,
    pub(super) operands: Vec<u32>,
    pub(super) results: Vec<u32>,
    pub(super) regions: Vec<u32>,
}

/// An operation on a queue, with its number of elements if that is no operand.
#[derive(Serialize, Deserialize)]
pub(super) enum QueueOpForm {
    Enqueue,
    EnqueueMany,
    Dequeue,
    DequeueMany(u64),
    DequeueUpTo(u64),
    Close,
    Len,
    DequeueManyByOperand,
    DequeueUpToByOperand,
}

#[derive(Serialize, Deserialize)]
pub(super) enum OpForm<'a> {
    Prim {
        /// The position in the list of operations.
        op: u32,
        /// The attributes in the order of the definition.
        #[serde(borrow)]
        attrs: Vec<AttrForm<'a>>,
    },
    /// The elements are in the last part, in the order of the nodes.
    Constant {
        dtype: u8,
        extents: Axes<u64>,
    },
    Read(u32),
    Assign(u32),
    Assert {
        message: Vec<PieceForm<'a>>,
    },
    Print {
        is_error_stream: bool,
        template: Vec<PieceForm<'a>>,
    },
    StackNew(TensorTypeForm<'a>),
    StackZeros(TensorTypeForm<'a>),
    StackPush,
    StackPop,
    StackZerosLike,
    StackAdd,
    ListNew(TensorTypeForm<'a>),
    ListPush,
    ListPop,
    ListRead,
    ListWrite,
    ListGather,
    ListScatter,
    ListStack(DimForm<'a>),
    ListUnstack,
    ListConcat(DimForm<'a>),
    ListSplit(DimForm<'a>),
    ListLen,
    ListExtents,
    ListZerosLike,
    ListAdd,
    ListAccumulate,
    ListWritten,
    ListRestore,
    Cond,
    While {
        /// 0 leaves the choice to the session.
        parallel_iterations: u32,
    },
    Checkpoint,
    Recompute,
    CustomGradient {
        args: u32,
    },
    Queue {
        queue: u32,
        op: QueueOpForm,
    },
    Save(Vec<&'a str>),
    Restore {
        name: &'a str,
        ty: TensorTypeForm<'a>,
    },
}

#[derive(Serialize, Deserialize)]
pub(super) enum AttrForm<'a> {
    Int(i64),
    Ints(Vec<i64>),
    /// The bits are kept.
    Float(f64),
    Bool(bool),
    DType(u8),
    #[serde(borrow)]
    Shape(Axes<DimForm<'a>>),
}

#[derive(Serialize, Deserialize)]
pub(super) enum PieceForm<'a> {
    Text(&'a str),
    Value(SpecForm),
}

#[derive(Serialize, Deserialize)]
pub(super) struct SpecForm {
    pub(super) format: FormatForm,
    pub(super) fill: Option<char>,
    pub(super) align: Option<AlignForm>,
    pub(super) plus: bool,
    pub(super) alternate: bool,
    pub(super) zero: bool,
    pub(super) width: Option<u32>,
    pub(super) precision: Option<u32>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum FormatForm {
    Display,
    Debug,
    LowerExp,
    UpperExp,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum AlignForm {
    Left,
    Center,
    Right,
}

/// One item for each axis. More than [`MAX_RANK`](super::MAX_RANK) are an error before they are
/// read.
pub(super) struct Axes<T>(pub(super) Vec<T>);

impl<T: Serialize> Serialize for Axes<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Axes<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(AxesVisitor(PhantomData))
    }
}

struct AxesVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for AxesVisitor<T> {
    type Value = Axes<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} axes", super::MAX_RANK)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Axes<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            if items.len() == super::MAX_RANK {
                return Err(A::Error::invalid_length(items.len() + 1, &self));
            }
            items.push(item);
        }
        Ok(Axes(items))
    }
}
