//! Arrays: npy, npz, safetensors, IDX.

use crate::check::{Case, Content, check, of_any_format};
use crate::make::{Member, deflate, floats, gzip, gzip_bomb, idx, labels, matrix, npy, npy_with, safetensors, zip};

const NO_HEADER: &[&str] = &["expected `descr`, `fortran_order` and `shape`"];
const ARCHIVE: &[&str] = &["expected an archive of arrays, as `numpy.savez` writes it"];
const WHOLE: &[&str] = &["expected a whole safetensors file"];

#[test]
fn damaged_and_odd_npy_files() {
    let good = || npy("<f4", "False", "30, 3", &matrix());
    let big: Vec<u8> =
        matrix().chunks(4).flat_map(|number| number.iter().rev().copied().collect::<Vec<u8>>()).collect();
    let mut cases = of_any_format("a.npy");
    cases.extend([
        Case::refused("a.npy", "", &["found other first bytes, expected those of an npy file"]),
        Case::refused("a.npy", "<!DOCTYPE html>", &["found other first bytes"]),
        Case::refused("a.npy", good()[..40].to_vec(), &["found an end within the header"]),
        Case::refused("a.npy", good()[..good().len() - 1].to_vec(), &["found 359 bytes", "expected 360 bytes"]),
        Case::refused("a.npy", [good(), vec![0]].concat(), &["found more bytes of numbers, expected 360 bytes"]),
        Case::refused("a.npy", Content::Sparse(good(), 6 << 30), &["found more bytes of numbers, expected 360"]),
        Case::refused("a.npy", Content::Sparse(vec![0], 6 << 30), &["found other first bytes"]),
        Case::refused("a.npy", npy("<f4", "False", "600000000, 3", &matrix()), &["found 360 bytes", "7200000000"]),
        Case::refused("a.npy", npy("<f8", "False", "2000000000, 1", &[]), &["larger than 8589934592 bytes"]),
        Case::refused("a.npy", npy("<f4", "False", "99999999999, 3", &[]), &["found the shape [99999999999, 3]"]),
        Case::refused("a.npy", npy("<f4", "False", "9999999999999999999999, 3", &[]), NO_HEADER),
        Case::refused("a.npy", npy("<f4", "False", "0, 3", &[]), &["found the shape [0, 3], expected sizes above 0"]),
        Case::refused("a.npy", npy("<f4", "False", "", &[0; 4]), &["found the shape []"]),
        Case::refused("a.npy", npy("<f4", "False", "30, -3", &matrix()), NO_HEADER),
        Case::refused("a.npy", npy("<f4", "True", "30, 3", &matrix()), &["fortran_order", "numpy.ascontiguousarray"]),
        Case::refused("a.npy", npy("<f2", "False", "60, 3", &matrix()), &["type `<f2`", "f32 or f64"]),
        Case::refused("a.npy", npy("<c8", "False", "15, 3", &matrix()), &["type `<c8`"]),
        Case::refused("a.npy", npy("|O", "False", "30, 3", &matrix()), &["type `|O`"]),
        Case::refused("a.npy", npy("<M8[ns]", "False", "15, 3", &matrix()), &["type `<M8[ns]`"]),
        Case::refused(
            "a.npy",
            npy_with("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (30, 3), }", &matrix()),
            &["found the header `{", "expected `descr`, `fortran_order` and `shape`"],
        ),
        Case::refused("a.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}".to_vec(), &["an end within the header"]),
        Case::refused(
            "a.npy",
            b"\x93NUMPY\x09\x00\x02\x00{}".to_vec(),
            &["found version 9, expected version 1, 2 or 3"],
        ),
        Case::refused("a.npy", npy("<f4", "False", "90,", &matrix()), &["found the shape [90], expected (N, F + 1)"]),
        Case::refused("a.npy", npy("<f4", "False", "3, 2", &floats([f32::NAN; 6])), &["NaN in sample 0"]),
        Case::refused("a.npy", npy("<f4", "False", "1, 3", &floats([0.0, f32::INFINITY, 0.0])), &["inf in sample 0"]),
        Case::untrainable("a.npy", npy("<f4", "False", "90, 1", &matrix()), &["found one column, expected 2 or more"]),
        Case::trains("a.npy", npy(">f4", "False", "30, 3", &big), &["3 classes"]),
        Case::trains("a.npy", npy("|b1", "False", "30, 3", &[0, 0, 1, 1, 1, 0].repeat(15)), &["2 classes"]),
        Case::trains("./a.bin", good(), &["3 classes"]),
    ]);
    check(Some(Case::trains("a.npy", good(), &["3 classes"])), cases);
}

