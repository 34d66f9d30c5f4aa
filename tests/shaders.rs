//! The WGSL of scalar functions and of fused kernels is valid, and is that of the golden files.

use crate::support::{numbers, wgsl};
use anabranch::DType;
use anabranch::dsl::equality::same_number;
use anabranch::dsl::fusion::{
    self, AxisSet, Coord, FuseEverything, FusedKernel, Fusion, FusionTarget, KernelInput, KernelShader, KernelStage,
    LOOP_STATES, LoopShader, MAX_LOOP_STEPS, NotPrinted, ParallelLoopShader, StageSource, StageWork, WorkgroupLoops,
};
use anabranch::dsl::ir::{Node, Value};
use anabranch::dsl::ops::{self, Combiner, prim};
use anabranch::dsl::scalars::wgsl::PRELUDE;
use anabranch::dsl::{Buffer, Graph, HostTensor, TensorType, corpus, interp};
use anabranch::extend::{Grad, Prim, UnaryFunction, scalars::Real};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

const TYPES: [DType; 4] = [DType::F32, DType::I32, DType::U32, DType::Bool];

/// Returns a shader with the functions of all elementwise operations.
fn shader() -> String {
    let functions =
        |op: Prim| TYPES.map(|dtype| op.scalar_form(dtype)?.to_wgsl(&format!("{}_{dtype}", op.name), op.name));
    let all: Vec<String> = ops::all().flat_map(functions).flatten().collect();
    assert!(all.len() > 90, "{} functions", all.len());
    format!("{PRELUDE}\n{}", all.join("\n"))
}

#[test]
fn printed_functions_are_valid_shaders() {
    validate(&shader());
}

const CAPABILITIES: naga::valid::Capabilities =
    naga::valid::Capabilities::IMMEDIATES.union(naga::valid::Capabilities::SHADER_INT16);

/// # Panics
/// Panics with the message of the compiler if a shader is invalid.
#[track_caller]
fn validate(shader: &str) {
    let module =
        naga::front::wgsl::parse_str(shader).unwrap_or_else(|e| panic!("{}\n{shader}", e.emit_to_string(shader)));
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), CAPABILITIES);
    validator.validate(&module).unwrap_or_else(|e| panic!("{}\n{shader}", e.emit_to_string(shader)));
}

/// A function of another crate with the negation of a negative constant.
struct LessByTwo;

impl UnaryFunction for LessByTwo {
    const NAME: &'static str = "shaders.less_by_two";
    const GRAD: Grad = Grad::Missing("no test asks for it");

    #[inline(always)]
    fn eval<R: Real>(x: R) -> R {
        x + -x.number(-2.0) - x.number(4.0)
    }
}

/// A function of another crate.
struct Softsign;

impl UnaryFunction for Softsign {
    const NAME: &'static str = "shaders.softsign";
    const GRAD: Grad = Grad::Missing("no test asks for it");

    #[inline(always)]
    fn eval<R: Real>(x: R) -> R {
        x / (x.number(1.0) + x.magnitude())
    }
}

#[test]
fn the_function_of_another_crate_is_printed() {
    let op = anabranch::extend::register_unary::<Softsign>().expect("the first of its name");
    let shader = op.scalar_form(DType::F32).expect("it is defined for f32").to_wgsl("softsign", "none");
    let body = shader.expect("WGSL has f32");
    assert!(body.starts_with("fn softsign(x: f32) -> f32 {") && body.contains("abs(x)"), "{body}");
    let op = anabranch::extend::register_unary::<LessByTwo>().expect("the first of its name");
    let shader = op.scalar_form(DType::F32).expect("it is defined for f32").to_wgsl("less", "none");
    validate(&format!("{PRELUDE}\n{}", shader.expect("WGSL has f32")));
}

#[test]
fn printed_functions_are_those_of_the_golden_file() {
    check_golden(Path::new("golden/scalar.wgsl"), &shader());
}

#[track_caller]
fn check_golden(path: &Path, shader: &str) {
    if std::env::var_os("BLESS").is_some() {
        fs::write(path, shader).expect("tests run in the folder of the package");
    }
    let expected = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let differs = shader.lines().zip(expected.lines()).find(|(now, file)| now != file);
    assert!(shader == expected, "{}: {differs:?}\nBLESS=1 writes the shaders as they are now", path.display());
}

