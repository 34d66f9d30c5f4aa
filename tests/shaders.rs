//! The WGSL of scalar functions is valid, and is that of the golden file.

use anabranch::DType;
use anabranch::dsl::ops;
use anabranch::dsl::scalars::wgsl::PRELUDE;
use anabranch::extend::{Grad, Prim, UnaryFunction, scalars::Real};
use std::fs;

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
    let shader = shader();
    let module = naga::front::wgsl::parse_str(&shader).unwrap_or_else(|e| panic!("{}", e.emit_to_string(&shader)));
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), Default::default());
    validator.validate(&module).unwrap_or_else(|e| panic!("{}", e.emit_to_string(&shader)));
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
}

#[test]
fn printed_functions_are_those_of_the_golden_file() {
    const FILE: &str = "golden/scalar.wgsl";
    let shader = shader();
    if std::env::var_os("BLESS").is_some() {
        fs::write(FILE, &shader).expect("tests run in the folder of the package");
    }
    let expected = fs::read_to_string(FILE).expect("there is a golden file");
    let differs = shader.lines().zip(expected.lines()).find(|(now, file)| now != file);
    assert!(shader == expected, "{FILE}: {differs:?}\nBLESS=1 writes the functions as they are now");
}
