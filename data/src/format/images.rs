//! A folder of images, PNG or JPEG: its sub-folders are the classes.
//!
//! Samples have the shape (1, H, W) where all images are grey, else (3, H, W); 8 bits per channel, transparency is dropped. All
//! images have one size.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::array::{MAX_VALUES, room};
use super::{Features, Format, Reading, Records};
use crate::column::{Builder, Column, add_word};
use crate::error::quoted;
use crate::{Error, Inputs, unpack};

/// Sub-folders of images.
pub(super) const FORMAT: Format = Format { name: "images", endings: &["/"], starts: &[], keys: &[], read };

const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];
/// Longest side of an image, and bytes of a file or of an image.
const MAX_SIDE: usize = 16_384;
const MAX_BYTES: usize = 1 << 28;
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// An image file and the name of its class.
type Labeled = (PathBuf, String);

fn read(path: &Path, reading: &Reading<'_>) -> Result<Records, Error> {
    let mut num_others = 0;
    let mut files: Vec<Labeled> = Vec::new();
    let (folders, beside) = listed(path, &mut num_others)?;
    for folder in folders {
        let class = folder
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(|| content(&folder, "a name that is not UTF-8".into(), "the name of a class".into()))?;
        let (deeper, images) = listed(&folder, &mut num_others)?;
        if let Some(deeper) = deeper.first() {
            return Err(content(
                deeper,
                "a folder within a class".into(),
                "images alone in the folder of a class".into(),
            ));
        }
        files.extend(images.into_iter().map(|image| (image, class.to_owned())));
    }
    let is_labeled = !files.is_empty();
    if let Some(image) = beside.first().filter(|_| is_labeled || reading.learned.is_none()) {
        return Err(content(
            image,
            "an image beside the classes".into(),
            "images in folders that are called as their class".into(),
        ));
    }
    files.extend(beside.into_iter().map(|image| (image, String::new())));
    if files.is_empty() {
        return Err(content(path, "no image".into(), "folders of .png, .jpg or .jpeg files, one per class".into()));
    }
    let shape = common_shape(&files)?;
    let width: usize = shape.iter().product();
    let total = files.len().checked_mul(width).filter(|&total| total <= MAX_VALUES);
    let total = total.ok_or_else(|| {
        let found = format!("{} images of the shape {shape:?}", files.len());
        content(path, found, format!("at most {MAX_VALUES} values"))
    })?;
    let mut values = room(total, &path.display().to_string())?;
    let (mut codes, mut known) = (Vec::new(), std::collections::BTreeMap::new());
    for (file, class) in &files {
        add_word(&mut codes, &mut known, class);
        let picture = Picture::read(file, false)?;
        picture.extend(&mut values, shape[0]);
    }
    let left_out = if num_others > 0 { format!("; {num_others} other files are left out") } else { String::new() };
    let notes = vec![format!("{} images of the shape {shape:?} (channels, rows, columns){left_out}", files.len())];
    let mut records = Records::new(Features::Whole(Inputs::Values(values), shape), notes);
    if is_labeled {
        let cells = Builder::Words { codes, known }.finish();
        records.targets.push(Column { name: "folder".into(), position: 0, cells });
    }
    Ok(records)
}

fn content(path: &Path, found: String, expected: String) -> Error {
    Error::Content { place: path.display().to_string(), found, expected }
}

/// Folders and images in a folder, in the order of their names; hidden ones are passed over, other files are counted.
fn listed(folder: &Path, num_others: &mut usize) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Error> {
    let failed = |source| Error::Read { path: folder.into(), source };
    let (mut folders, mut images) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_image = |path: &Path| {
            path.extension().is_some_and(|found| ENDINGS.iter().any(|ending| found.eq_ignore_ascii_case(ending)))
        };
        if path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.')) {
            continue;
        } else if path.is_dir() {
            folders.push(path);
        } else if is_image(&path) {
            images.push(path);
        } else {
            *num_others += 1;
        }
    }
    folders.sort_unstable();
    images.sort_unstable();
    Ok((folders, images))
}