/// Returns the graphs in the golden files of a folder, with their paths.
fn golden_graphs(folder: &str) -> Vec<(PathBuf, Graph)> {
    let entries = fs::read_dir(Path::new("golden").join(folder)).expect("tests run in the folder of the package");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of a readable folder").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "ir"));
    paths.sort();
    assert!(!paths.is_empty(), "{folder} has no graphs");
    let graph = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let source = text.split("; ----").next().expect("a file begins with a graph");
        let graph = Graph::parse(source, &path.display().to_string()).unwrap_or_else(|e| panic!("{}", e[0]));
        (path, graph)
    };
    paths.into_iter().map(graph).collect()
}

/// Returns the shader of a kernel, or the reason why there is none. The shader is valid, and if the
/// kernel is small, has the results of the kernel.
fn printed(graph: &Graph, kernel: &FusedKernel) -> Result<String, NotPrinted> {
    if kernel.product().is_some() {
        return printed_product(graph, kernel);
    }
    let shader = kernel.to_wgsl(graph)?;
    validate(&shader.code);
    assert!(shader.workgroups.iter().all(|n| (1..=65_535).contains(n)), "{:?}", shader.workgroups);
    if kernel.axes.iter().product::<usize>() <= LARGEST && !has_halves(graph, &shader) && is_unchecked(graph, &shader) {
        check_results(graph, kernel, &shader);
    }
    Ok(shader.code)
}

/// Returns the functions of a kernel with a product, which are checked in a shader that multiplies.
fn printed_product(graph: &Graph, kernel: &FusedKernel) -> Result<String, NotPrinted> {
    let text = kernel.product_to_wgsl(graph)?;
    let product = graph.node(kernel.stages[0].node);
    let shape = |value: Value| graph.ty(value).element().shape.known().expect("the shapes of a kernel are known");
    let n: usize = kernel.axes.iter().product();
    let [a, b] = [0, 1].map(|i| shape(product.operands[i]));
    let (k, columns) = (a[a.len() - 1], b[b.len() - 1].max(1));
    let matrix = (a[a.len() - 2] * columns).max(1);
    // Right for the operands of a matmul, one matrix after the other.
    let entry = format!(
        "
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
    let i = group.x * 64u + thread;
    if i >= {n}u {{ return; }}
    var sum = 0.0f;
    for (var j = 0u; j < {k}u; j++) {{
        sum += operand0(i / {columns}u * {k}u + j) * operand1((i / {matrix}u * {k}u + j) * {columns}u + i % {columns}u);
    }}
    finish(i, sum);
}}
"
    );
    let shader = KernelShader {
        code: text.code.clone() + &entry,
        bindings: text.bindings,
        workgroups: [n.div_ceil(64).max(1), 1],
        can_fail: false,
    };
    validate(&shader.code);
    let is_long = n * k > LARGEST_PRODUCT && std::env::var_os("ANABRANCH_SLOW").is_none();
    let is_small = product.op.is(prim::MATMUL) && n > 0 && n <= LARGEST && !is_long;
    if is_small && !has_halves(graph, &shader) && is_unchecked(graph, &shader) {
        check_results(graph, kernel, &shader);
    }
    Ok(text.code)
}

/// Returns whether a shader has 16-bit floats, which this file's device lacks.
fn has_halves(graph: &Graph, shader: &KernelShader) -> bool {
    shader.bindings.iter().any(|&v| graph.ty(v).element().dtype.is_half())
}

/// Returns whether no shader with this text and these tensors was checked before. To run one in the
/// interpreter of shaders takes most of the time of these tests, and many are in several graphs.
fn is_unchecked(graph: &Graph, shader: &KernelShader) -> bool {
    static CHECKED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let types: Vec<String> = shader.bindings.iter().map(|&v| graph.ty(v).to_string()).collect();
    let text = format!("{}{:?}{}", shader.code, shader.workgroups, types.join(", "));
    CHECKED.lock().unwrap_or_else(PoisonError::into_inner).insert(text)
}

/// The largest number of elements of a kernel whose results are compared.
const LARGEST: usize = 4096;

/// The largest number of multiplications of a product whose results are compared, except in long
/// runs.
const LARGEST_PRODUCT: usize = 1 << 17;

