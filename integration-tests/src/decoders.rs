//! Whatever reads bytes from outside, as functions of bytes: they may refuse, and may neither panic nor take long.
//!
//! Driven by mutations of real files in `tests/decoders.rs`, and by cargo-fuzz in `fuzz/`; see `docs/testing.md`.

use std::cell::RefCell;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use candle_core::{Device, Tensor};
use esper::config::{EsperConfig, Layer};
use esper::data::{self, DataConfig, DataName, Preparation, Prepared};
use esper::report;
use esper_disk::testkit::SimFs;
use esper_disk::{Fs as _, StdFs};
use esper_signing::{CommandKey, Journal};
use esper_telemetry::codec::{HEADER_BYTES, decode_frame, encode_frame};
use esper_telemetry::reader::FrameReader;
use esper_telemetry::sink::FrameSink;
use esper_weights::Weights;
use leyline::command::{Command, KeyId, Operation};
use leyline::id::{RunId, SeedId};
use tempfile::TempDir;
use tolaria::checkpoint::CheckpointReader;

use crate::run_folder;

/// A reader of bytes.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    /// As in `fuzz/`.
    pub name: &'static str,
    /// Reads bytes from anywhere; whether they are accepted.
    ///
    /// # Panics
    /// When what was read breaks a promise.
    pub read: fn(&[u8]) -> bool,
    /// What it reads in real life; every one is accepted.
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const DECODERS: &[Decoder] = &[
    Decoder { name: "manifest", read: |bytes| checkpoint("manifest.json", bytes), samples: || stored("manifest.json") },
    Decoder { name: "manifest_body", read: manifest_body, samples: manifest_bodies },
    Decoder { name: "state", read: |bytes| checkpoint("state.json", bytes), samples: || stored("state.json") },
    Decoder {
        name: "tensors",
        read: |bytes| checkpoint("tensors.safetensors", bytes),
        samples: || stored("tensors.safetensors"),
    },
    Decoder { name: "packet", read: packet, samples: || vec![run_folder::bytes("packets.bin")] },
    Decoder { name: "packet_payload", read: packet_payload, samples: packet_payloads },
    Decoder { name: "packets", read: packets, samples: || vec![run_folder::bytes("packets.bin")] },
    Decoder { name: "command", read: command, samples: commands },
    Decoder { name: "journal", read: journal, samples: || vec![run_folder::bytes("commands.journal")] },
    Decoder {
        name: "config",
        read: config,
        samples: || vec![run_folder::bytes("config.toml"), b"run.epochs = 3".to_vec()],
    },
    Decoder {
        name: "metrics",
        read: |bytes| run("metrics.jsonl", bytes),
        samples: || vec![run_folder::bytes("metrics.jsonl")],
    },
    Decoder { name: "record", read: |bytes| run("run.json", bytes), samples: || vec![run_folder::bytes("run.json")] },
    Decoder {
        name: "summary",
        read: |bytes| run("summary.json", bytes),
        samples: || vec![run_folder::bytes("summary.json")],
    },
    Decoder {
        name: "model",
        read: |bytes| exported("model.json", bytes),
        samples: || vec![run_folder::exported("model.json")],
    },
    Decoder {
        name: "model_weights",
        read: |bytes| exported("model.safetensors", bytes),
        samples: || vec![run_folder::exported("model.safetensors")],
    },
    Decoder {
        name: "weights",
        read: |bytes| Weights::from_bytes(bytes).is_ok(),
        samples: || vec![run_folder::exported("model.safetensors")],
    },
    Decoder { name: "csv", read: |bytes| data_file("rows.csv", bytes), samples: csv_files },
    Decoder { name: "npy", read: |bytes| data_file("x.npy", bytes), samples: || vec![candle_file("x.npy")] },
    Decoder { name: "npz", read: |bytes| data_file("x.npz", bytes), samples: || vec![candle_file("x.npz")] },
    Decoder {
        name: "safetensors",
        read: |bytes| data_file("x.safetensors", bytes),
        samples: || vec![candle_file("x.safetensors")],
    },
    Decoder { name: "idx", read: images_file, samples: idx_files },
    Decoder { name: "image", read: image, samples: images },
    Decoder {
        name: "text",
        read: |bytes| data_file("x.txt", bytes),
        samples: || vec![b"to be or not to be, that is the question ".repeat(9)],
    },
    Decoder { name: "tokenizer", read: tokenizer, samples: tokenizers },
    Decoder {
        name: "tokens",
        read: |bytes| data_file("x.u16", bytes),
        samples: || vec![b"\x01\0\x02\0\x03\0".repeat(60)],
    },
    Decoder {
        name: "gzip",
        read: |bytes| data_file("rows.csv.gz", bytes),
        samples: || vec![include_bytes!("decoders/rows.csv.gz").to_vec()],
    },
];

