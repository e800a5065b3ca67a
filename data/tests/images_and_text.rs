//! Folders of images and files of tokens: what they become, and what is refused.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::fs;
use std::path::Path;

use esper_data::{DataConfig, DataName, Inputs, Prepared, TargetKind, Targets, load};

const GREY_JPEG: &[u8] = include_bytes!("fixtures/grey.jpg");
const COLOR_JPEG: &[u8] = include_bytes!("fixtures/color.jpg");

fn png(rows: u32, columns: u32, color: png::ColorType, levels: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, columns, rows);
    encoder.set_color(color);
    encoder.write_header().unwrap().write_image_data(levels).unwrap();
    bytes
}

fn grey(level: u8) -> Vec<u8> {
    png(2, 3, png::ColorType::Grayscale, &[level, 1, 2, 3, 4, 5])
}

struct Folder(tempfile::TempDir);

impl Folder {
    /// Two classes of four grey images of 2 × 3, and what `more` adds.
    fn new(more: &[(&str, &[u8])]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for index in 0..8_u8 {
            folder.write(&format!("{}/{index}.png", ["cat", "dog"][usize::from(index % 2)]), &grey(10 * index));
        }
        for (name, bytes) in more {
            folder.write(name, bytes);
        }
        folder
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn load(&self, path: &Path) -> Result<Prepared, String> {
        let config = DataConfig { standardize: Some(false), ..DataConfig::new(DataName::File(path.into())) };
        load(&config).map_err(|error| error.to_string().replace(&self.0.path().display().to_string(), "F"))
    }
}

#[test]
fn sub_folders_of_images_are_classes() {
    let folder = Folder::new(&[("cat/notes.md", b"x"), (".hidden/a.png", b"x")]);
    let Prepared { splits, preparation, notes, .. } = folder.load(folder.0.path()).unwrap();
    assert_eq!(preparation.target.names, ["cat", "dog"]);
    assert_eq!(splits.train.sample_shape(), [1, 2, 3]);
    assert_eq!(splits.train.num_samples() + splits.validation.num_samples() + splits.test.num_samples(), 8);
    // Files come in the order of folders, then names: cat 0, 2, 4, 6, dog 1, 3, 5, 7.
    for (index, &row) in splits.assignment.train.iter().enumerate() {
        let level = 10 * if row < 4 { 2 * row } else { 2 * (row - 4) + 1 };
        assert_eq!(splits.train.sample(index), [level as f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(splits.train.targets().labels().unwrap()[index], u32::from(row >= 4));
    }
    assert_eq!(notes[0], "8 images of the shape [1, 2, 3] (channels, rows, columns); 1 other files are left out");

    folder.write("more/9.png", &grey(90));
    let applied = preparation.apply(&folder.0.path().join("more")).unwrap();
    assert_eq!(applied.inputs, Inputs::Values(vec![90.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    assert_eq!(applied.targets, None);
}

#[test]
fn one_image_with_colors_gives_all_three_channels() {
    let pixels: Vec<u8> = (0..18).collect();
    let folder = Folder::new(&[("dog/9.png", &png(2, 3, png::ColorType::Rgb, &pixels))]);
    let Prepared { splits, preparation, .. } = folder.load(folder.0.path()).unwrap();
    let all = [&splits.train, &splits.validation, &splits.test];
    let rows = || all.iter().flat_map(|table| (0..table.num_samples()).map(|row| table.sample(row).to_vec()));
    let colored =
        [0, 3, 6, 9, 12, 15, 1, 4, 7, 10, 13, 16, 2, 5, 8, 11, 14, 17].map(|level: u8| f32::from(level)).to_vec();
    assert_eq!(rows().filter(|row| *row == colored).count(), 1);
    assert_eq!(rows().filter(|row| row[..6] == row[6..12] && row[6..12] == row[12..]).count(), 8);
    // So do grey ones that are read by it.
    folder.write("more/a.png", &png(2, 3, png::ColorType::Grayscale, &[1, 2, 3, 4, 5, 6]));
    let applied = preparation.apply(&folder.0.path().join("more")).unwrap();
    assert_eq!((applied.num_samples(), applied.sample_shape), (1, vec![3, 2, 3]));
    let Inputs::Values(values) = applied.inputs else { panic!("values") };
    assert!(values[..6] == values[6..12] && values[6..12] == values[12..], "{values:?}");
}

#[test]
fn images_without_a_channel_are_those_of_one() {
    let folder = Folder::new(&[]);
    let Prepared { preparation, .. } = folder.load(folder.0.path()).unwrap();
    let [_, rows, columns] = preparation.sample_shape[..] else { panic!("{:?}", preparation.sample_shape) };
    let write = |rows: usize, columns: usize| {
        let sides = [1, rows, columns].map(|side| u32::try_from(side).unwrap().to_be_bytes()).concat();
        folder.write("x.idx", &[&[0, 0, 8, 3][..], &sides, &vec![7; rows * columns]].concat());
        preparation.apply(&folder.0.path().join("x.idx"))
    };
    assert_eq!(write(rows, columns).unwrap().sample_shape, preparation.sample_shape);
    assert!(write(columns, rows).unwrap_err().to_string().contains("found samples of"));
}

#[test]
fn a_jpeg_that_claims_too_many_pixels_is_refused_by_its_header() {
    let folder = Folder(tempfile::tempdir().unwrap());
    // The header of a frame: marker, length, precision, rows, columns.
    let start = COLOR_JPEG.windows(2).position(|marker| marker == b"\xff\xc0").unwrap();
    let mut large = COLOR_JPEG.to_vec();
    large[start + 5..start + 9].copy_from_slice(&[0x40, 0, 0x40, 0]);
    folder.write("cat/0.jpg", &large);
    folder.write("dog/0.jpg", &large);
    let message = "F/cat/0.jpg: found 16384 rows × 16384 columns of 3 channels, expected at most 268435456 levels";
    assert_eq!(folder.load(folder.0.path()).unwrap_err(), message);
}

#[test]
fn jpeg_images_are_read_whatever_their_names_say() {
    let folder = Folder(tempfile::tempdir().unwrap());
    for index in 0..4 {
        folder.write(&format!("grey/{index}.jpg"), GREY_JPEG);
        folder.write(&format!("color/{index}.png"), COLOR_JPEG);
    }
    let Prepared { splits, .. } = folder.load(folder.0.path()).unwrap();
    assert_eq!(splits.train.sample_shape(), [3, 4, 4]);
    let red = (0..splits.train.num_samples()).find(|&row| splits.train.targets().labels().unwrap()[row] == 0).unwrap();
    for (channel, level) in [200.0_f32, 30.0, 40.0].into_iter().enumerate() {
        assert!(splits.train.sample(red)[16 * channel..][..16].iter().all(|value| (value - level).abs() <= 3.0));
    }
}

#[test]
fn damaged_and_odd_images_are_refused_by_their_file() {
    let whole = grey(1);
    let mut flipped = whole.clone();
    let at = whole.len() - 20;
    flipped[at] ^= 0xff;
    let mut huge = whole.clone();
    huge[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
    let image = "expected a whole PNG or JPEG image";
    for (name, bytes, message) in [
        ("cat/x.png", vec![], image),
        ("cat/x.png", b"hello".to_vec(), image),
        ("cat/x.png", whole[..8].to_vec(), image),
        ("cat/x.png", whole[..20].to_vec(), image),
        ("cat/x.png", whole[..40].to_vec(), image),
        ("cat/x.png", whole[..whole.len() - 25].to_vec(), image),
        ("cat/x.png", flipped, image),
        ("cat/x.png", huge, image),
        ("cat/x.jpg", GREY_JPEG[..2].to_vec(), image),
        ("cat/x.jpg", GREY_JPEG[..GREY_JPEG.len() / 3].to_vec(), image),
        ("cat/x.jpg", [b"\xff\xd8".as_slice(), &[0; 100]].concat(), image),
        (
            "cat/x.png",
            png(3, 2, png::ColorType::Grayscale, &[0; 6]),
            "found 3 rows × 2 columns, expected 2 × 3, as in F/cat/0.png",
        ),
        ("cat/x.jpg", GREY_JPEG.to_vec(), "found 4 rows × 4 columns, expected 2 × 3"),
        ("x.png", whole.clone(), "found an image beside the classes"),
        ("cat/deeper/x.png", whole.clone(), "found a folder within a class"),
    ] {
        let folder = Folder::new(&[(name, &bytes)]);
        let found = folder.load(folder.0.path()).unwrap_err();
        let place = name.strip_suffix("/x.png").filter(|place| place.contains('/')).unwrap_or(name);
        assert!(
            found.starts_with(&format!("F/{place}: ")) && found.contains(message),
            "{name}: {found}\n   lacks: {message}"
        );
    }
    let one = Folder(tempfile::tempdir().unwrap());
    assert!(one.load(one.0.path()).unwrap_err().contains("found no image, expected folders of .png"));
    one.write("only/a.png", &whole);
    assert!(one.load(one.0.path()).unwrap_err().contains("found the label `only` in every row of `folder`"));
}

#[test]
fn text_and_tokens_become_windows_that_are_followed_by_what_comes_next() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let text: Vec<u8> = (0..=255_u8).cycle().take(1000).collect();
    folder.write("a.txt", &text);
    let wide: Vec<u8> = text.iter().flat_map(|&byte| (2 * u16::from(byte)).to_le_bytes()).collect();
    folder.write("a.u16", &wide);
    for (name, factor, vocabulary) in [("a.txt", 1, 256), ("a.u16", 2, 511)] {
        let Prepared { splits, preparation, .. } = folder.load(&folder.0.path().join(name)).unwrap();
        let Inputs::Tokens(inputs) = splits.train.inputs() else { panic!("tokens") };
        let Targets::Tokens { tokens, window, vocabulary: found } = splits.train.targets() else { panic!("tokens") };
        assert_eq!((*window, *found, preparation.target.kind), (64, vocabulary, TargetKind::Tokens));
        assert_eq!(inputs[..3], [0, factor, 2 * factor]);
        assert_eq!(tokens[..3], [factor, 2 * factor, 3 * factor]);
        let applied = preparation.apply(&folder.0.path().join(name)).unwrap();
        assert_eq!((applied.num_samples(), applied.targets.unwrap().num_outputs()), (15, vocabulary));
        // 15 windows: the first 9 for training, then 3 and 3, in order.
        assert_eq!(
            [&splits.assignment.train[..], &splits.assignment.validation, &splits.assignment.test].concat(),
            (0..15).collect::<Vec<_>>()
        );
    }
    // All these tokens are in either vocabulary, and mean something else.
    folder.write("low.u16", &[7, 0].repeat(1000));
    for (learned, other, message) in [("a.txt", "low.u16", "expected a text"), ("a.u16", "a.txt", "found a text")] {
        let Prepared { preparation, .. } = folder.load(&folder.0.path().join(learned)).unwrap();
        let error = preparation.apply(&folder.0.path().join(other)).unwrap_err().to_string();
        assert!(error.contains(other) && error.contains(message), "{error}");
    }
}

#[test]
fn tokens_are_not_scaled_and_whoever_asks_for_it_is_told() {
    let folder = Folder(tempfile::tempdir().unwrap());
    folder.write("a.txt", &[7; 1000]);
    let config = DataConfig::new(DataName::File(folder.0.path().join("a.txt")));
    for (key, config) in [
        ("data.csv_scale", DataConfig { csv_scale: esper_data::Scale::new(2.0), ..config.clone() }),
        ("data.standardize", DataConfig { standardize: Some(true), ..config.clone() }),
    ] {
        let error = load(&config).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains("is for numbers") && error.contains("holds tokens"), "{error}");
    }
    let prepared = load(&config).unwrap();
    assert!(prepared.preparation.target.is_text, "a text is told from other tokens");
}

#[test]
fn damaged_and_odd_files_of_tokens_are_refused_by_what_is_wrong() {
    let big = u32::MAX.to_le_bytes().repeat(100);
    for (name, bytes, message) in [
        ("a.txt", &[][..], "found 0 tokens, expected 65 or more: a window of 64 (data.window) and what follows"),
        ("a.txt", &[1; 64], "found 64 tokens, expected 65 or more"),
        ("a.txt", &[1; 65], "1 rows are to be split, expected at least 3"),
        ("a.txt", &[1; 129], "2 rows are to be split, expected at least 3"),
        ("a.u16", &[1; 401], "found 401 bytes, expected tokens of 2 bytes each"),
        ("a.u16", &[1; 100], "found 50 tokens, expected 65 or more"),
        ("a.u32", &[1; 402], "found 402 bytes, expected tokens of 4 bytes each"),
        ("a.u32", &big, "found the token 4294967295, expected tokens below 1048576"),
        ("a.txt.gz", &[1; 300], "damaged or cut short while unpacking"),
        ("a.txt.gz", &[0x1f, 0x8b], "damaged or cut short while unpacking"),
        ("a.txt.gz", &[], "damaged or cut short while unpacking"),
        ("a.u16", &[], "found 0 tokens"),
        ("a.u16", &[7; 130], "1 rows are to be split"),
        ("a.u32", &[7; 64], "found 16 tokens"),
        ("a.u32", &[0; 400], "1 rows are to be split"),
    ] {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write(name, bytes);
        let found = folder.load(&folder.0.path().join(name)).map(|_| ()).unwrap_err();
        assert!(found.contains(message), "{name}: {found}\n   lacks: {message}");
    }
}
