//! Attention of one token after the other, over keys and values that are kept in place.
//!
//! ```text
//!   position ──► rows of tables (rotary angles, embeddings)
//!      │   q, k, v of n new tokens ──► KvCache: k, v written at the position ──► softmax(q Kᵀ / √d) V over what is filled
//!      └──advance(n)──► next call
//! ```
//! All addresses and shapes stay what they are from call to call, and the place of the next token is a number on the device. So
//! a whole step of decoding, the choice of the next token included, is one graph that is replayed.

mod cache;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod cuda;
mod position;

pub use cache::KvCache;
pub use position::Position;

#[cfg(test)]
mod tests;
