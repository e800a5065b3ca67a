//! Damaged and odd files of each format: refused at their place, with what is accepted, and without the memory that they claim.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use esper_data::{DataConfig, DataName, Error, TargetKind, load};

/// A folder with files, and what loading one of them says.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn load(&self, path: &Path) -> Result<(Vec<usize>, TargetKind, usize), String> {
        let shown = |error: Error| error.to_string().replace(&format!("{}/", self.0.path().display()), "");
        let prepared = load(&DataConfig::new(DataName::File(path.into()))).map_err(shown)?;
        let table = &prepared.splits.train;
        Ok((table.sample_shape().to_vec(), table.targets().kind(), table.num_outputs()))
    }
}

#[track_caller]
fn check_refused(name: &str, bytes: &[u8], message: &str) {
    let folder = Folder::new();
    let path = folder.write(name, bytes);
    let found = folder.load(&path).unwrap_err();
    assert!(found.starts_with(name) && found.contains(message), "{found}\n   lacks: {message}");
}

fn npy(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}");
    let length = u16::try_from(header.len()).unwrap();
    [b"\x93NUMPY\x01\x00".as_slice(), &length.to_le_bytes(), header.as_bytes(), data].concat()
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// 30 rows of two inputs and a class.
fn matrix() -> Vec<u8> {
    floats((0_u8..30).flat_map(|row| [f32::from(row), f32::from(row % 7), f32::from(row % 3)]))
}

#[test]
fn damaged_and_odd_npy_files_are_refused_by_what_is_wrong() {
    let good = npy("<f4", "False", "30, 3", &matrix());
    let folder = Folder::new();
    assert_eq!(folder.load(&folder.write("a.npy", &good)), Ok((vec![2], TargetKind::Classes, 3)));
    // The first bytes tell the format where the name does not.
    assert_eq!(folder.load(&folder.write("a.bin", &good)), Ok((vec![2], TargetKind::Classes, 3)));
    for (bytes, message) in [
        (vec![], "found other first bytes, expected those of an npy file"),
        (b"\x93NUMP".to_vec(), "found other first bytes"),
        (b"\x93NUMPY".to_vec(), "found an end within the header, expected a whole npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff{}".to_vec(), "found an end within the header"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}".to_vec(), "found an end within the header"),
        (b"\x93NUMPY\x09\x00\x02\x00{}".to_vec(), "found version 9, expected version 1, 2 or 3 of npy"),
        (
            b"\x93NUMPY\x01\x00\x02\x00{}".to_vec(),
            "found the header `{}`, expected `descr`, `fortran_order` and `shape`",
        ),
        (
            npy("<f4", "False", "30, 3", &matrix()[1..]),
            "found 359 bytes of numbers, expected 360 bytes for the shape [30, 3]",
        ),
        (npy("<f4", "False", "30, 3", &[matrix(), vec![0]].concat()), "found more bytes of numbers, expected 360"),
        (
            npy("<f4", "False", "1152921504606846976, 3", &matrix()),
            "found the shape [1152921504606846976, 3], expected sizes",
        ),
        (npy("<f4", "False", "18446744073709551615, 18446744073709551615", &[]), "expected sizes above 0 with at most"),
        (npy("<f4", "False", "99999999999999999999999, 3", &[]), "expected `descr`, `fortran_order` and `shape`"),
        (npy("<f4", "False", "0, 3", &[]), "found the shape [0, 3]"),
        (npy("<f4", "False", "30, -3", &matrix()), "expected `descr`, `fortran_order` and `shape`"),
        (npy("<f4", "True", "30, 3", &matrix()), "found columns first (fortran_order), expected rows first"),
        (npy("<c8", "False", "15, 3", &matrix()), "found numbers of the type `<c8`, expected bool, u8"),
        (npy("|O", "False", "30, 3", &matrix()), "found numbers of the type `|O`"),
        (
            npy("<f4", "False", "90,", &matrix()),
            "found the shape [90], expected (N, F + 1), the target last; or two arrays",
        ),
        (npy("<f4", "False", "90, 1", &matrix()), "found one column, expected 2 or more: features and a target"),
        (npy("<f4", "False", "1, 2", &floats([f32::NAN, 0.0])), "found NaN in sample 0, expected finite numbers"),
        (npy("<f4", "False", "1, 2", &floats([0.0, f32::INFINITY])), "found the target inf in sample 0"),
    ] {
        check_refused("a.npy", &bytes, message);
    }
}

#[test]
fn every_cut_of_an_array_is_refused() {
    let good = npy("<f4", "False", "30, 3", &matrix());
    let folder = Folder::new();
    for length in 0..good.len() {
        let path = folder.write("a.npy", &good[..length]);
        assert!(folder.load(&path).is_err(), "cut at {length}");
    }
}