/// Runs a shader on arbitrary inputs, and compares its results with those of the kernel.
fn check_results(graph: &Graph, kernel: &FusedKernel, shader: &KernelShader) {
    let n_inputs = shader.bindings.len() - kernel.outputs.len();
    let ty = |value: Value| graph.ty(value).element();
    // Indices are checked before.
    let end = |value: Value| {
        let indexed = kernel.inputs.iter().filter_map(|input| input.indexed);
        indexed.filter(|indexed| kernel.inputs[indexed.indices].value == value).map(|indexed| indexed.extent).min()
    };
    let tensors: Vec<HostTensor> =
        shader.bindings[..n_inputs].iter().enumerate().map(|(i, &value)| arbitrary(ty(value), i, end(value))).collect();
    let tensor = |value: Value| {
        let i = shader.bindings.iter().position(|&v| v == value).expect("every input has a binding");
        &tensors[i]
    };
    let outputs = (0..kernel.outputs.len()).map(|o| ty(kernel.output(graph, o)));
    let outputs = outputs.map(|ty| (ty.dtype, ty.shape.size().expect("the shapes of a kernel are known")));
    let outputs: Vec<(DType, usize)> = outputs.chain(shader.can_fail.then_some((DType::U32, 1))).collect();
    let inputs: Vec<&HostTensor> = tensors.iter().collect();
    let mut found = wgsl::run(&shader.code, shader.workgroups, &inputs, &outputs);
    let has_failed = shader.can_fail && matches!(found.pop(), Some(Buffer::U32(word)) if word != [0]);
    let expected = match fusion::run_kernel(graph, kernel, &tensor) {
        Ok(expected) => expected,
        Err(error) => {
            assert!(has_failed, "{error}\n{}", shader.code);
            return;
        }
    };
    assert!(!has_failed, "it has no error\n{}", shader.code);
    // The threads of a row reduce its elements in another order.
    let tolerance = if kernel.stages.iter().all(|stage| stage.work == StageWork::Map) { 0.0 } else { 1e-4 };
    for (expected, found) in expected.into_iter().zip(found) {
        let found = HostTensor::from_buffer(expected.shape().to_vec(), found);
        for (&x, &y) in numbers(&expected).iter().zip(&numbers(&found)) {
            let is_close = same_number(x, y) || (x - y).abs() <= tolerance * x.abs().max(1.0);
            assert!(is_close, "{expected}\n{found}\nof {inputs:?}\n{}", shader.code);
        }
    }
}

/// Returns a tensor of a type, with small numbers, or with indices below `end`.
fn arbitrary(ty: &TensorType, seed: usize, end: Option<usize>) -> HostTensor {
    let shape = ty.shape.known().expect("the shapes of a kernel are known");
    let n = shape.iter().product();
    let numbers = (0..n).map(|i| (i * 37 + seed * 11) as i32 % 41 - 20);
    let numbers: Vec<i32> = numbers.map(|x| end.map_or(x, |end| x.rem_euclid(end as i32))).collect();
    match ty.dtype {
        DType::F32 => HostTensor::new(shape, numbers.into_iter().map(|i| i as f32 * 0.1).collect::<Vec<f32>>()),
        DType::I32 => HostTensor::new(shape, numbers),
        DType::U32 => HostTensor::new(shape, numbers.into_iter().map(|i| i as u32).collect::<Vec<u32>>()),
        DType::Bool => HostTensor::new(shape, numbers.into_iter().map(|i| i % 3 == 0).collect::<Vec<bool>>()),
        other => panic!("WGSL has no {other}"),
    }
}

#[test]
fn shaders_of_kernels_are_those_of_the_golden_files() {
    for (path, graph) in golden_graphs("kernels") {
        let fusion = Fusion::find(&graph, &FuseEverything);
        let text = |kernel: &FusedKernel| match printed(&graph, kernel) {
            Ok(code) => code,
            Err(why) => format!("// Not printed: {why}.\n"),
        };
        let shaders: Vec<String> = fusion.kernels().iter().map(text).collect();
        check_golden(&path.with_extension("wgsl"), &shaders.join("\n"));
    }
}

/// Returns the only `while` at the top of a graph.
fn loop_of(graph: &Graph) -> Node {
    let nodes = &graph.region(graph.root()).nodes;
    *nodes.iter().find(|&&node| graph.as_while(node).is_some()).expect("the graph has a loop")
}