/// Looks at the headers of all images: their size, and whether all are grey.
fn common_shape(files: &[Labeled]) -> Result<Vec<usize>, Error> {
    let (mut common, mut is_grey) = (None, true);
    for (file, _) in files {
        let picture = Picture::read(file, true)?;
        let size = (picture.rows, picture.columns);
        is_grey &= picture.channels < 3;
        let first = *common.get_or_insert(size);
        if size != first {
            let found = format!("{} rows × {} columns", size.0, size.1);
            return Err(content(file, found, format!("{} × {}, as in {}", first.0, first.1, files[0].0.display())));
        }
    }
    let (rows, columns) = common.unwrap_or_default();
    Ok(vec![if is_grey { 1 } else { 3 }, rows, columns])
}

/// An image: rows × columns × channels levels.
#[derive(Debug)]
struct Picture {
    rows: usize,
    columns: usize,
    /// 1 or 2 for grey, 3 or 4 for colors; the second and the fourth are transparency.
    channels: usize,
    /// None when only the header was read.
    levels: Vec<u8>,
}

impl Picture {
    /// Reads a file; its first bytes tell the format, whatever its name says.
    fn read(file: &Path, is_header_enough: bool) -> Result<Self, Error> {
        let bytes = unpack::read_file(file, MAX_BYTES as u64)?;
        let picture = if bytes.starts_with(PNG) {
            Self::of_png(&bytes, is_header_enough)
        } else {
            Self::of_jpeg(&bytes, is_header_enough)
        };
        let whole = "a whole PNG or JPEG image";
        let picture = picture.map_err(|found| content(file, quoted(&found), whole.into()))?;
        let expected = picture.rows.saturating_mul(picture.columns).saturating_mul(picture.channels);
        if !is_header_enough && picture.levels.len() != expected {
            return Err(content(file, format!("{} levels", picture.levels.len()), whole.into()));
        }
        let size = picture.rows.max(picture.columns);
        if size > MAX_SIDE || size == 0 {
            let found = format!("{} rows × {} columns", picture.rows, picture.columns);
            return Err(content(file, found, format!("1 to {MAX_SIDE} of both")));
        }
        // Headers of all images are read before one is decoded.
        if expected > MAX_BYTES {
            let found = format!("{} rows × {} columns of {} channels", picture.rows, picture.columns, picture.channels);
            return Err(content(file, found, format!("at most {MAX_BYTES} levels")));
        }
        Ok(picture)
    }

    fn of_png(bytes: &[u8], is_header_enough: bool) -> Result<Self, String> {
        let text = |error: png::DecodingError| error.to_string();
        let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: MAX_BYTES });
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().map_err(text)?;
        let side = |side: u32| usize::try_from(side).unwrap_or(usize::MAX);
        let (rows, columns) = (side(reader.info().height), side(reader.info().width));
        let channels = reader.output_color_type().0.samples();
        let mut levels = Vec::new();
        if !is_header_enough {
            let size = reader.output_buffer_size().filter(|&size| size <= MAX_BYTES);
            levels = vec![0; size.ok_or_else(|| format!("{rows} rows × {columns} columns of {channels} channels"))?];
            reader.next_frame(&mut levels).map_err(text)?;
        }
        Ok(Self { rows, columns, channels, levels })
    }

    fn of_jpeg(bytes: &[u8], is_header_enough: bool) -> Result<Self, String> {
        let options = DecoderOptions::default().set_strict_mode(true).set_max_width(MAX_SIDE).set_max_height(MAX_SIDE);
        let open = |color| {
            let mut decoder =
                JpegDecoder::new_with_options(ZCursor::new(bytes), options.jpeg_set_out_colorspace(color));
            decoder.decode_headers().map(|()| decoder).map_err(|error| error.to_string())
        };
        let mut decoder = open(ColorSpace::RGB)?;
        let is_grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
        let (color, channels) = if is_grey { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
        if is_grey {
            decoder = open(color)?;
        }
        let info = decoder.info().ok_or("no header")?;
        let (rows, columns) = (usize::from(info.height), usize::from(info.width));
        let levels = if is_header_enough { Vec::new() } else { decoder.decode().map_err(|error| error.to_string())? };
        Ok(Self { rows, columns, channels, levels })
    }

    /// Adds the levels channel by channel, row by row; a grey image has one level for all colors.
    fn extend(&self, values: &mut Vec<f32>, num_channels: usize) {
        for channel in 0..num_channels {
            let channel = if self.channels < 3 { 0 } else { channel };
            values.extend(self.levels.iter().skip(channel).step_by(self.channels).map(|&level| f32::from(level)));
        }
    }
}
