//! Columns of Parquet files; the files beside this one are made by `columns/make.py`.

use crate::check::{Case, check};

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("columns/", $name, ".parquet")).to_vec()
    };
}

#[cfg(not(feature = "parquet"))]
#[test]
fn without_its_feature_a_parquet_file_is_refused_by_what_reads_it() {
    const PARTS: &[&str] = &["a Parquet file, which this build does not read", "`--features parquet`"];
    let named = || Case::refused("a.parquet", file!("rows"), PARTS);
    check(None, (0..14).map(|_| named()).chain([Case::refused("./a.bin", file!("rows"), PARTS)]).collect());
}

#[cfg(feature = "parquet")]
#[test]
fn damaged_and_odd_parquet_files() {
    const WHOLE: &[&str] = &["expected a whole Parquet file"];
    const NAME: &str = "a.parquet";
    let good = || file!("rows");
    let refused = |bytes: Vec<u8>, parts| Case::refused(NAME, bytes, parts);
    let replaced = |at: usize, bytes: &[u8]| {
        let (mut whole, length) = (good(), good().len());
        whole[length - at..][..bytes.len()].copy_from_slice(bytes);
        whole
    };
    let flipped = |at: usize| {
        let mut whole = good();
        whole[at] ^= 0xff;
        whole
    };
    let mut cases = crate::check::of_any_format(NAME);
    cases.extend([
        refused(vec![], WHOLE),
        refused(b"PAR1".to_vec(), WHOLE),
        refused(b"PAR1PAR1".to_vec(), WHOLE),
        refused(b"<!DOCTYPE html>".to_vec(), WHOLE),
        refused(good()[..good().len() / 2].to_vec(), WHOLE),
        refused(good()[..good().len() - 1].to_vec(), WHOLE),
        refused(good()[1..].to_vec(), WHOLE),
        // The length of the description, and the description.
        refused(replaced(8, &[0xff; 4]), WHOLE),
        refused(replaced(8, &[0; 4]), WHOLE),
        refused(replaced(4, b"PARE"), WHOLE),
        refused(replaced(200, &[0xff; 100]), WHOLE),
        refused(flipped(6), WHOLE),
        refused(flipped(30), WHOLE),
        refused(flipped(632), &["found `a column at a place below 0`"]),
        refused(file!("zstd"), &["found columns packed by ZSTD", "expected SNAPPY, GZIP or UNCOMPRESSED"]),
        refused(file!("inf"), &["a.parquet: row 5, column `b`: found `inf`, expected a finite number"]),
        refused(file!("null"), &["a.parquet: row 5, column `b`: found nothing, expected a"]),
        refused(file!("nan"), &["a.parquet: row 5, column `b`: found `NaN`, a missing value"]),
        refused(file!("words"), &["a.parquet: row 5, column `b`: found `four`, expected a finite number"]),
        refused(file!("one_column"), &["a.parquet: found "]),
        refused(file!("no_rows"), &["a.parquet: found no row of numbers"]),
        refused(file!("bomb"), &["a.parquet: found 2 columns of 20000000 rows, expected at most 8388608 rows"]),
        Case::untrainable(NAME, file!("kinds"), &["row 1, column `list`", "`data.ignore` leaves the column out"]),
        Case::untrainable(NAME, file!("kinds"), &["row 1, column `time`"]).set("data.ignore=['list']"),
        Case::untrainable(NAME, file!("kinds"), &["row 1, column `bytes`: found bytes that are no text"])
            .set("data.ignore=['list', 'time']"),
        Case::untrainable(NAME, file!("one_class"), &["found the label `yes` in every row of `c`"]),
        Case::untrainable(NAME, good(), &["data.target", "`d`", "`a`, `b`, `c`"]).set("data.target=d"),
        Case::trains(NAME, file!("kinds"), &["column 8 is left out: it has no name", "target: `c`: 2 classes"])
            .set("data.ignore=['list', 'time', 'bytes']"),
        Case::trains(NAME, file!("gzip"), &["target: `c`: 2 classes (`no`, `yes`)"]),
        Case::trains(NAME, file!("null"), &["1 of 30 rows are left out"]).set("data.missing=drop"),
        Case::trains("./a.bin", good(), &["2 classes"]),
    ]);
    check(Some(Case::trains(NAME, good(), &["3 columns with names, 30 rows"])), cases);
}