#[test]
fn shaders_of_loops_are_those_of_the_golden_files() {
    for (path, graph) in golden_graphs("loops") {
        let shader = LoopShader::new(&graph, loop_of(&graph)).unwrap_or_else(|why| panic!("{why}"));
        validate(&shader.code);
        check_golden(&path.with_extension("wgsl"), &shader.code);
    }
}

#[test]
fn shaders_of_parallel_loops_are_those_of_the_golden_files() {
    for (path, graph) in golden_graphs("parallel_loops") {
        let nodes = graph.region(graph.root()).nodes.iter().filter(|&&node| graph.as_while(node).is_some());
        let shaders: Vec<String> = nodes
            .map(|&node| ParallelLoopShader::new(&graph, node, 9).unwrap_or_else(|why| panic!("{why}")).code)
            .collect();
        assert!(!shaders.is_empty(), "{} has no loop", path.display());
        shaders.iter().for_each(|code| validate(code));
        check_golden(&path.with_extension("wgsl"), &shaders.join("\n"));
    }
    let of = |folder: &str, name: &str, max_buffers: usize| {
        let graphs = golden_graphs(folder);
        let (_, graph) = graphs.iter().find(|(_, graph)| graph.name == name).expect("there is such a graph");
        ParallelLoopShader::new(graph, loop_of(graph), max_buffers)
    };
    assert_eq!(of("parallel_loops", "rows", 8), Err(NotPrinted::Buffers(9)));
    assert_eq!(of("loops", "collatz", 9), Err(NotPrinted::DependentIterations));
}

#[test]
fn shaders_of_workgroups_are_those_of_the_golden_files() {
    for (path, graph) in golden_graphs("workgroup_loops") {
        let shader = |graph: &Graph| WorkgroupLoops::new(graph, MAX_LOOP_STEPS).shader(graph, loop_of(graph));
        let printed = shader(&graph).unwrap_or_else(|why| panic!("{why}"));
        validate(&printed.code);
        check_golden(&path.with_extension("wgsl"), &printed.code);
        // Many times as many elements are too many.
        let source = fs::read_to_string(&path).expect("it was read before");
        let large = [("24", "576"), (", 20]", ", 4800]"), ("=20", "=4800"), ("=10", "=2400")];
        let large = large.iter().fold(source, |text, (from, to)| text.replace(from, to));
        let large = Graph::parse(&large, "large.ir").unwrap_or_else(|e| panic!("{}", e[0]));
        assert_eq!(shader(&large), Err(NotPrinted::TooMuchWork), "{}", path.display());
    }
}

/// Checks the shaders of all loops over small tensors. Returns how many there are.
fn check_workgroup_loops(graph: &Graph) -> usize {
    let loops = WorkgroupLoops::new(graph, MAX_LOOP_STEPS);
    let mut n = 0;
    graph.visit_nodes(graph.root(), &mut |node| {
        if graph.as_while(node).is_some()
            && let Ok(shader) = loops.shader(graph, node)
        {
            validate(&shader.code);
            n += 1;
        }
    });
    n
}

#[test]
fn loops_of_the_corpus_have_shaders_for_workgroups() {
    let narrow = |graph: Graph| {
        let text = graph.to_string().replace("f64", "f32").replace("i64", "i32");
        Graph::parse(&text, "narrow.ir").ok()
    };
    let graphs = corpus::cases()
        .into_iter()
        .filter_map(|case| case.graph().ok())
        .chain(anabranch_benches::ALL.iter().flat_map(|(_, programs)| *programs).map(|(_, program)| program().graph()));
    let n: usize = graphs.filter_map(narrow).map(|graph| check_workgroup_loops(&graph)).sum();
    assert!(n >= 10, "{n} loops have shaders");
}

