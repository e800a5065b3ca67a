//! Which algorithms of products were the fastest when they were timed: a file, so that every process takes the same.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

/// The environment variable that names the file. Where it is not set nothing is timed, and the library's first guess is taken.
pub(crate) const VARIABLE: &str = "ESPER_PRODUCTS";

/// A line after the first is a product, this, and the numbers of its algorithm.
const IS: &str = " = ";

/// Bytes of memory of its own that an algorithm needs, and what the library describes it with.
pub(crate) type Numbers = [u64; 9];

/// A file of algorithms, each of them added once by whoever needs it first.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Timed {
    path: PathBuf,
    /// First line: a device and a version of the library, which algorithms belong to.
    machine: String,
}

impl Timed {
    /// The file that the value of [`VARIABLE`] names, if it is set, for a device and a version of the library.
    pub(crate) fn named(value: Option<OsString>, device: &str, version: usize) -> Result<Option<Self>, String> {
        match value {
            None => Ok(None),
            Some(path) if path.is_empty() => {
                Err(format!("{VARIABLE}=\"\": expected a file of algorithms, which is made where it is missing"))
            }
            Some(path) => Ok(Some(Self {
                path: PathBuf::from(path),
                machine: format!("esper products 1, {device}, cuBLASLt {version}"),
            })),
        }
    }

    /// The algorithm of a product: from the file, or `find` now and added to it; whether it was there. Other processes wait
    /// meanwhile. A line that was cut off while it was written is not there.
    ///
    /// # Errors
    /// A text with the place: the file cannot be read or written, is of another device or version, or is no such file. Then
    /// it is as it was. What `find` says.
    pub(crate) fn get(
        &self,
        product: &str,
        find: impl FnOnce() -> Result<Numbers, String>,
    ) -> Result<(Numbers, bool), String> {
        let at = |error: std::io::Error| format!("{VARIABLE}={}: {error}", self.path.display());
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.path);
        let mut file = options.map_err(at)?;
        file.lock().map_err(at)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(at)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole == 0 && !self.machine.starts_with(text.as_str()) {
            return Err(self.line(1, text.as_str(), &format!("`{}`", self.machine)));
        }
        for (index, line) in text[..whole].lines().enumerate() {
            match index {
                0 if line == self.machine => {}
                0 => return Err(self.line(1, line, &format!("`{}`; another file for another device", self.machine))),
                _ => match entry(line) {
                    Some((of, numbers)) if of == product => return Ok((numbers, true)),
                    Some(_) => {}
                    None => {
                        return Err(self.line(index + 1, line, "a product, ` = ` and nine hexadecimal numbers"));
                    }
                },
            }
        }
        let numbers = find()?;
        let mut added = if whole == 0 { format!("{}\n", self.machine) } else { String::new() };
        added += product;
        added += IS;
        added += &numbers.map(|number| format!("{number:x}")).join(" ");
        added.push('\n');
        append(&mut file, whole, &added).map_err(at)?;
        Ok((numbers, false))
    }

    fn line(&self, number: usize, found: &str, expected: &str) -> String {
        format!("{VARIABLE}={}: line {number}: `{found}`: expected {expected}", self.path.display())
    }
}

