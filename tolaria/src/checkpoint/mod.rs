//! Durable checkpoints: a directory of generations, each visible whole or not at all.
//!
//! ```text
//!   Snapshot ──encode──► tmp-00000042/ ──fsync all──rename──fsync parent──► gen-00000042/ ──read back──► retention
//!                                                                               │
//!   Loaded ◄──decode──◄ digests ◄── sizes ◄── manifest ◄── newest first ◄───────┘   (damaged: skipped, with its reason)
//! ```
//!
//! *Entry points*: [`CheckpointStore::open`], [`CheckpointStore::save`], [`CheckpointReader::load_latest`].
//! *Not here*: when to save, what a component's state means, where restored tensors live (they come back on the CPU).
//!
//! # What is promised
//! - After [`save`](CheckpointStore::save) returned a generation, that snapshot survives a killed process and a loss of
//!   power, until `keep_last` newer ones took its place.
//! - A crash at any moment leaves the generation before or the new one, never a mixture: every byte and every directory
//!   entry below the new directory is on the disk before the one rename that makes it visible.
//! - Damage is found, not loaded: every byte of a generation is covered by a digest. A damaged generation is passed
//!   over, and [`Loaded::skipped`] says which and why.
//! - Older generations go only after the new one has been read back and as many sound ones as asked for remain.
//! - A pinned generation ([`save_pinned`](CheckpointStore::save_pinned)) stays until a newer pinned one has been read back.
//! - A generation with a file of its [`keep_name`](Generation::keep_name) beside it stays until that file is removed.
//! - One writer: a second [`CheckpointStore`] on the directory is refused, also from another process. Readers
//!   ([`CheckpointReader`]) need no lock.
//!
//! The file system must rename a directory atomically and honor `fsync` (ext4, XFS, Btrfs, APFS, ZFS do). A digest
//! proves that nothing was damaged, not who wrote it: a signature ([`CheckpointReader::with_signing`]) does.
//!
//! # Format, versions 1 and 2
//!
//! | Path below the store's directory | Content |
//! |---|---|
//! | `lock` | empty; held with an advisory lock while a store is open |
//! | `tmp-<n>/` | a generation being written or removed; swept by `open` and by the next `save` |
//! | `keep-<n>` | made by whoever wants generation `n` to stay, by `touch` for example; its content means nothing |
//! | `gen-<n>/` | one generation; `n` is decimal, at least 8 digits, larger is newer |
//! | `gen-<n>/tensors.safetensors` | all tensors, named `component/tensor`; readable by any safetensors tool |
//! | `gen-<n>/state.json` | an object: component name to that component's JSON document, as a string |
//! | `gen-<n>/manifest.json` | written after them; the envelope and body below |
//! | `gen-<n>/manifest.hmac` | of a store with a [`Signing`] alone: its signature of the manifest, 64 hexadecimal digits and a line break |
//!
//! Directories that the store makes have mode 0700, files 0600. An existing directory keeps its mode.
//!
//! The envelope of the manifest is the same in every version, so that a version is believed only when its digest is
//! right; it is one line of JSON, fixed to the byte:
//!
//! ```text
//! {"blake3":"<64 lowercase hex digits: BLAKE3 of the bytes of BODY>","manifest":BODY}\n
//! ```
//!
//! | Field of the body | Meaning |
//! |---|---|
//! | `format` | `"esper-checkpoint"` |
//! | `version` | `1`, or `2` of a pinned generation; any other is [`CheckpointError::UnsupportedVersion`] |
//! | `generation` | the number in the directory's name |
//! | `meta` | [`SnapshotMeta`]: `run_id`, `epoch`, `step`, `topology`, `created_unix_ms`, `config_digest` |
//! | `files` | for `state.json` and `tensors.safetensors`, in this order: `name`, `bytes`, `blake3` |
//! | `pinned` | `true`, in version 2 alone: of the sound generations that have it, the newest is kept |
//!
//! | Limit | Value |
//! |---|---|
//! | [`MAX_MANIFEST_BYTES`] | 64 KiB |
//! | [`MAX_STATE_BYTES`] | 256 MiB |
//! | [`MAX_TENSORS_BYTES`] | 64 GiB |
//! | names of files and components | 1 to 64 characters of `A-Z`, `a-z`, `0-9`, `.`, `_`, `-`; not `.` or `..` |
//! | names of tensors | 1 to 256 bytes without control characters |
//!
//! Sizes are compared with these limits and with the file before memory is taken for them. Links are not followed.

mod snapshot;
mod name;
mod error;
mod payload;
mod manifest;
mod seal;
mod reader;
mod store;

pub use error::{CheckpointError, Fault};
pub use esper_disk::{EntryKind, Fs, FsFile, LockGuard, Open, StdFs};
pub use manifest::{FORMAT_VERSION, MAX_MANIFEST_BYTES};
pub use name::NameError;
pub use payload::{MAX_STATE_BYTES, MAX_TENSORS_BYTES};
pub use reader::{CheckpointReader, Loaded};
pub use seal::{Seal, Signing};
pub use snapshot::{Generation, Snapshot, SnapshotMeta};
pub use store::CheckpointStore;

#[cfg(test)]
mod tests;
