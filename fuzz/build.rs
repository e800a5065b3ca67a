//! Has `src/watched.rs` told of the counters of executions, instead of the fuzzer.

fn main() {
    for name in ["8bit_counters", "pcs"] {
        println!("cargo::rustc-link-arg-bins=-Wl,--wrap=__sanitizer_cov_{name}_init");
    }
}
