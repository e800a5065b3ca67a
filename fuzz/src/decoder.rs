//! The decoder that `ESPER_DECODER` names, given what the fuzzer makes of the files in `corpus/NAME/`.
//!
//! Before it begins, what the decoder reads in real life is written there.
#![no_main]

mod watched;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use integration_tests::decoders::{Decoder, decoder};

static DECODER: LazyLock<&Decoder> = LazyLock::new(|| {
    let decoder = decoder(&std::env::var("ESPER_DECODER").expect("ESPER_DECODER is the name of a decoder"));
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(decoder.name);
    std::fs::create_dir_all(&dir).expect("a folder for the corpus");
    for (index, sample) in (decoder.samples)().iter().enumerate() {
        std::fs::write(dir.join(format!("sample-{index}")), sample).expect("a file of the corpus");
    }
    // An input that panics is left to the fuzzer, which keeps it.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    watched::reached_by(|| {
        let given = std::env::args().skip(1).map(PathBuf::from).filter(|path| path.is_dir());
        for file in given.chain([dir]).flat_map(std::fs::read_dir).flatten().flatten() {
            let bytes = std::fs::read(file.path()).unwrap_or_default();
            std::panic::catch_unwind(|| (decoder.read)(&bytes)).ok();
        }
    });
    std::panic::set_hook(hook);
    decoder
});

libfuzzer_sys::fuzz_target!(init: drop(LazyLock::force(&DECODER)), |bytes: &[u8]| drop((DECODER.read)(bytes)));