/// The decoder of this name.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn decoder(name: &str) -> &'static Decoder {
    DECODERS.iter().find(|decoder| decoder.name == name).unwrap_or_else(|| panic!("no decoder `{name}`"))
}

/// A place for files of this thread, in memory where there is such a place.
fn place() -> PathBuf {
    thread_local!(static PLACE: RefCell<Option<TempDir>> = const { RefCell::new(None) });
    PLACE.with_borrow_mut(|place| {
        let make = || {
            let memory = Path::new("/dev/shm");
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
        };
        place.get_or_insert_with(|| make().expect("a temporary folder")).path().to_owned()
    })
}

fn put(path: &Path, bytes: &[u8]) {
    if fs::write(path, bytes).is_err() {
        fs::create_dir_all(path.parent().expect("a file in a folder")).expect("a folder");
        fs::write(path, bytes).expect("a temporary file");
    }
}

const GENERATION: &str = "/gen-00000001";

/// The one generation of a checkpoint.
fn stored(file: &str) -> Vec<Vec<u8>> {
    vec![run_folder::generation(file)]
}

/// A generation on a disk in memory with these files.
fn disk(files: [(&str, &[u8]); 3]) -> Arc<SimFs> {
    let disk = Arc::new(SimFs::default());
    disk.create_dir(Path::new(GENERATION)).expect("an empty disk");
    for (name, bytes) in files {
        disk.write_synced(&Path::new(GENERATION).join(name), bytes).expect("an empty disk");
    }
    disk
}

/// One file of a generation; the manifest fits the others.
fn checkpoint(file: &str, bytes: &[u8]) -> bool {
    static WHOLE: LazyLock<([Vec<u8>; 3], serde_json::Value)> = LazyLock::new(|| {
        let files = ["manifest.json", "state.json", "tensors.safetensors"].map(run_folder::generation);
        let body = serde_json::from_slice(&body_of(&files[0])).expect("a body");
        (files, body)
    });
    let (files, body) = &*WHOLE;
    let [_, mut state, mut tensors] = files.each_ref().map(|file| &**file);
    match file {
        "manifest.json" => return load(disk([(file, bytes), ("state.json", state), ("tensors.safetensors", tensors)])),
        "state.json" => state = bytes,
        _ => tensors = bytes,
    }
    let mut body = body.clone();
    for (index, content) in [state, tensors].into_iter().enumerate() {
        body["files"][index]["bytes"] = content.len().into();
        body["files"][index]["blake3"] = blake3::hash(content).to_hex().as_str().into();
    }
    let manifest = seal(body.to_string().as_bytes());
    load(disk([("manifest.json", &manifest), ("state.json", state), ("tensors.safetensors", tensors)]))
}

