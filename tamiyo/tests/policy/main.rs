//! The policy through its public interface: tables, properties, and whole lives in a scripted world.
#![expect(clippy::unwrap_used, reason = "a test says by its panic what is wrong")]

mod support;
mod world;
mod budget;
mod risk;
mod heuristic;
mod closing;
mod earlier;
mod controls;
mod service;
mod properties;
mod learned;
mod lives;