#[test]
fn loops_run_until_they_end_or_fail() {
    let graphs = golden_graphs("loops");
    let graph = |name: &str| &graphs.iter().find(|(_, graph)| graph.name == name).expect("there is such a graph").1;
    // The words after a run: the state, the loop variables and the captures.
    let run = |name: &str, words: &[u32]| -> Vec<u32> {
        let shader = LoopShader::new(graph(name), loop_of(graph(name))).unwrap_or_else(|why| panic!("{why}"));
        let words = HostTensor::new([words.len()], words.to_vec());
        let Buffer::U32(after) = wgsl::run_in_place(&shader.code, &words) else { panic!("the words stay words") };
        after
    };
    let [ends, goes_on, stuck] = LOOP_STATES;
    assert_eq!(run("collatz", &[9, 27, 0, 1, 2, 3, 0])[..3], [ends, 1, 111]);
    assert_eq!(run("collatz", &[9, 1, 0, 1, 2, 3, 0])[..3], [ends, 1, 0]);
    // With 0 and 1 for 1 and 3, the loop never ends.
    assert_eq!(run("collatz", &[9, 1, 0, 0, 2, 1, 0])[..2], [goes_on, 1]);
    let nested = |n: u32, flag: u32| {
        let words = [0, 1f32.to_bits(), 0.5f32.to_bits(), 0, n, 1, 0.5f32.to_bits(), flag];
        run("nested", &words)
    };
    let inputs = |n: i32| [HostTensor::scalar(1f32), HostTensor::new([1], vec![n]), HostTensor::scalar(true)];
    for n in [0, 1, 2, 5] {
        let expected = interp::run(graph("nested"), &inputs(n), &mut Vec::new(), Default::default())
            .unwrap_or_else(|e| panic!("{e}"));
        let after = nested(n as u32, 1);
        let found: Vec<f32> = after[1..3].iter().map(|&word| f32::from_bits(word)).collect();
        assert_eq!((after[0], after[3]), (ends, n as u32));
        for (expected, found) in expected.iter().zip(found) {
            assert!((expected.data::<f32>()[0] - found).abs() < 1e-5, "{expected} and {found}");
        }
    }
    // n, 0, 1, and the iterations of the loops in the condition and in the body.
    let condition = |inner, outer| run("condition", &[0, 0, 3, 0, 1, inner, outer])[..2].to_vec();
    assert_eq!(condition(4, 5), [ends, 3]);
    assert_eq!((condition(4, MAX_LOOP_STEPS), condition(MAX_LOOP_STEPS, 5)), (vec![stuck, 0], vec![stuck, 0]));
    assert_eq!(condition(MAX_LOOP_STEPS / 2, 5), [goes_on, 1]);
    assert_eq!(nested(3, 0)[..4], [stuck, 1f32.to_bits(), 0.5f32.to_bits(), 0]);
}

/// Counts of kernels by the reason why they have no shader. `None` counts shaders.
type Counts = BTreeMap<Option<NotPrinted>, usize>;

/// The target that joins no kernels of rows: those have more tensors than a shader, and sums of
/// columns as well.
struct FuseWithoutRows;

impl FusionTarget for FuseWithoutRows {
    fn computes(&self, graph: &Graph, node: Node) -> bool {
        FuseEverything.computes(graph, node)
    }

    fn max_inputs(&self) -> usize {
        FuseEverything.max_inputs()
    }

    fn max_operations(&self) -> usize {
        FuseEverything.max_operations()
    }

    fn reduces(&self, shape: &[usize], over: AxisSet) -> bool {
        FuseEverything.reduces(shape, over)
    }

    fn fuses_epilogue(&self, graph: &Graph, kernel: &FusedKernel, is_in_loop: bool) -> bool {
        FuseEverything.fuses_epilogue(graph, kernel, is_in_loop)
    }

    fn sums_batches(&self) -> bool {
        FuseEverything.sums_batches()
    }

    fn converts_operands(&self) -> bool {
        FuseEverything.converts_operands()
    }
}

/// Counts the kernels of some graphs, after the check of their shaders.
fn counts<'a>(graphs: impl IntoIterator<Item = &'a Graph>, target: &dyn FusionTarget) -> Counts {
    let mut counts = Counts::new();
    for graph in graphs {
        for kernel in Fusion::find(graph, target).kernels() {
            *counts.entry(printed(graph, kernel).err()).or_default() += 1;
        }
    }
    counts
}

/// Asserts the number of shaders, and that kernels without one have a reason of a kind.
#[track_caller]
fn check_counts(counts: &Counts, at_least: usize, is_expected: impl Fn(&NotPrinted) -> bool) {
    assert!(counts.get(&None).is_some_and(|&n| n >= at_least), "{counts:?}");
    let unexpected: Vec<_> = counts.keys().flatten().filter(|why| !is_expected(why)).collect();
    assert!(unexpected.is_empty(), "{unexpected:?} in {counts:?}");
}

