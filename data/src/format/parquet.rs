//! Columns of a Parquet file, treated as those of any file of rows; numbers, text, true and false, and what is missing.

use super::Format;

/// Files of columns.
pub(super) const FORMAT: Format = Format {
    name: "parquet",
    endings: &[".parquet", ".pq"],
    starts: &[b"PAR1"],
    keys: &["data.target", "data.features", "data.ignore", "data.missing"],
    read: reader::read,
};

#[cfg(not(feature = "parquet"))]
mod reader {
    use std::path::Path;

    use crate::Error;
    use crate::format::{Reading, Records};

    /// # Errors
    /// Always: nothing here reads such a file.
    pub(super) fn read(path: &Path, _: &Reading<'_>) -> Result<Records, Error> {
        let (place, found) = (path.display().to_string(), "a Parquet file, which this build does not read".into());
        let expected = "another format, or a build with `--features parquet`".into();
        Err(Error::Content { place, found, expected })
    }
}

#[cfg(feature = "parquet")]
mod reader {
    use std::borrow::Cow;
    use std::fs::File;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;

    use parquet::basic::Compression;
    use parquet::errors::ParquetError;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::Field;

    use crate::error::quoted;
    use crate::format::array::LIMIT_BYTES;
    use crate::format::sheet::{Row, Sheet, named};
    use crate::format::{Reading, Records};
    use crate::{Error, unpack};

    /// How pandas calls the numbers of rows, where it writes them.
    const INDEX: &str = "__index_level_";
    const WHOLE: &str = "a whole Parquet file";
    /// Of a value, wherever it is kept.
    const VALUE_BYTES: u64 = 8;

    pub(super) fn read(path: &Path, reading: &Reading<'_>) -> Result<Records, Error> {
        let (file, num_bytes) = unpack::open_plain(path, LIMIT_BYTES)?;
        let place = path.display().to_string();
        let table = guarded(&place, || Table::open(file, &place, unpack::unpacked_limit(num_bytes)))?;
        let note = format!("{} columns with names, {} rows", table.names.len(), table.num_rows);
        guarded(&place, || (&table as &dyn Sheet).records(reading, vec![note]))
    }

    /// The reader of the format checks what it reads, but not all of it.
    fn guarded<T>(place: &str, read: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(damaged(place, "what its reader stumbles over")))
    }

    fn damaged(place: &str, found: impl ToString) -> Error {
        Error::Content { place: place.into(), found: quoted(&found.to_string()), expected: WHOLE.into() }
    }

    struct Table<'a> {
        place: &'a str,
        reader: SerializedFileReader<File>,
        names: Vec<String>,
        num_rows: usize,
    }

    struct Record<'a> {
        table: &'a Table<'a>,
        /// From 1.
        number: usize,
        cells: Vec<(String, Field)>,
    }

    impl<'a> Table<'a> {
        /// Rows may be few bytes and many values: where they repeat.
        fn open(file: File, place: &'a str, limit_bytes: u64) -> Result<Self, Error> {
            let reader = SerializedFileReader::new(file).map_err(|error| damaged(place, error))?;
            let columns = || reader.metadata().row_groups().iter().flat_map(|group| group.columns());
            if columns().any(|column| column.data_page_offset() < 0 || column.compressed_size() < 0) {
                return Err(damaged(place, "a column at a place below 0"));
            }
            let is_read =
                |packing| matches!(packing, Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::GZIP(_));
            if let Some(packing) = columns().map(|column| column.compression()).find(|&packing| !is_read(packing)) {
                let (found, expected) = (format!("columns packed by {packing}"), "SNAPPY, GZIP or UNCOMPRESSED".into());
                return Err(Error::Content { place: place.into(), found, expected });
            }
            let fields = reader.metadata().file_metadata().schema().get_fields();
            let names = named(&fields.iter().map(|column| column.name().to_owned()).collect::<Vec<_>>());
            let mut groups = reader.metadata().row_groups().iter();
            let num_rows = groups.try_fold(0_u64, |sum, group| sum.checked_add(u64::try_from(group.num_rows()).ok()?));
            let most = limit_bytes.min(LIMIT_BYTES) / VALUE_BYTES / (names.len() as u64).max(1);
            let num_rows = num_rows.filter(|&rows| rows <= most).and_then(|rows| usize::try_from(rows).ok());
            let num_rows = num_rows.ok_or_else(|| Error::Content {
                place: place.into(),
                found: format!("{} columns of {} rows", names.len(), reader.metadata().file_metadata().num_rows()),
                expected: format!("at most {most} rows of as many columns in a file of this length"),
            })?;
            Ok(Self { place, reader, names, num_rows })
        }
    }

    impl Sheet for Table<'_> {
        fn place(&self) -> &str {
            self.place
        }

        fn names(&self) -> &[String] {
            &self.names
        }

        fn has_header(&self) -> bool {
            true
        }

        fn numbers_rows(&self, column: usize) -> bool {
            self.names[column].starts_with(INDEX)
        }

        fn wrong(&self, found: String, expected: String) -> Error {
            Error::Content { place: self.place.into(), found, expected }
        }

        fn rows(&self, take: &mut dyn FnMut(&dyn Row) -> Result<(), Error>) -> Result<(), Error> {
            let broken =
                |number: usize| move |error: ParquetError| damaged(&format!("{}: row {number}", self.place), error);
            let mut number = 0;
            for row in self.reader.get_row_iter(None).map_err(broken(1))? {
                number += 1;
                let cells = row.map_err(broken(number))?.into_columns();
                take(&Record { table: self, number, cells })?;
            }
            if number == self.num_rows { Ok(()) } else { Err(damaged(self.place, format!("{number} rows"))) }
        }
    }

    impl Row for Record<'_> {
        fn text(&self, column: usize) -> Result<Cow<'_, str>, Error> {
            let Some((_, cell)) = self.cells.get(column) else {
                return Err(self.wrong(column, "no cell".into(), WHOLE.into()));
            };
            let trimmed = |text: &str| Cow::Owned(text.trim().to_owned());
            Ok(match cell {
                Field::Null => "".into(),
                Field::Str(text) => trimmed(text),
                Field::Float16(number) => number.to_string().into(),
                Field::Float(number) => number.to_string().into(),
                Field::Double(number) => number.to_string().into(),
                Field::Bool(_)
                | Field::Byte(_)
                | Field::Short(_)
                | Field::Int(_)
                | Field::Long(_)
                | Field::UByte(_)
                | Field::UShort(_)
                | Field::UInt(_)
                | Field::ULong(_)
                | Field::Decimal(_) => cell.to_string().into(),
                Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
                    Ok(text) => trimmed(text),
                    Err(_) => return Err(self.wrong(column, "bytes that are no text".into(), accepted())),
                },
                other => return Err(self.wrong(column, quoted(&other.to_string()), accepted())),
            })
        }

        fn wrong(&self, column: usize, found: String, expected: String) -> Error {
            let name = self.table.names.get(column).map_or_else(String::new, |name| quoted(name));
            Error::Content {
                place: format!("{}: row {}, column {name}", self.table.place, self.number),
                found,
                expected,
            }
        }
    }

    fn accepted() -> String {
        "a number, text, true or false; `data.ignore` leaves the column out".into()
    }
}
