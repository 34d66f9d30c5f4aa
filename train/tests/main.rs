//! The tests of the trainer.

mod fits;
mod kills;
mod late_ends;
mod program;
mod resumptions;
#[cfg(unix)]
mod signals;
#[expect(dead_code, reason = "the tests of checkpoints use more of it")]
#[path = "../../checkpoint/tests/support.rs"]
mod support;
#[path = "../../checkpoint/tests/victims.rs"]
mod victims;
