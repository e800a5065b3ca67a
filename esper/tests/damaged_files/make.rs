//! Files of each format, byte by byte, so that anything in them can be wrong.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

pub(crate) fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// 30 rows of two inputs and one of three classes.
pub(crate) fn matrix() -> Vec<u8> {
    floats((0_u8..30).flat_map(|row| [f32::from(row), f32::from(row % 7), f32::from(row % 3)]))
}

/// 30 labels of two classes.
pub(crate) fn labels() -> Vec<u8> {
    (0_u8..30).map(|row| row % 2).collect()
}

pub(crate) fn npy(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    npy_with(&format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}"), data)
}

pub(crate) fn npy_with(header: &str, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(header.len()).unwrap();
    [b"\x93NUMPY\x01\x00".as_slice(), &length.to_le_bytes(), header.as_bytes(), data].concat()
}

pub(crate) fn idx(kind: u8, sizes: &[u32], data: &[u8]) -> Vec<u8> {
    let dims = u8::try_from(sizes.len()).unwrap();
    let sizes: Vec<u8> = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
    [&[0, 0, kind, dims], sizes.as_slice(), data].concat()
}

pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

pub(crate) fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// 1 GiB in 1 MB: one stream behind the other.
pub(crate) fn gzip_bomb(first: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![b'0'; 16 << 20]).unwrap();
    [gzip(first), encoder.finish().unwrap().repeat(64)].concat()
}

pub(crate) fn deflate(content: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// A file of an archive. What its entry says of it can be anything.
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) method: u16,
    pub(crate) flags: u16,
    pub(crate) packed: Vec<u8>,
    pub(crate) size: u32,
    pub(crate) sum: u32,
}

impl Member {
    pub(crate) fn stored(name: &'static str, content: &[u8]) -> Self {
        let (size, sum) = (u32::try_from(content.len()).unwrap(), crc(content));
        Self { name, method: 0, flags: 0, packed: content.to_vec(), size, sum }
    }

    pub(crate) fn deflated(name: &'static str, content: &[u8]) -> Self {
        Self { method: 8, packed: deflate(content), ..Self::stored(name, content) }
    }
}

pub(crate) fn zip(members: &[Member]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for Member { name, method, flags, packed, size, sum } in members {
        let (offset, packed_size) = (u32::try_from(bytes.len()).unwrap(), u32::try_from(packed.len()).unwrap());
        let common = |into: &mut Vec<u8>| {
            for field in [20, *flags, *method, 0, 0x21] {
                into.extend(field.to_le_bytes());
            }
            for field in [*sum, packed_size, *size] {
                into.extend(field.to_le_bytes());
            }
            into.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
            into.extend([0; 2]);
        };
        bytes.extend(b"PK\x03\x04");
        common(&mut bytes);
        bytes.extend(name.as_bytes());
        bytes.extend(packed);
        directory.extend(b"PK\x01\x02\x14\x00");
        common(&mut directory);
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (count, at) = (u16::try_from(members.len()).unwrap(), u32::try_from(bytes.len()).unwrap());
    let length = u32::try_from(directory.len()).unwrap();
    bytes.extend(directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend(count.to_le_bytes().repeat(2));
    bytes.extend(length.to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend([0; 2]);
    bytes
}

/// A PNG image of 8 bits; `color` is 0 for grey and 2 for colors.
pub(crate) fn png(rows: u32, columns: u32, color: u8, levels: &[u8]) -> Vec<u8> {
    let samples = if color == 0 { 1 } else { 3 };
    let lines = levels.chunks(columns as usize * samples).flat_map(|line| [&[0], line].concat());
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&lines.collect::<Vec<u8>>()).unwrap();
    let header = [&columns.to_be_bytes()[..], &rows.to_be_bytes(), &[8, color, 0, 0, 0]].concat();
    let chunk = |kind: &[u8], data: &[u8]| {
        let named = [kind, data].concat();
        [&u32::try_from(data.len()).unwrap().to_be_bytes()[..], &named, &crc(&named).to_be_bytes()].concat()
    };
    [
        b"\x89PNG\r\n\x1a\n".to_vec(),
        chunk(b"IHDR", &header),
        chunk(b"IDAT", &packed.finish().unwrap()),
        chunk(b"IEND", &[]),
    ]
    .concat()
}

fn crc(content: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(content);
    sum.sum()
}