/// An archive of members that are stored as they are.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in members {
        writer.start_file(*name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

#[test]
fn damaged_and_odd_npz_files_are_refused_by_what_is_wrong() {
    let inputs = npy("<f4", "False", "30, 1, 3", &matrix());
    let classes: Vec<u8> = (0_u8..30).map(|row| row % 2).collect();
    let targets = npy("|u1", "False", "30,", &classes);
    let values = npy("<f4", "False", "30, 2", &floats((0_u8..60).map(|value| f32::from(value) / 8.0)));
    let pair = |x: &str, y: &str, targets: &[u8]| archive(&[(x, &inputs), (y, targets)]);
    let folder = Folder::new();
    for (bytes, expected) in [
        (pair("x.npy", "y.npy", &targets), (vec![1, 3], TargetKind::Classes, 2)),
        (pair("X.npy", "y.npy", &targets), (vec![1, 3], TargetKind::Classes, 2)),
        (pair("inputs.npy", "targets.npy", &values), (vec![1, 3], TargetKind::Values, 2)),
    ] {
        assert_eq!(folder.load(&folder.write("a.npz", &bytes)), Ok(expected));
    }
    let good = pair("x.npy", "y.npy", &targets);
    let mut flipped = good.clone();
    let at = good.windows(8).position(|bytes| bytes == &matrix()[8..16]).unwrap();
    flipped[at] ^= 1;
    for (bytes, message) in [
        (vec![], "expected an archive of arrays, as `numpy.savez` writes it"),
        (b"PK\x03\x04".to_vec(), "expected an archive of arrays"),
        (good[..good.len() / 2].to_vec(), "expected an archive of arrays"),
        (flipped, "found `x` with a wrong check sum"),
        (archive(&[]), "found no arrays, expected `inputs` and `targets`, or `x` and `y`"),
        (archive(&[("x.npy", &inputs)]), "found the arrays `x`, expected `inputs` and `targets`, or `x` and `y`"),
        (archive(&[("x", &inputs), ("y", &targets)]), "found no arrays"),
        (pair("x.npy", "Y.npy", &targets), "found the arrays `x`, `Y`"),
        (pair("x.npy", "y.npy", &targets[..20]), "a.npz: `y`: found an end within the header"),
        (pair("x.npy", "y.npy", b"text"), "a.npz: `y`: found other first bytes"),
        (
            pair("x.npy", "y.npy", &npy("|u1", "False", "29,", &classes[..29])),
            "found 29 targets, expected 30, one per sample",
        ),
        (pair("x.npy", "y.npy", &npy("|u1", "False", "30, 1, 1", &classes)), "found targets of the shape [30, 1, 1]"),
        (pair("x.npy", "y.npy", &npy("|u1", "False", "30,", &[1; 30])), "found the label `1` in every row of `y`"),
        (pair("x.npy", "y.npy", &npy("<U3", "False", "30,", &classes)), "found numbers of the type `<U3`"),
        (
            pair("x.npy", "y.npy", &npy("<f4", "False", "30,", &floats([f32::NAN; 30]))),
            "found the target NaN in sample 0",
        ),
    ] {
        check_refused("a.npz", &bytes, message);
    }
}

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

#[test]
fn damaged_and_odd_safetensors_files_are_refused_by_what_is_wrong() {
    let classes: Vec<u8> = (0_u8..30).map(|row| row % 2).collect();
    let data = [matrix(), classes.clone()].concat();
    let header = |x: &str, y: &str| {
        format!(
            r#"{{"x":{{"dtype":"F32","shape":{x},"data_offsets":[0,360]}},"y":{{"dtype":"U8","shape":{y},"data_offsets":[360,390]}}}}"#
        )
    };
    let good = safetensors(&header("[30,3]", "[30]"), &data);
    let folder = Folder::new();
    assert_eq!(folder.load(&folder.write("a.safetensors", &good)), Ok((vec![3], TargetKind::Classes, 2)));
    let whole = "expected a whole safetensors file";
    for (bytes, message) in [
        (vec![], whole),
        (vec![0; 7], whole),
        (u64::MAX.to_le_bytes().to_vec(), whole),
        ((1_u64 << 60).to_le_bytes().to_vec(), whole),
        (safetensors("{", &[]), whole),
        (safetensors("[]", &[]), whole),
        (good[..good.len() - 1].to_vec(), whole),
        ([good.as_slice(), &[0]].concat(), whole),
        (safetensors(&header("[1152921504606846976,3]", "[30]"), &data), whole),
        (safetensors(&header("[30,4]", "[30]"), &data), whole),
        (safetensors(&header("[30,3]", "[30]").replace("F32", "F99"), &data), whole),
        (safetensors(&header("[30,3]", "[30]").replace("[0,360]", "[8,368]"), &data), whole),
        (safetensors("{}", &[]), "found no arrays, expected `inputs` and `targets`, or `x` and `y`"),
        (safetensors(&header("[30,3]", "[30]").replace("\"y\"", "\"z\""), &data), "found the arrays `x`, `z`"),
        (safetensors(&header("[45,2]", "[30]"), &data), "found 30 targets, expected 45, one per sample"),
        (safetensors(&header("[30,3]", "[30,1,1]"), &data), "found targets of the shape [30, 1, 1]"),
        (
            safetensors(&header("[60,3]", "[30]").replace("F32", "F16"), &data),
            "`x`: found numbers of the type F16, expected bool, u8",
        ),
        (safetensors(&header("[30,3]", "[30]"), &[floats([f32::NAN; 90]), classes].concat()), "found NaN in sample 0"),
    ] {
        check_refused("a.safetensors", &bytes, message);
    }
}

#[test]
fn damaged_and_odd_idx_files_are_refused_by_what_is_wrong() {
    let idx = |kind: u8, sizes: &[u32], data: &[u8]| -> Vec<u8> {
        let sizes: Vec<u8> = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
        [&[0, 0, kind, u8::try_from(sizes.len() / 4).unwrap()], sizes.as_slice(), data].concat()
    };
    let (images, labels) = ("my-images-idx3-ubyte", "my-labels-idx1-ubyte");
    let label_bytes: Vec<u8> = (0_u8..30).map(|row| row % 2).collect();
    let good_labels = idx(8, &[30], &label_bytes);
    let good = idx(8, &[30, 1, 2], &[7, 9].repeat(30));
    let with = |images_bytes: &[u8], labels_bytes: Option<&[u8]>| {
        let folder = Folder::new();
        if let Some(bytes) = labels_bytes {
            folder.write(labels, bytes);
        }
        folder.load(&folder.write(images, images_bytes))
    };
    assert_eq!(with(&good, Some(&good_labels)), Ok((vec![1, 2], TargetKind::Classes, 2)));
    let big: Vec<u8> = (0_u8..60).flat_map(|value| f32::from(value).to_be_bytes()).collect();
    assert_eq!(with(&idx(0x0d, &[30, 2], &big), Some(&good_labels)), Ok((vec![2], TargetKind::Classes, 2)));
    let good_labels = good_labels.as_slice();
    for (image_bytes, label_bytes, message) in [
        (vec![], Some(good_labels), "my-images-idx3-ubyte: length is 0 bytes, expected a header"),
        (vec![0, 0, 8], Some(good_labels), "length is 3 bytes"),
        (vec![0, 0, 8, 3, 0, 0], Some(good_labels), "expected a header with 3 sizes"),
        (vec![1, 2, 3, 4], Some(good_labels), "magic number is 0x01020304, expected 0x0000TTDD"),
        (vec![0, 0, 7, 1], Some(good_labels), "magic number is 0x00000701"),
        (vec![0, 0, 8, 0], Some(good_labels), "magic number is 0x00000800, expected 1 or more dimensions"),
        (idx(8, &[0, 1, 2], &[]), Some(good_labels), "size is 0, expected sizes above 0"),
        (idx(8, &[u32::MAX; 3], &[1]), Some(good_labels), "size is 4294967295"),
        (idx(8, &[30, 1, 2], &[7; 59]), Some(good_labels), "length is 59 bytes after the header, expected 60 bytes"),
        (idx(8, &[30, 1, 2], &[7; 61]), Some(good_labels), "length is more bytes after the header, expected 60 bytes"),
        (idx(0x0d, &[30, 1, 2], &f32::NAN.to_be_bytes().repeat(60)), Some(good_labels), "found NaN in sample 0"),
        (
            good.clone(),
            None,
            "found no file of labels beside `my-images-idx3-ubyte`, expected `…images-idx3-ubyte` and",
        ),
        (
            good.clone(),
            Some(&good_labels[..9]),
            "my-labels-idx1-ubyte: length is 1 bytes after the header, expected 30",
        ),
        (good.clone(), Some(&[0, 0, 8, 1, 0, 0, 0, 1, 5]), "found 1 targets, expected 30, one per sample"),
        (good.clone(), Some(&[]), "my-labels-idx1-ubyte: length is 0 bytes"),
    ] {
        let found = with(&image_bytes, label_bytes).unwrap_err();
        assert!(found.contains(message), "{found}\n   lacks: {message}");
    }
}

#[test]
fn a_file_of_no_known_format_is_answered_with_all_of_them() {
    let folder = Folder::new();
    let path = folder.write("a.xyz", b"hello");
    let found = folder.load(&path).unwrap_err();
    assert!(found.starts_with(
        "data.format: missing: neither the name nor the first bytes of a.xyz tell it; expected one of csv, npy"
    ));
    assert_eq!(folder.load(&folder.0.path().join("absent.npy")).unwrap_err(), "cannot read absent.npy");
}
