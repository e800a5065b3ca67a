//! Rows of cells.

use crate::check::{Case, Content, check, of_any_format};
use crate::make::{gzip, gzip_bomb, png};

/// 30 rows of two numbers and a word, below a row of names.
fn rows() -> String {
    rows_of("a,b,c\n", |row| format!("{row},{},{}\n", row % 7, ["no", "yes"][row % 2]))
}

fn rows_of(head: &str, row: impl Fn(usize) -> String) -> String {
    head.to_owned() + &(0..30).map(row).collect::<String>()
}

/// The rows, with one cell, or a whole line, that is another.
fn with(found: &str, other: &str) -> String {
    let rows = rows();
    assert_eq!(rows.matches(found).count(), 1, "{found:?}");
    rows.replace(found, other)
}

#[test]
fn damaged_and_odd_files_of_rows() {
    let utf_16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let packed = gzip(rows().as_bytes());
    let mut cases = of_any_format("a.csv");
    cases.extend([
        Case::refused("a.csv", "", &["a.csv:1:1", "found no row of numbers, expected rows"]),
        Case::refused("a.csv", "\n\r\n\n", &["a.csv:1:1", "found no row of numbers"]),
        Case::refused("a.csv", "\u{feff}", &["a.csv:1:1", "found no row of numbers"]),
        Case::refused("a.csv", "a,b,c\n", &["a.csv:1:1", "found no row of numbers"]),
        Case::refused("a.csv", [&[0xff, 0xfe], &utf_16(&rows())[..]].concat(), &["a.csv:1:1", "UTF-16", "UTF-8"]),
        Case::refused("a.csv", utf_16(&rows()), &["a.csv:1:1", "found a byte 0, expected text in UTF-8"]),
        Case::refused(
            "a.csv",
            with("4,4,no", "4,4,n\u{e9}").chars().map(|c| u8::try_from(c).unwrap()).collect::<Vec<u8>>(),
            &["a.csv:6:3", "a byte that is not UTF-8 at offset 1"],
        ),
        Case::refused("a.csv", with("4,4,no", "4,4"), &["a.csv:6:2", "found 2 columns, expected 3 columns"]),
        Case::refused("a.csv", with("4,4,no", "4,4,no,"), &["a.csv:6:3", "found 4 columns, expected 3 columns"]),
        Case::refused("a.csv", with("4,4,no", "4,\"4,no"), &["a.csv:6:2", "expected quotes that are closed"]),
        Case::refused("a.csv", with("4,4,no", "4,four,no"), &["a.csv:6:2", "found `four`, expected a finite number"]),
        Case::refused("a.csv", with("4,4,no", "4,inf,no"), &["a.csv:6:2", "found `inf`, expected a finite number"]),
        Case::refused("a.csv", with("4,4,no", "4,1e999,no"), &["a.csv:6:2", "found `1e999`"]),
        Case::refused("a.csv", with("4,4,no", "4,NaN,no"), &["a.csv:6:2", "`NaN`, a missing value"]),
        Case::refused("a.csv", with("4,4,no", "4,,no"), &["a.csv:6:2", "found nothing, expected a"]),
        Case::refused(
            "a.csv",
            rows_of("a;b;c\n", |row| format!("{row};0,5;{}\n", row % 2)),
            &["a.csv:2:2", "found `0,5`, expected a finite number, with `.` before decimals"],
        ),
        Case::refused("a.csv", rows_of("a\n", |row| format!("{row}\n")), &["a.csv:1:1"]),
        Case::refused("a.csv", png(2, 2, 0, &[0; 4]), &["a.csv:"]),
        Case::refused("a.csv", packed.clone(), &["a.csv:", "UTF-8"]),
        Case::refused("a.csv", vec![b'x'; 8 << 20], &["a.csv:1:1"]),
        Case::refused("a.csv.gz", rows(), &["damaged or cut short while unpacking"]),
        Case::refused("a.csv.gz", packed[..packed.len() / 2].to_vec(), &["damaged or cut short"]),
        Case::refused("a.csv.gz", [&packed[..], &[1]].concat(), &["damaged or cut short"]),
        Case::refused("a.csv.gz", gzip_bomb(rows().as_bytes()), &["larger than ", "after unpacking, the most"]),
        Case::untrainable(
            "a.csv",
            rows_of("a,b,c\n", |row| format!("{row},1,yes\n")),
            &["found the label `yes` in every"],
        ),
        Case::untrainable("a.csv", with("4,4,no", "4,4,once"), &["class `once` has 1 of the rows", "at least 3"]),
        Case::untrainable("a.csv", "a,b,c\n1,2,x\n3,4,y\n", &["has 1 of the rows", "at least 3"]),
        Case::untrainable("a.csv", with("4,4,no", "4,4,"), &["a.csv:6:3", "found nothing"]),
        Case::untrainable(
            "a.csv",
            (0..90).map(|row| format!("name{row},{}\n", row % 2)).collect::<String>(),
            &["a.csv:65:1", "more than 64 different words", "data.ignore"],
        ),
        Case::untrainable("a.csv", rows(), &["data.target", "`d`", "`a`, `b`, `c`"]).set("data.target=d"),
        Case::untrainable("a.csv", rows(), &["1 column", "data.delimiter"]).set("data.delimiter=pipe"),
    ]);
    check(Some(Case::trains("a.csv", rows(), &["first row of names"])), cases);
}