fn append(file: &mut File, end: usize, text: &str) -> std::io::Result<()> {
    file.set_len(end as u64)?;
    file.seek(SeekFrom::Start(end as u64))?;
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

/// A line as it is written.
fn entry(line: &str) -> Option<(&str, Numbers)> {
    let (product, numbers) = line.split_once(IS)?;
    let numbers: Option<Vec<u64>> = numbers.split(' ').map(|number| u64::from_str_radix(number, 16).ok()).collect();
    Some((product, numbers?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: Numbers = [0, 1, 2, 3, u64::MAX, 5, 6, 7, 8];

    fn file(folder: &tempfile::TempDir, device: &str) -> Timed {
        Timed::named(Some(folder.path().join("products").into()), device, 130_000).unwrap().unwrap()
    }

    fn must_not_find() -> Result<Numbers, String> {
        Err("looked for again".to_owned())
    }

    #[test]
    fn what_was_found_once_is_taken_from_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let timed = file(&folder, "A");
        assert_eq!(timed.get("p", || Ok(NUMBERS)), Ok((NUMBERS, false)));
        assert_eq!(timed.get("q", || Ok([7; 9])), Ok(([7; 9], false)));
        let text = std::fs::read_to_string(&timed.path).unwrap();
        let lines = "p = 0 1 2 3 ffffffffffffffff 5 6 7 8\nq = 7 7 7 7 7 7 7 7 7\n";
        assert_eq!(text, format!("esper products 1, A, cuBLASLt 130000\n{lines}"));
        assert_eq!(file(&folder, "A").get("p", must_not_find), Ok((NUMBERS, true)));
        assert_eq!(file(&folder, "A").get("q", must_not_find), Ok(([7; 9], true)));
    }

    #[test]
    fn a_file_cut_off_anywhere_gives_what_was_whole_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let timed = file(&folder, "A");
        timed.get("p", || Ok(NUMBERS)).unwrap();
        timed.get("q", || Ok([7; 9])).unwrap();
        let whole = std::fs::read(&timed.path).unwrap();
        for len in 0..=whole.len() {
            std::fs::write(&timed.path, &whole[..len]).unwrap();
            assert!(timed.get("p", || Ok(NUMBERS)).is_ok(), "{len}");
            assert!(timed.get("q", || Ok([7; 9])).is_ok(), "{len}");
            assert_eq!(std::fs::read(&timed.path).unwrap(), whole, "{len}");
        }
    }

    #[test]
    fn another_device_another_file_and_a_failure_leave_it_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let timed = file(&folder, "A");
        assert_eq!(timed.get("p", must_not_find), Err("looked for again".to_owned()));
        assert_eq!(std::fs::read(&timed.path).unwrap(), b"");
        timed.get("p", || Ok(NUMBERS)).unwrap();
        let whole = std::fs::read_to_string(&timed.path).unwrap();
        let error = file(&folder, "B").get("q", || Ok(NUMBERS)).unwrap_err();
        for part in ["ESPER_PRODUCTS=", "line 1", "products 1, A", "products 1, B"] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&timed.path).unwrap(), whole);
        for (other, number) in [("notes", 1), ("notes\n", 1)] {
            std::fs::write(&timed.path, other).unwrap();
            let error = timed.get("p", || Ok(NUMBERS)).unwrap_err();
            assert!(error.contains(&format!("line {number}: `notes`")), "{error}");
            assert_eq!(std::fs::read_to_string(&timed.path).unwrap(), other);
        }
        for bad in ["p", "p = 1 2", "p = 0 1 2 3 4 5 6 7 x", "p = 0 1 2 3 4 5 6 7 8 9"] {
            std::fs::write(&timed.path, format!("{whole}{bad}\n")).unwrap();
            let error = timed.get("q", || Ok(NUMBERS)).unwrap_err();
            assert!(error.contains("line 3") && error.contains("nine hexadecimal numbers"), "{error}");
        }
    }

    #[test]
    fn many_at_once_look_for_a_product_once() {
        let folder = tempfile::tempdir().unwrap();
        let found = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let find = || {
                        found.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        Ok(NUMBERS)
                    };
                    assert_eq!(file(&folder, "A").get("p", find).unwrap().0, NUMBERS);
                });
            }
        });
        assert_eq!(found.into_inner(), 1);
    }

    #[test]
    fn a_name_is_a_file_or_absent() {
        assert_eq!(Timed::named(None, "A", 1), Ok(None));
        assert!(Timed::named(Some("".into()), "A", 1).unwrap_err().contains("expected a file"));
    }
}
