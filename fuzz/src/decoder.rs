//! The decoder that `ESPER_DECODER` names, given what the fuzzer makes of the files in `corpus/NAME/`.
//!
//! Before it begins, what the decoder reads in real life is written there.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use integration_tests::decoders::{Decoder, decoder};

static DECODER: LazyLock<&Decoder> = LazyLock::new(|| {
    let decoder = decoder(&std::env::var("ESPER_DECODER").expect("ESPER_DECODER is the name of a decoder"));
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(decoder.name);
    std::fs::create_dir_all(&dir).expect("a folder for the corpus");
    for (index, sample) in (decoder.samples)().iter().enumerate() {
        std::fs::write(dir.join(format!("sample-{index}")), sample).expect("a file of the corpus");
    }
    decoder
});

libfuzzer_sys::fuzz_target!(init: drop(LazyLock::force(&DECODER)), |bytes: &[u8]| drop((DECODER.read)(bytes)));
