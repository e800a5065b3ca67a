//! A target of the fuzzer: the decoder that has the name of the program.
#![no_main]

use std::sync::LazyLock;

use integration_tests::decoders::{Decoder, decoder};

static DECODER: LazyLock<&Decoder> = LazyLock::new(|| decoder(env!("CARGO_BIN_NAME")));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop((DECODER.read)(bytes)));