#[test]
fn damaged_and_odd_npz_files() {
    let inputs = || npy("<f4", "False", "30, 1, 3", &matrix());
    let targets = || npy("|u1", "False", "30,", &labels());
    let pair = |x: Member, y: Member| zip(&[x, y]);
    let (x, y) = (|| Member::deflated("x.npy", &inputs()), || Member::stored("y.npy", &targets()));
    let good = || pair(x(), y());
    // Zeros that deflate to a thousandth, block by block.
    let zeros = deflate(&vec![0; 64 << 20]);
    let bomb =
        |shape: &str| Member { packed: [deflate(&npy("<f4", "False", shape, &[])), zeros.clone()].concat(), ..x() };
    let mut cases = of_any_format("a.npz");
    cases.extend([
        Case::refused("a.npz", "", ARCHIVE),
        Case::refused("a.npz", "PK\x03\x04", ARCHIVE),
        Case::refused("a.npz", good()[..good().len() / 2].to_vec(), ARCHIVE),
        Case::refused("a.npz", good()[..good().len() - 1].to_vec(), ARCHIVE),
        Case::refused("a.npz", zip(&[]), &["found no arrays, expected `inputs` and `targets`, or `x` and `y`"]),
        Case::refused("a.npz", pair(Member { name: "../../x.npy", ..x() }, y()), &["found the arrays `../../x`, `y`"]),
        Case::refused("a.npz", pair(Member { name: "/tmp/x.npy", ..x() }, y()), &["found the arrays `/tmp/x`, `y`"]),
        Case::refused(
            "a.npz",
            zip(&[x(), y(), Member { name: "x.npy", ..y() }]),
            &["found 2 names of 3 files", "numpy.savez"],
        ),
        Case::refused("a.npz", pair(Member { sum: 7, ..x() }, y()), &["found `x` with a wrong check sum"]),
        Case::refused("a.npz", pair(Member { method: 12, ..x() }, y()), &["found `x` packed by"]),
        Case::refused("a.npz", pair(Member { method: 77, ..x() }, y()), &["found `x` packed by"]),
        Case::refused("a.npz", pair(Member { flags: 1, ..x() }, y()), &["found `x` encrypted"]),
        Case::refused("a.npz", pair(Member { packed: vec![7; 100], ..x() }, y()), &["a.npz: `x`"]),
        Case::refused("a.npz", pair(Member { packed: Vec::new(), ..x() }, y()), &["a.npz: `x`"]),
        Case::refused("a.npz", pair(Member::stored("x.npy", b"text"), y()), &["a.npz: `x`: found other first bytes"]),
        Case::refused("a.npz", pair(bomb("30, 1, 3"), y()), &["a.npz: `x`"]),
        Case::refused("a.npz", pair(bomb("1000000000, 2"), y()), &["a.npz: `x`: larger than 134217728 bytes"]),
        Case::refused(
            "a.npz",
            pair(Member { size: u32::MAX - 1, ..bomb("1000000000, 2") }, y()),
            &["a.npz: `x`: larger than 134217728 bytes"],
        ),
        Case::refused(
            "a.npz",
            pair(x(), Member::stored("y.npy", &npy("|u1", "False", "29,", &labels()[..29]))),
            &["found 29 targets, expected 30, one per sample"],
        ),
        Case::refused(
            "a.npz",
            pair(x(), Member::stored("y.npy", &npy("<U3", "False", "30,", &[0; 360]))),
            &["`y`: found numbers of the type `<U3`"],
        ),
        Case::untrainable("a.npz", zip(&[x()]), &["found the arrays `x`, expected `inputs` and `targets`"]),
        Case::untrainable(
            "a.npz",
            pair(x(), Member::stored("y.npy", &npy("|u1", "False", "30,", &[1; 30]))),
            &["found the label `1` in every row of `y`"],
        ),
        Case::trains("a.npz", zip(&[x(), y(), Member::stored("../../evil.npy", b"x")]), &["2 classes"]),
        Case::trains("a.npz", pair(Member { name: "X.npy", ..x() }, y()), &["2 classes"]),
    ]);
    check(Some(Case::trains("a.npz", good(), &["2 classes"])), cases);
}

