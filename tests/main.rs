//! The tests across crates, in one program: each file is a module. A test that needs its own
//! process, for example because it counts allocations or changes something global, is a separate
//! `[[test]]` in `Cargo.toml`.

#[macro_use]
mod support;
mod bits;
mod checkpoints;
mod commit_loops;
mod comparisons;
mod control_flow;
mod control_functions;
mod corpus_control;
mod custom_gradients;
mod dead_values;
mod deadlines;
mod deferred;
mod devices;
mod edge_cases;
mod effects;
mod embeddings;
mod errors;
mod example_data;
mod gpu;
mod gpu_control;
mod gradients;
mod halves;
mod hidden_mutation;
mod host_code;
mod jumps;
mod lanes;
mod layers;
mod lists;
mod lists_in_place;
mod loop_gradients;
mod loop_state;
mod losses;
mod metrics;
mod operations;
mod optimizers;
mod peer_corpora;
mod peer_gpus;
mod peer_training;
mod peers;
mod plans;
mod prune;
mod public_api;
mod queue_cases;
mod queues;
mod recompute;
mod sequences;
mod sessions;
mod several_devices;
mod shaders;
mod small_tensors;
mod strings;
mod tidy;
mod ui;
