//! `esper study`: the same host, data order and number of steps under several policies, over paired random seeds.
//!
//! A seed fixes the initial weights, the division of the data and the order of samples; the arms of a pair differ in
//! the policy only. Test data are read once per run, after its last epoch.

mod paired;
mod file;
mod dice;
mod arms;
mod table;
mod result;
mod page;
mod command;

pub use command::{StudyArgs, command};
pub use paired::{PairedDifference, mean_and_deviation, upper_bound};
