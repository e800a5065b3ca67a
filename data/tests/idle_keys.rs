//! Settings that a file or a data set has no use for are refused, not passed over.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::fs;
use std::num::NonZeroUsize;

use esper_data::{ColumnRef, ColumnRefs, DataConfig, DataName, Delimiter, Header, Missing, Scale, load};

/// 30 rows of two bytes and a class.
fn npy() -> Vec<u8> {
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (30, 3), }";
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    let rows: Vec<u8> = (0_u8..30).flat_map(|row| [row, row % 7, row % 2]).collect();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), &rows].concat()
}

#[track_caller]
fn check_file(name: &str, bytes: &[u8], change: impl FnOnce(&mut DataConfig), expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    let mut config = DataConfig::new(DataName::File(path));
    assert!(load(&config).is_ok());
    change(&mut config);
    let found = load(&config).unwrap_err().to_string().replace(&format!("{}/", folder.path().display()), "");
    assert_eq!(found, expected);
}

#[test]
fn a_setting_for_rows_is_refused_for_an_array() {
    let refused = |key: &str| {
        let of = if ["header", "delimiter"].contains(&key) { "csv" } else { "csv, parquet" };
        format!("data.{key}: is for {of}, and a.npy is read as npy; expected no such key")
    };
    let column = || ColumnRef::Number(1);
    let check = |key: &str, change: fn(&mut DataConfig)| check_file("a.npy", &npy(), change, &refused(key));
    check_file("a.npy", &npy(), |config| config.target = Some(ColumnRefs::One(column())), &refused("target"));
    check_file("a.npy", &npy(), |config| config.features = Some(vec![column()]), &refused("features"));
    check_file("a.npy", &npy(), |config| config.ignore = vec![column()], &refused("ignore"));
    check("header", |config| config.header = Header::Yes);
    check("delimiter", |config| config.delimiter = Some(Delimiter::Tab));
    check("missing", |config| config.missing = Missing::Drop);
}

#[test]
fn a_window_is_refused_where_there_are_no_tokens() {
    let window = |config: &mut DataConfig| config.window = NonZeroUsize::new(8).unwrap();
    let of = "data.window: is for text, tokens_u16, tokens_u32, and";
    check_file("a.npy", &npy(), window, &format!("{of} a.npy is read as npy; expected no such key"));
    let rows: String = (0..30).map(|row| format!("{row},{}\n", row % 2)).collect();
    check_file("a.csv", rows.as_bytes(), window, &format!("{of} a.csv is read as csv; expected no such key"));
}

#[track_caller]
fn check_wrong(name: &str, change: impl FnOnce(&mut DataConfig), expected: &[&str]) {
    let mut config = DataConfig::new(DataName::parse(name).unwrap());
    change(&mut config);
    let found: Vec<String> = config.validate().iter().map(ToString::to_string).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_scale_is_refused_where_it_does_nothing() {
    let scaled = |scale: f32| move |config: &mut DataConfig| config.csv_scale = Scale::new(scale);
    let none = "data.csv_scale: is for files of one's own, and `digits` is none; expected no such key";
    check_wrong("digits", scaled(255.0), &[none]);
    check_wrong("a.csv", scaled(255.0), &[]);
    // As configurations of earlier runs have it.
    check_wrong("digits", scaled(1.0), &[]);
    check_wrong(
        "a.csv",
        |config| (config.csv_scale, config.standardize) = (Scale::new(255.0), Some(true)),
        &["data.standardize: is true beside data.csv_scale = 255; expected one of them"],
    );
}

#[test]
fn whether_a_file_holds_tokens_is_known_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for (name, expected) in [("a.txt", true), ("a.u16", true), ("a.csv", false)] {
        let path = folder.path().join(name);
        // Nothing that could be read.
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(DataConfig::new(DataName::File(path)).holds_tokens(), expected, "{name}");
    }
    assert!(DataConfig::new(DataName::File("no/such.u16".into())).holds_tokens());
    assert!(!DataConfig::new(DataName::Digits).holds_tokens());
    let named = DataConfig { format: Some("text".into()), ..DataConfig::new(DataName::File("a.csv".into())) };
    assert!(named.holds_tokens());
}