#[test]
fn kernels_of_operations_have_shaders_or_reasons() {
    let graphs: Vec<Graph> = corpus::cases().iter().filter_map(|case| case.graph().ok()).collect();
    check_counts(&counts(&graphs, &FuseWithoutRows), 250, |why| {
        use NotPrinted::{CanFail, NoElements, Product, Type};
        matches!(why, Product(_) | Type(_) | CanFail(_) | NoElements)
    });
}

#[test]
fn kernels_of_benchmarks_have_shaders_or_reasons() {
    let programs = anabranch_benches::ALL.iter().flat_map(|(_, programs)| *programs);
    let graphs: Vec<Graph> = programs.map(|(_, program)| program().graph()).collect();
    // Those of rows without sums of columns have shaders, too.
    check_counts(&counts(&graphs, &FuseEverything), 550, |why| {
        use NotPrinted::{Buffers, NoFunction, Product, SeveralReductions, Type};
        matches!(why, Product(_) | Buffers(_) | Type(anabranch::DType::I64) | SeveralReductions | NoFunction(..))
    });
    let counts = counts(&graphs, &FuseWithoutRows);
    // Optimizers count their steps in `i64`.
    check_counts(&counts, 550, |why| {
        matches!(why, NotPrinted::Product(_) | NotPrinted::Buffers(_) | NotPrinted::Type(anabranch::DType::I64))
    });
    let large: usize =
        counts.iter().filter(|(why, _)| matches!(why, Some(NotPrinted::Buffers(_)))).map(|(_, n)| n).sum();
    // Those of scalars in the bodies of loops over examples among them.
    assert_eq!(large, 5, "kernels with too many tensors: {counts:?}");
}

/// Checks that every kernel of some graphs has a shader or a reason, with `f32` for `f64`, which
/// WGSL lacks.
pub fn check_kernels<'a>(graphs: impl IntoIterator<Item = &'a Graph>) {
    let narrow = |graph: &Graph| {
        let text = graph.to_string().replace("f64", "f32");
        Graph::parse(&text, "narrow.ir").unwrap_or_else(|e| panic!("{}\n{text}", e[0]))
    };
    let graphs: Vec<Graph> = graphs.into_iter().map(narrow).collect();
    let counts = counts(&graphs, &FuseWithoutRows);
    check_counts(&counts, 1, |why| !matches!(why, NotPrinted::NoFunction(..)));
}

/// Returns the graph of a softmax and its kernel, which has two reductions, one after the other.
fn softmax(rows: usize, columns: usize) -> (Graph, FusedKernel) {
    let text = "graph @softmax(%x: f32[4096, 1000], %mask: bool[1000]) -> (f32[4096, 1000], f32[4096, 1]) {
        %low = constant -1e9 : f32[]
        %all_low = broadcast_to %low {shape=[4096, 1000]}
        %kept = broadcast_to %mask {shape=[4096, 1000]}
        %masked = select %kept, %x, %all_low
        %largest = max %masked {axes=[1], keepdim=true}
        %each_largest = broadcast_to %largest {shape=[4096, 1000]}
        %less = sub %masked, %each_largest
        %e = exp %less
        %total = sum %e {axes=[1], keepdim=true}
        %each_total = broadcast_to %total {shape=[4096, 1000]}
        %y = div %e, %each_total
        %log = log %total
        return %y, %log
    }";
    let text = text.replace("4096", &rows.to_string()).replace("1000", &columns.to_string());
    let graph = Graph::parse(&text, "softmax.ir").unwrap_or_else(|e| panic!("{}", e[0]));
    let value = |name: &str| {
        let mut values = (0..graph.n_values()).map(Value::from_index);
        values.find(|&v| graph.value(v).name == Some(name)).expect("the graph has the value")
    };
    let node = |name: &str| graph.producer(value(name)).expect("a node computes the value");
    let (both, row) = (AxisSet::first(2), AxisSet::first(1));
    let over = both.without(row);
    let stage = |name: &str, work: StageWork, sources: &[StageSource], along: AxisSet| KernelStage {
        node: node(name),
        work,
        sources: sources.to_vec(),
        along,
    };
    let map = |name: &str, sources: &[StageSource]| stage(name, StageWork::Map, sources, both);
    let reduce = |name: &str, of: usize, by: Combiner| {
        stage(name, StageWork::Reduce { over, by }, &[StageSource::Stage(of)], row)
    };
    let input = |name: &str, map: &[Coord]| KernelInput::at(value(name), map.to_vec());
    use StageSource::{Input, Stage};
    let kernel = FusedKernel {
        axes: vec![rows, columns],
        inputs: vec![
            input("mask", &[Coord::axis(1)]),
            input("x", &[Coord::axis(0), Coord::axis(1)]),
            input("low", &[]),
        ],
        stages: vec![
            map("masked", &[Input(0), Input(1), Input(2)]),
            reduce("largest", 0, Combiner::Max),
            map("less", &[Stage(0), Stage(1)]),
            map("e", &[Stage(2)]),
            reduce("total", 3, Combiner::Sum),
            map("y", &[Stage(3), Stage(4)]),
            stage("log", StageWork::Map, &[Stage(4)], row),
        ],
        outputs: vec![5, 6],
    };
    assert_eq!(kernel.verify(&graph), Ok(()));
    (graph, kernel)
}

