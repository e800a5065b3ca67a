//! Writes what the decoders read in real life to `fuzz/corpus/NAME/`, from which the fuzzer starts.

use std::path::Path;

use integration_tests::decoders::DECODERS;

fn main() -> std::io::Result<()> {
    for decoder in DECODERS {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(decoder.name);
        std::fs::create_dir_all(&dir)?;
        for (index, sample) in (decoder.samples)().iter().enumerate() {
            std::fs::write(dir.join(format!("sample-{index}")), sample)?;
        }
    }
    Ok(())
}