fn load(disk: Arc<SimFs>) -> bool {
    let reader = CheckpointReader::new("/", disk);
    let Ok(Some(loaded)) = reader.load_latest() else { return false };
    // What is taken up can be looked at.
    let tensors = loaded.snapshot.components.values().flat_map(|saved| saved.tensors.values());
    assert!(tensors.map(Tensor::elem_count).sum::<usize>() < 1 << 24);
    true
}

/// The envelope of `tolaria::checkpoint`, which is fixed to the byte.
fn seal(body: &[u8]) -> Vec<u8> {
    let digest = blake3::hash(body).to_hex();
    [b"{\"blake3\":\"", digest.as_bytes(), b"\",\"manifest\":", body, b"}\n"].concat()
}

fn body_of(manifest: &[u8]) -> Vec<u8> {
    manifest[b"{\"blake3\":\"".len() + 64 + b"\",\"manifest\":".len()..manifest.len() - 2].to_vec()
}

fn manifest_bodies() -> Vec<Vec<u8>> {
    stored("manifest.json").iter().map(|manifest| body_of(manifest)).collect()
}

fn manifest_body(body: &[u8]) -> bool {
    checkpoint("manifest.json", &seal(body))
}

fn packet(bytes: &[u8]) -> bool {
    let Ok((packet, len)) = decode_frame(bytes) else { return false };
    assert!(len <= bytes.len());
    let again = encode_frame(&packet).expect("what was read can be written");
    assert_eq!(decode_frame(&again).expect("what was written can be read").0, packet);
    true
}

/// Around the payload a header that fits it.
fn packet_payload(payload: &[u8]) -> bool {
    let mut frame = [&b"ESPRTELM\x01\0\x01\0\0\0\0\0"[..], &[0; HEADER_BYTES - 16], payload].concat();
    frame[16..24].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    frame[24..56].copy_from_slice(blake3::hash(payload).as_bytes());
    let sum = crc32c::crc32c(&frame[..60]);
    frame[60..64].copy_from_slice(&sum.to_le_bytes());
    packet(&frame)
}

fn packet_payloads() -> Vec<Vec<u8>> {
    let bytes = run_folder::bytes("packets.bin");
    let (_, len) = decode_frame(&bytes).expect("a frame");
    vec![bytes[HEADER_BYTES..len].to_vec()]
}

/// A file that is opened for appending is repaired, and readable from then on.
fn packets(bytes: &[u8]) -> bool {
    let path = place().join("packets.bin");
    put(&path, bytes);
    let is_accepted = FrameSink::append(&path).is_ok();
    if is_accepted {
        assert!(FrameReader::open(&path).expect("a file").all(|packet| packet.is_ok()));
    }
    let damaged = (1..).map(|number| path.with_file_name(format!("packets.damaged-{number}.bin")));
    damaged.map(fs::remove_file).take_while(Result::is_ok).for_each(drop);
    is_accepted
}

fn command(bytes: &[u8]) -> bool {
    let Ok(command) = Command::from_bytes(bytes) else { return false };
    assert_eq!(command.to_bytes(), bytes, "one command, one spelling");
    true
}

fn commands() -> Vec<Vec<u8>> {
    let run_id = RunId::new("run-1").expect("a name");
    let operations = [
        Operation::germinate("slot-0".parse().expect("a slot"), "linear".parse().expect("a blueprint")),
        Operation::Cull { seed: SeedId(3) },
    ];
    let of = |operation| {
        let command = Command::new(run_id.clone(), 7, 1_000_000, operation, "test".into());
        CommandKey::new([1; 32]).sign(KeyId(1), &command).bytes
    };
    operations.into_iter().map(of).collect()
}

fn journal(bytes: &[u8]) -> bool {
    let (disk, path) = (SimFs::default(), Path::new("/commands.journal"));
    disk.write_synced(path, bytes).expect("an empty disk");
    let is_accepted = Journal::open_on(&disk, path).is_ok();
    if is_accepted {
        Journal::open_on(&disk, path).expect("what was opened can be opened again");
    } else {
        assert_eq!(disk.read(path, u64::MAX).expect("a file"), bytes, "a journal that is refused is left alone");
    }
    is_accepted
}