#[test]
fn a_kernel_with_two_reductions_reads_each_row_three_times() {
    let (graph, kernel) = softmax(4096, 1000);
    let shader = printed(&graph, &kernel).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(shader.matches("for (var i = thread").count(), 3);
    check_golden(Path::new("golden/kernels/softmax.wgsl"), &shader);
    // The results of small kernels are compared.
    for (rows, columns) in [(1, 1), (3, 5), (2, 700)] {
        let (graph, kernel) = softmax(rows, columns);
        printed(&graph, &kernel).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn kernels_of_many_elements_read_and_write_four_at_once() {
    let source = |start: usize, rows: usize, columns: usize| {
        let (wide, end, all) = (columns + 8, start + columns, format!("[{rows}, {columns}]"));
        format!(
            "graph @f(%x: f32{all}, %row: f32[{columns}], %column: f32[{rows}, 1], %wide: f32[{rows}, {wide}], %i: i32{all})
    -> (f32{all}, bool{all}) {{
    %half = constant 0.5 : f32[]
    %h = broadcast_to %half {{shape={all}}} : f32{all}
    %r = broadcast_to %row {{shape={all}}} : f32{all}
    %c = broadcast_to %column {{shape={all}}} : f32{all}
    %part = slice %wide {{axis=1, start={start}, end={end}, step=1}} : f32{all}
    %a = mul %x, %h : f32{all}
    %b = add %a, %r : f32{all}
    %d = mul %b, %c : f32{all}
    %e = add %d, %part : f32{all}
    %z = cast %i {{dtype=f32}} : f32{all}
    %g = add %e, %z : f32{all}
    %less = lt %g, %x : bool{all}
    return %g, %less
}}
"
        )
    };
    for (start, rows, columns, in_fours) in [(4, 33, 2000, true), (3, 256, 256, false), (4, 258, 255, false)] {
        let graph = Graph::parse(&source(start, rows, columns), "f.ir").unwrap_or_else(|e| panic!("{}", e[0]));
        let fusion = Fusion::find(&graph, &FuseEverything);
        let is_printed_in_fours = |kernel: &FusedKernel| {
            let shader = kernel.to_wgsl(&graph).unwrap_or_else(|why| panic!("{why}"));
            validate(&shader.code);
            check_results(&graph, kernel, &shader);
            shader.code.contains("array<vec4<")
        };
        let found: Vec<bool> = fusion.kernels().iter().map(is_printed_in_fours).collect();
        assert_eq!(found.iter().all(|&is| is), in_fours, "{start}, {rows}, {columns}: {found:?}");
    }
}

#[test]
fn a_kernel_that_no_template_fits_has_a_reason() {
    let (graph, kernel) = softmax(4096, 1000);
    let reason = |change: &dyn Fn(&mut FusedKernel)| {
        let mut kernel = kernel.clone();
        change(&mut kernel);
        printed(&graph, &kernel).expect_err("no template fits").to_string()
    };
    let columns = |kernel: &mut FusedKernel| {
        let over = AxisSet::first(1);
        kernel.stages[4].work = StageWork::Reduce { over, by: Combiner::Sum };
    };
    assert_eq!(reason(&columns), "its reductions are over different axes");
    assert_eq!(reason(&|kernel| kernel.axes = vec![1 << 20, 1 << 20]), "its indices do not fit into 31 bits");
    assert_eq!(reason(&|kernel| kernel.axes[0] = 0), "it has no elements");
}
