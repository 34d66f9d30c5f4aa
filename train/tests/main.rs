//! The tests of the trainer.
