//! Sources of samples obey the rules of `leyline::source`.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;

use leyline_testkit::source::SourceHarness;
use tolaria::batch::source::{ArrayFile, ArrayLayout, ArraySource, Element, ReadAs, TokenLayout, TokenSource};

/// Bytes that differ from place to place, none of which is 200 or more.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| u8::try_from((i * 37 + i / 200) % 200).unwrap()).collect()
}

/// A folder that goes with the harness which holds it.
fn written(name: &str, bytes: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(name), bytes).unwrap();
    dir
}

fn shorten(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

mod arrays {
    use super::*;

    fn array(dir: &Path, name: &str, dims: &[usize], read_as: ReadAs) -> ArrayFile {
        let layout = ArrayLayout { element: Element::U8, offset: 8, dims: dims.to_vec(), read_as };
        ArrayFile::open(&dir.join(name), layout).unwrap()
    }

    leyline_testkit::source_conformance!(|| {
        let dir = written("inputs.bin", &bytes(8 + 40 * 6));
        std::fs::write(dir.path().join("targets.bin"), bytes(8 + 40)).unwrap();
        let inputs = array(dir.path(), "inputs.bin", &[2, 3], ReadAs::F32 { scale: 0.5 });
        let source = ArraySource::new(inputs, array(dir.path(), "targets.bin", &[], ReadAs::U32)).unwrap();
        SourceHarness { source, damage: Some(Box::new(move |_| shorten(&dir.path().join("inputs.bin")))) }
    });
}

mod tokens {
    use super::*;

    leyline_testkit::source_conformance!(|| {
        let dir = written("tokens.bin", &bytes(2 * 101));
        let count = |n| NonZeroUsize::new(n).unwrap();
        let layout = TokenLayout { element: Element::U16, window: count(5), vocabulary: count(1 << 16) };
        let source = TokenSource::open(&dir.path().join("tokens.bin"), layout).unwrap();
        SourceHarness { source, damage: Some(Box::new(move |_| shorten(&dir.path().join("tokens.bin")))) }
    });
}