#[test]
fn damaged_and_odd_safetensors_files() {
    let data = [matrix(), labels()].concat();
    let header = |x: &str, y: &str| {
        format!(
            r#"{{"x":{{"dtype":"F32","shape":{x},"data_offsets":[0,360]}},"y":{{"dtype":"U8","shape":{y},"data_offsets":[360,390]}}}}"#
        )
    };
    let usual = || header("[30,3]", "[30]");
    let good = || safetensors(&usual(), &data);
    let name = "a.safetensors";
    let mut cases = of_any_format(name);
    cases.extend([
        Case::refused(name, "", WHOLE),
        Case::refused(name, vec![0; 7], WHOLE),
        Case::refused(name, u64::MAX.to_le_bytes().to_vec(), WHOLE),
        Case::refused(name, Content::Sparse(vec![0], 6 << 30), WHOLE),
        Case::refused(name, Content::Sparse((99_u64 << 20).to_le_bytes().to_vec(), 6 << 30), WHOLE),
        Case::refused(name, good()[..good().len() - 1].to_vec(), WHOLE),
        Case::refused(name, [good(), vec![0]].concat(), WHOLE),
        Case::refused(name, safetensors("{", &[]), WHOLE),
        Case::refused(name, safetensors("[]", &[]), WHOLE),
        Case::refused(name, safetensors(&header("[1152921504606846976,3]", "[30]"), &data), WHOLE),
        Case::refused(name, safetensors(&header("[30,4]", "[30]"), &data), WHOLE),
        Case::refused(name, safetensors(&header("[30,-3]", "[30]"), &data), WHOLE),
        Case::refused(name, safetensors(&usual().replace("F32", "F99"), &data), WHOLE),
        Case::refused(name, safetensors(&usual().replace("[0,360]", "[8,368]"), &data), WHOLE),
        Case::refused(name, safetensors(&usual().replace("\"y\"", "\"x\""), &data), WHOLE),
        Case::refused(name, safetensors("{}", &[]), &["found no arrays, expected `inputs` and `targets`"]),
        Case::refused(
            name,
            safetensors(&usual().replace("\"x\"", "\"../x\""), &data),
            &["found the arrays `../x`, `y`"],
        ),
        Case::refused(name, safetensors(&header("[45,2]", "[30]"), &data), &["found 30 targets, expected 45"]),
        Case::refused(name, safetensors(&header("[30,3]", "[30,1,1]"), &data), &["targets of the shape [30, 1, 1]"]),
        Case::refused(
            name,
            safetensors(&header("[60,3]", "[30]").replace("F32", "BF16"), &data),
            &["`x`: found numbers of the type BF16", "f32 or f64"],
        ),
        Case::refused(
            name,
            safetensors(&usual(), &[floats([f32::NAN; 90]), labels()].concat()),
            &["found NaN in sample 0, expected finite numbers"],
        ),
        Case::untrainable(name, safetensors(&usual().replace("\"y\"", "\"z\""), &data), &["found the arrays `x`, `z`"]),
        Case::trains(
            name,
            safetensors(&usual().replacen('{', "{\"__metadata__\":{\"a\":\"b\"},", 1), &data),
            &["2 classes"],
        ),
    ]);
    check(Some(Case::trains(name, good(), &["2 classes"])), cases);
}

