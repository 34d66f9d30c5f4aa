//! Decoding graphs leaves no memory behind, and takes an amount in proportion to the bytes: an
//! allocator counts the live memory of the process.
//!
//! There is only one test function, because other tests would be counted as well.

use anabranch_dsl::ir::wire::{WireLimits, decode, encode};
use anabranch_dsl::passes::Pipeline;
use anabranch_dsl::{Diagnostic, Graph};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

struct Counting;

static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);
/// The maximum of `LIVE_BYTES` since it was last reset.
static PEAK_BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call is forwarded to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed) + layout.size() as isize;
        PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: `ptr` came from `alloc` above, so from `System`, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of graphs that are decoded.
const GRAPHS: usize = 20_000;

/// The maximum memory of a decoded graph for each of its bytes. The record of an unused node, which
/// is one byte, takes the most.
const MAX_FACTOR: isize = 256;

/// Returns the result of decoding, and the memory that was taken on the way.
fn measured(bytes: &[u8]) -> (Result<Graph, Diagnostic>, isize) {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    PEAK_BYTES.store(before, Ordering::Relaxed);
    let result = decode(bytes, &WireLimits::default());
    (result, PEAK_BYTES.load(Ordering::Relaxed) - before)
}

/// A graph with a loop, lists, constants, prints and named extents, whose names contain `i`.
fn graph(i: usize) -> Graph {
    let text = format!(
        "graph @f{i}(%x{i}: f32[n{i}], %p: bool[]) -> f32[n{i}] {{
            var @w{i}: f32[2]
            %w = read @w{i}
            %two = constant 2 : i32[]
            %list = list_new %two : list<f32[m{i}]>
            %y = while (%y{i} = %x{i} | %p = %p) cond {{
                yield %p
            }} body {{
                %z{i} = tanh %y{i}
                print stdout \"z{i} = {{}}\", %z{i}
                yield %z{i}
            }}
            assert %p, \"not {i}\"
            assign @w{i}, %w
            return %y
        }}"
    );
    Graph::parse(&text, "f.ir").unwrap_or_else(|e| panic!("{}", e[0]))
}

/// Byte strings that take much memory for each byte, each with its name.
fn hungry() -> Vec<(&'static str, Vec<u8>)> {
    let head = |sizes: [u32; 6]| {
        let number = |mut n: u32, out: &mut Vec<u8>| {
            while n >= 0x80 {
                out.push(n as u8 | 0x80);
                n >>= 7;
            }
            out.push(n as u8);
        };
        let mut out = b"anbr\x01\x01f".to_vec();
        sizes.into_iter().for_each(|n| number(n, &mut out));
        // No elements of constants.
        out.push(0);
        out
    };
    // Not a power of two: a vector that grows would take up to three times the memory.
    const N: u32 = (1 << 17) + 1;
    let after = |sizes, byte: &[u8]| [head(sizes), byte.repeat(N as usize)].concat();
    vec![
        ("unused nodes", [after([0, 0, 0, 0, 1, N], &[]), vec![1, 0, 0, 0], vec![0; N as usize]].concat()),
        ("unused values", after([0, 0, 0, N, 1, 0], &[0])),
        ("unused regions", after([0, 0, 0, 0, N, 0], &[0])),
        ("scalar types", after([0, N, 0, 0, 1, 0], &[0, 0, 0])),
        ("types with unknown extents", after([0, N, 0, 0, 1, 0], &[0, 0, 4, 2, 2, 2, 2])),
        ("variables without names", after([0, 0, 1 << 16, 0, 1, 0], &[0, 0, 0])),
        // A region with many nodes, all of them node 0.
        ("nodes of one region", [head([0, 0, 0, 0, 1, 1]), vec![1, 0, 0x81, 0x80, 0x08], vec![0; N as usize]].concat()),
        // The counts are larger than what follows.
        ("nothing", head([1 << 20, 1 << 21, 1 << 16, 1 << 21, 1 << 18, 1 << 20])),
        ("a long list", [head([0, 0, 0, 0, 1, 0]), vec![1, 0xff, 0xff, 0xff, 0xff, 0x0f], vec![0; 64]].concat()),
        // A node with pieces of a template, or attributes.
        (
            "pieces of text",
            [head([0, 0, 0, 0, 1, 1]), vec![1, 0, 0, 0, 1, 5, 0, 0x81, 0x80, 0x08], [0, 0].repeat(N as usize)].concat(),
        ),
        (
            "placeholders",
            [
                head([0, 0, 0, 0, 1, 1]),
                vec![1, 0, 0, 0, 1, 5, 0, 0x81, 0x80, 0x08],
                [1, 0, 0, 0, 0, 0, 0, 0, 0].repeat(N as usize),
            ]
            .concat(),
        ),
        (
            "attributes",
            [head([0, 0, 0, 0, 1, 1]), vec![1, 0, 0, 0, 1, 0, 0, 0x81, 0x80, 0x08], [3, 0].repeat(N as usize)].concat(),
        ),
    ]
}

#[test]
fn decoding_takes_memory_in_proportion_and_gives_all_of_it_back() {
    // All names are different, so that whatever is interned or kept by name grows.
    let all: Vec<Vec<u8>> = (0..GRAPHS)
        .map(|i| {
            let mut graph = graph(i);
            if i % 100 == 0 {
                Pipeline::standard().run(&mut graph);
            }
            encode(&graph)
        })
        .collect();
    // Tables of operations are made once.
    measured(&all[0]).0.expect("the graph is right");
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    for bytes in &all {
        let (graph, taken) = measured(bytes);
        assert!(taken < MAX_FACTOR * bytes.len() as isize, "{taken} bytes for {}", bytes.len());
        assert!(graph.is_ok());
        drop(graph);
        let (error, taken) = measured(&bytes[..bytes.len() - 3]);
        assert!(error.is_err() && taken < MAX_FACTOR * bytes.len() as isize);
    }
    assert_eq!(LIVE_BYTES.load(Ordering::Relaxed), before, "{GRAPHS} graphs were decoded and dropped");

    for (name, bytes) in hungry() {
        let (result, taken) = measured(&bytes);
        println!(
            "{name}: {} for each byte, {}",
            taken / bytes.len() as isize,
            result.map_or_else(|e| e.message, |_| "a graph".into())
        );
        assert!(taken < MAX_FACTOR * bytes.len() as isize + 4096, "{name}: {taken} bytes for {}", bytes.len());
    }
}