fn config(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(loaded) = EsperConfig::load(None, vec![Layer::text("fuzz.toml", text)]) else { return false };
    let written = loaded.to_toml().expect("what was read can be written");
    let again = EsperConfig::load(None, vec![Layer::text("again.toml", written.as_str())]);
    assert_eq!(again.expect("what was written can be read").config, loaded.config);
    true
}

/// One file of a run folder, the others as they are, but for a short configuration.
fn run(file: &str, bytes: &[u8]) -> bool {
    let dir = place().join(file);
    if !dir.is_dir() {
        for name in ["run.json", "metrics.jsonl", "summary.json"] {
            put(&dir.join(name), &run_folder::bytes(name));
        }
        put(&dir.join("config.toml"), b"run.epochs = 4");
    }
    put(&dir.join(file), bytes);
    let read = report::Run::read(&dir);
    let Ok(run) = read else { return false };
    assert!(!report::render_text(&run).is_empty());
    report::render_html(&run).is_ok()
}

/// One file of an exported network, the other as it is.
fn exported(file: &str, bytes: &[u8]) -> bool {
    let dir = place().join(format!("exported-{file}"));
    if !dir.is_dir() {
        for name in ["model.json", "model.safetensors"] {
            put(&dir.join(name), &run_folder::exported(name));
        }
    }
    put(&dir.join(file), bytes);
    let Ok(network) = esper_export::Network::load(&dir) else { return false };
    assert!(network.preparation().num_features() > 0);
    true
}

fn data_file(name: &str, bytes: &[u8]) -> bool {
    let path = place().join(name);
    put(&path, bytes);
    load_data(path).is_some()
}

fn load_data(path: PathBuf) -> Option<Prepared> {
    let config = DataConfig::new(DataName::File(path));
    // Shorter than the usual one, as files of tokens here are; no other file has windows.
    let window = config.holds_tokens().then_some(8).and_then(NonZeroUsize::new);
    let config = DataConfig { window: window.unwrap_or(config.window), ..config };
    let prepared = data::load(&config).ok()?;
    for part in [&prepared.splits.train, &prepared.splits.validation, &prepared.splits.test] {
        part.to_tensors(&Device::Cpu).expect("samples that were accepted");
    }
    Some(prepared)
}

/// What a text is turned into tokens by.
fn tokenizer(bytes: &[u8]) -> bool {
    let (path, text) = (place().join("tokenizer.json"), place().join("x.txt"));
    put(&path, bytes);
    put(&text, &b"to be or not to be, that is the question ".repeat(9));
    let window = NonZeroUsize::new(8).expect("above 0");
    data::load(&DataConfig { window, tokenizer: Some(path), ..DataConfig::new(DataName::File(text)) }).is_ok()
}

