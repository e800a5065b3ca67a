//! Damaged and odd files of each format through the command: each is refused with its name, the place in it and what is accepted,
//! exit code 2, in bounded memory, and nothing is left behind; or it is only odd, and trains.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod arrays;
mod check;
mod columns;
mod images;
mod make;
mod rows;
mod tokens;
