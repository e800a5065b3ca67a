//! Programs as text, one line per node, and back.
//!
//! ```text
//!   blocks x0=48 g1=48                        bytes; x: external, a: arena, g: allocated by the graph
//!   %0 alloc g1
//!   %1 zero g1[0..48]
//!   %2 kernel relu pointwise [12] (x0 r[0..48], g1 w[0..48]) 0:f32 -> 1:f32 { load 0; relu $0 }
//!   %3 copy g1[0..48] to x0[0..48]
//!   %4 free g1 after [0 3]                    without `after`: after the node before alone
//! ```
//!
//! # Nodes
//! `alloc`, `free`, `empty`, `zero REGION`, `fill REGION VALUE width BYTES`, `copy REGION to REGION`, and
//! - `kernel NAME [from RECORDED] EFFECT (POINTERS) …`: `unknown`, `known` or `pointwise [SHAPE]`, then what each element
//!   is; `grid [X Y Z] block [X Y Z] shared BYTES`, `words [..]` and `bytes [..]` where they are not the plain ones;
//! - `fused ELEMENTS [by COLUMNS] (POINTERS) …`: code of the compiler's own; its name, launch and source follow from the rest.
//!   `pending` stands behind it until the source is written. A recorded reduction of rows is `kernel NAME fused …`.
//!
//! A pointer is a block, `+OFFSET`, and what it may do: `r` reads, `w` writes all, `w?` writes some, `rw` reads and writes
//! all, `u` reads and may write; `align`, `word` and `value` where they are not the plain ones. Of an element-wise kernel
//! follow operands `POINTER:TYPE`, with strides `[..]` or with `(SIZE:STRIDE ..)` where they are not contiguous, and after
//! `->` outputs `POINTER:TYPE=$STEP`, or `=row $STEP` with one element per row; then the steps, which name earlier ones `$0`, `$1`, …
//! A comment goes from `#` to the end of the line.

mod names;
mod print;
mod lexer;
mod parse;
mod kernel;
mod header;
mod reproducer;

pub use lexer::ParseError;