#[test]
fn damaged_and_odd_idx_files() {
    const IMAGES: &str = "my-images-idx3-ubyte";
    const LABELS: &str = "my-labels-idx1-ubyte";
    const PACKED: &str = "my-images-idx3-ubyte.gz";
    let good = || idx(8, &[30, 1, 2], &[7, 9].repeat(30));
    let good_labels = || idx(8, &[30], &labels());
    let refused = |images: Vec<u8>, parts| Case::refused(IMAGES, images, parts).beside(LABELS, good_labels());
    let packed = |images: Vec<u8>, parts| {
        Case::refused(PACKED, images, parts).beside("my-labels-idx1-ubyte.gz", gzip(&good_labels()))
    };
    let labeled = |labels: Vec<u8>, parts| Case::untrainable(IMAGES, good(), parts).beside(LABELS, labels);
    let big: Vec<u8> = (0_u8..60).flat_map(|value| f32::from(value).to_be_bytes()).collect();
    let mut cases = of_any_format(IMAGES);
    cases.extend([
        refused(vec![], &["length is 0 bytes, expected a header"]),
        refused(vec![0, 0, 8, 3, 0, 0], &["length is 6 bytes, expected a header with 3 sizes"]),
        refused(vec![1, 2, 3, 4], &["magic number is 0x01020304, expected 0x0000TTDD"]),
        refused(b"<!DOCTYPE html>".to_vec(), &["magic number is 0x3c21444f"]),
        refused(gzip(&good()), &["magic number is 0x1f8b08"]),
        refused(vec![0, 0, 7, 1], &["magic number is 0x00000701"]),
        refused(vec![0, 0, 8, 0], &["magic number is 0x00000800, expected 1 or more dimensions"]),
        refused(idx(8, &[0, 1, 2], &[]), &["size is 0, expected sizes above 0"]),
        refused(idx(8, &[u32::MAX; 3], &[1]), &["size is 4294967295"]),
        refused(idx(8, &[u32::MAX], &[1]), &["length is 1 bytes after the header, expected 4294967295 bytes"]),
        refused(idx(8, &[30, 1, 2], &[7; 59]), &["length is 59 bytes after the header, expected 60 bytes"]),
        refused(idx(8, &[30, 1, 2], &[7; 61]), &["length is more bytes after the header, expected 60 bytes"]),
        refused(idx(0x0d, &[30, 1, 2], &f32::NAN.to_be_bytes().repeat(60)), &["found NaN in sample 0"]),
        Case::refused(IMAGES, Content::Sparse(good(), 6 << 30), &["more bytes after the header"])
            .beside(LABELS, good_labels()),
        packed(good(), &["damaged or cut short while unpacking"]),
        packed(gzip(&good())[..30].to_vec(), &["damaged or cut short while unpacking"]),
        packed(gzip_bomb(&good()), &["length is more bytes after the header, expected 60 bytes"]),
        packed(gzip_bomb(&idx(8, &[60_000, 100, 100], &[])), &["larger than ", "after unpacking"]),
        labeled(
            good_labels()[..9].to_vec(),
            &["my-labels-idx1-ubyte: length is 1 bytes after the header, expected 30"],
        ),
        labeled(idx(8, &[1], &[5]), &["found 1 targets, expected 30, one per sample"]),
        labeled(idx(8, &[15, 2], &labels()), &["found 15 targets, expected 30"]),
        labeled(vec![], &["my-labels-idx1-ubyte: length is 0 bytes"]),
        labeled(idx(0x0d, &[30], &f32::NAN.to_be_bytes().repeat(30)), &["found the target NaN in sample 0"]),
        Case::untrainable(IMAGES, good(), &["found no file of labels beside", "`…images-idx3-ubyte` and"]),
        Case::untrainable(LABELS, good_labels(), &["found no file of labels beside"]),
        Case::untrainable(IMAGES, good(), &["found the label `1` in every row"])
            .beside(LABELS, idx(8, &[30], &[1; 30])),
        Case::trains(IMAGES, idx(0x0d, &[30, 2], &big), &["2 classes"]).beside(LABELS, good_labels()),
        Case::trains(PACKED, gzip(&good()), &["2 classes"]).beside("my-labels-idx1-ubyte.gz", gzip(&good_labels())),
    ]);
    check(Some(Case::trains(IMAGES, good(), &["2 classes"]).beside(LABELS, good_labels())), cases);
}