fn tokenizers() -> Vec<Vec<u8>> {
    let of = |model: &str, before: &str, decoder: &str| {
        let rest = r#""truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"post_processor":null"#;
        format!(r#"{{"version":"1.0",{rest},"pre_tokenizer":{before},"decoder":{decoder},"model":{model}}}"#)
            .into_bytes()
    };
    let words = r#"{"type":"WordLevel","vocab":{"?":0,"to":1,"be":2,"or":3,"not":4},"unk_token":"?"}"#;
    let pairs = r#"{"type":"BPE","unk_token":"?","vocab":{"?":0,"t":1,"o":2,"b":3,"e":4,"to":5},"merges":[["t","o"]]}"#;
    let bytes = r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}"#;
    vec![of(words, r#"{"type":"Whitespace"}"#, "null"), of(pairs, bytes, bytes)]
}

fn csv_files() -> Vec<Vec<u8>> {
    let rows = |ending: fn(usize) -> &'static str| {
        (0..24).map(move |row| format!("{},{}.5,{}\n", row * 7 % 5, row, ending(row)))
    };
    vec![
        "a,b,label\n"
            .to_owned()
            .into_bytes()
            .into_iter()
            .chain(rows(|row| ["x", "y", "\"z, z\""][row % 3]).collect::<String>().into_bytes())
            .collect(),
        rows(|row| ["1", "2.5", "-4e2"][row % 3]).collect::<String>().replace(',', ";").into_bytes(),
    ]
}

/// A file of inputs and targets as candle writes it.
fn candle_file(name: &str) -> Vec<u8> {
    let path = place().join(name);
    let inputs = Tensor::arange(0_f32, 72., &Device::Cpu).and_then(|x| x.reshape((24, 3))).expect("numbers");
    let targets = Tensor::from_vec((0..24_u32).map(|row| row % 2).collect(), 24, &Device::Cpu).expect("numbers");
    let written = match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "npy" => inputs.write_npy(&path),
        "npz" => Tensor::write_npz(&[("x", &inputs), ("y", &targets)], &path),
        _ => candle_core::safetensors::save(&[("x", inputs), ("y", targets)].into(), &path),
    };
    written.expect("a temporary file");
    StdFs.read(&path, 1 << 20).expect("a temporary file")
}

/// Pictures with their labels beside.
fn images_file(bytes: &[u8]) -> bool {
    let labels: Vec<u8> =
        [0, 0, 8, 1].into_iter().chain(24_u32.to_be_bytes()).chain((0..24).map(|row| row % 2)).collect();
    put(&place().join("labels-idx1-ubyte"), &labels);
    data_file("images-idx3-ubyte", bytes)
}

fn idx_files() -> Vec<Vec<u8>> {
    let header: Vec<u8> =
        [0, 0, 8, 3].into_iter().chain([24_u32, 2, 2].into_iter().flat_map(u32::to_be_bytes)).collect();
    vec![[header, (0..96).collect()].concat()]
}

/// By itself, as a prediction reads it after training on others; one of their shape also as all of them: in a folder of two
/// classes, one file by six names. So a large one is decoded once.
fn image(bytes: &[u8]) -> bool {
    static LEARNED: LazyLock<Preparation> = LazyLock::new(|| {
        let learned = load_data(classes_of(GREY)).expect("images of one shape").preparation;
        assert_eq!(learned.sample_shape, [1, 2, 2]);
        learned
    });
    let alone = place().join("images/1.png");
    let learned = &*LEARNED;
    put(&alone, bytes);
    let is_accepted = learned.apply(alone.parent().expect("a file in a folder")).is_ok();
    is_accepted && load_data(classes_of(bytes)).is_some()
}

/// A folder of two classes, every one of the images.
fn classes_of(bytes: &[u8]) -> PathBuf {
    let dir = place().join("classes");
    let first = dir.join("cats/1.png");
    let is_new = !dir.is_dir();
    put(&first, bytes);
    if is_new {
        fs::create_dir(dir.join("dogs")).expect("a folder");
        for name in ["cats/2.png", "cats/3.png", "dogs/1.png", "dogs/2.png", "dogs/3.png"] {
            fs::hard_link(&first, dir.join(name)).expect("another name");
        }
    }
    dir
}

const GREY: &[u8] = include_bytes!("decoders/grey.png");

/// Both of 2 rows and 2 columns.
fn images() -> Vec<Vec<u8>> {
    let mut jpeg = include_bytes!("../../data/tests/fixtures/grey.jpg").to_vec();
    // Of its block of 8 × 8 as many are shown as the header says, here of precision, rows and columns.
    let start = jpeg.windows(2).position(|marker| marker == b"\xff\xc0").expect("the start of a frame");
    jpeg[start + 4..start + 9].copy_from_slice(&[8, 0, 2, 0, 2]);
    vec![GREY.to_vec(), jpeg]
}
