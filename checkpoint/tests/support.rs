//! Folders of tests, modules of variables, and random numbers.

use anabranch::extend::VarPath;
use anabranch::{AnyVar, HostTensor, Module, Session};
use std::path::{Path, PathBuf};

/// A folder that is removed with its contents.
pub struct TestFolder(PathBuf);

impl TestFolder {
    pub fn new(name: &str) -> TestFolder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("the folder of builds can be written");
        TestFolder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A module with variables of these paths.
pub struct Vars(pub Vec<(String, AnyVar)>);

impl Vars {
    pub fn new(values: &[(&str, HostTensor)]) -> Vars {
        Vars(values.iter().map(|(path, value)| (path.to_string(), AnyVar::new(*path, value.clone()))).collect())
    }

    /// Returns other variables of the same paths and types, with other values.
    pub fn zeros(&self) -> Vars {
        let zeros = self.0.iter().map(|(path, var)| {
            let value = HostTensor::zeros(var.ty().dtype, var.init().shape());
            (path.clone(), AnyVar::new(path.clone(), value))
        });
        Vars(zeros.collect())
    }

    pub fn values(&self, session: &Session) -> Vec<(String, HostTensor)> {
        session.state(self).expect("the variables can be read")
    }

    pub fn set(&self, session: &Session, values: &[(&str, HostTensor)]) {
        let values: Vec<_> = values.iter().map(|(path, value)| (path.to_string(), value.clone())).collect();
        session.load_state(self, &values).expect("the values fit");
    }
}

impl Module for Vars {
    fn visit(&self, path: &mut VarPath, visit: &mut dyn FnMut(&str, &AnyVar)) {
        self.0.iter().for_each(|(name, var)| path.with(name, |path| visit(path.as_str(), var)));
    }
}

/// Random numbers: xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number less than `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }

    pub fn flip(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// Returns whether long runs are asked for.
pub fn is_slow() -> bool {
    std::env::var_os("ANABRANCH_SLOW").is_some_and(|value| value == "1")
}