#[test]
fn unedited_exports_load() {
    let exports = [
        Case::trains("a.csv", "\u{feff}".to_owned() + &rows(), &["3 columns with `,`", "a first row of names"]),
        Case::trains("a.csv", rows().replace('\n', "\r\n"), &["target: `c`: 2 classes (`no`, `yes`)"]),
        Case::trains("a.csv", rows().replace('\n', "\r"), &["2 classes"]),
        Case::trains("a.csv", rows().replace("no\n", "no\r\n").replace("3,yes\n", "3,yes\n\n"), &["2 classes"]),
        Case::trains("a.csv", rows().trim_end(), &["2 classes"]),
        Case::trains("a.csv", rows().replace(',', ";"), &["3 columns with `;`"]),
        Case::trains("a.csv", rows().replace(',', "\t"), &["3 columns with tabs"]),
        Case::trains("a.tsv", rows().replace(',', "\t"), &["3 columns with tabs"]),
        Case::trains("a.csv", rows().replace(',', "|"), &["3 columns with `|`"]),
        Case::trains(
            "a.csv",
            rows().replace(",no", ",\"no, \"\"never\"\"\""),
            &["2 classes (`no, \\\"never\\\"`, `yes`)"],
        ),
        Case::trains("a.csv", rows().replace("a,b,c", "\"a\",\"b;c\",\"c\""), &["3 columns with `,`"]),
        Case::trains("a.csv", rows().replace("a,b,c", ",b,c"), &["column 1 is left out"]),
        Case::trains("a.csv", rows().replace("a,b,c", "a,,c"), &["a first row of names"]),
        Case::trains("a.csv", rows().replace("a,b,c", "a,a,c"), &["a first row of names"]),
        Case::trains("a.csv", rows().replace("a,b,c\n", ""), &["no row of names"]),
        Case::trains("a.csv", with("4,4,no", "4,,no"), &["1 of 30 rows are left out"]).set("data.missing=drop"),
        Case::trains("a.csv", with("4,4,no", "4,n/a,no"), &["1 missing cells of 30 rows get the mean"])
            .set("data.missing=mean"),
        Case::trains(
            "a.csv",
            rows_of("a,b,c\n", |row| format!("{},{row},{}\n", ["x", "y"][row % 2], row * row)),
            &["target: `c`: values", "one input per word of `a`: `x`, `y`"],
        ),
        Case::trains("a.csv.gz", gzip(rows().as_bytes()), &["2 classes"]),
        Case::trains("link.csv", Content::LinkTo("real.csv"), &["2 classes"]).beside("real.csv", rows()),
    ];
    check(None, exports.into());
}
