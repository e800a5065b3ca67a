//! A disk in memory that knows which effects are durable, and enumerates what a loss of power may leave of the others.
//!
//! The model is weaker than any real file system: until the file or the directory is synced, every effect may be there
//! or not, independently of its order, and a write may also be torn. Only a rename is atomic (FS-3).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::checkpoint::{EntryKind, Fs, LockGuard};

/// A file's content or a directory's entries; a node is found by its index.
#[derive(Debug, Clone)]
enum Node {
    File(Vec<u8>),
    Directory(BTreeMap<String, usize>),
}

/// Nodes by index; 0 is the root. Nodes that no directory names are not there.
#[derive(Debug, Clone)]
struct Image(Vec<Node>);

#[derive(Debug, Clone)]
enum Effect {
    Link { dir: usize, name: String, node: usize },
    Unlink { dir: usize, name: String },
    Rename { dir: usize, from: String, to: String, node: usize },
    Write { node: usize, bytes: Vec<u8> },
}

/// A moment at which power may be lost.
#[derive(Debug, Clone)]
pub(super) struct CrashPoint {
    durable: Image,
    pending: Vec<Effect>,
    /// What [`SimFs::acknowledge`] was last told.
    pub(super) acknowledged: u64,
}

#[derive(Debug)]
struct State {
    live: Image,
    durable: Image,
    pending: Vec<Effect>,
    acknowledged: u64,
    points: Option<Vec<CrashPoint>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SimFs {
    state: Mutex<State>,
    locks: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Default for SimFs {
    fn default() -> Self {
        Self::from_image(Image(vec![Node::Directory(BTreeMap::new())]))
    }
}

impl SimFs {
    fn from_image(image: Image) -> Self {
        let state = State { live: image.clone(), durable: image, pending: Vec::new(), acknowledged: 0, points: None };
        Self { state: Mutex::new(state), locks: Arc::default() }
    }

    /// From now on every effect and every sync is a crash point; so is now.
    pub(super) fn record(&self) {
        let mut state = self.state();
        state.points = Some(Vec::new());
        state.mark();
    }

    /// The crash points since [`record`](Self::record).
    pub(super) fn take_points(&self) -> Vec<CrashPoint> {
        self.state().points.take().unwrap()
    }

    /// Tells the following crash points what the caller was promised.
    pub(super) fn acknowledge(&self, step: u64) {
        let mut state = self.state();
        state.acknowledged = step;
        state.mark();
    }

    /// Replaces the content of a file, durably.
    pub(super) fn poke(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        let node = state.live.find(path).unwrap();
        state.live.0[node] = Node::File(bytes.to_vec());
        state.durable.0[node] = Node::File(bytes.to_vec());
    }

    /// Every name on the disk, for messages.
    pub(super) fn tree(&self) -> Vec<String> {
        let state = self.state();
        state.live.walk().into_iter().map(|(path, _)| path).collect()
    }

    /// Makes everything durable.
    pub(super) fn settle(&self) {
        let mut state = self.state();
        state.durable = state.live.clone();
        state.pending.clear();
    }

    /// Digest of all names and contents.
    pub(super) fn digest(&self) -> [u8; 32] {
        let state = self.state();
        let mut hasher = blake3::Hasher::new();
        for (path, content) in state.live.walk() {
            // The length in front keeps a name from running into a content.
            let content = content.map_or(&b"directory"[..], |bytes| bytes);
            for part in [path.as_bytes(), content] {
                hasher.update(&part.len().to_le_bytes()).update(part);
            }
        }
        hasher.finalize().into()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl CrashPoint {
    /// Calls `check` with the disk of every state that this crash may leave.
    pub(super) fn for_each_state(&self, mut check: impl FnMut(SimFs)) {
        let choices: Vec<usize> = self.pending.iter().map(Effect::num_outcomes).collect();
        let mut chosen = vec![0; choices.len()];
        loop {
            let mut image = self.durable.clone();
            for (effect, outcome) in self.pending.iter().zip(&chosen) {
                effect.apply(&mut image, *outcome);
            }
            check(SimFs::from_image(image));
            // The next number in the mixed radix of the choices.
            let Some(digit) = (0..chosen.len()).find(|&digit| chosen[digit] + 1 < choices[digit]) else { return };
            chosen[digit] += 1;
            chosen[..digit].fill(0);
        }
    }
}

impl Effect {
    /// 0 is "not there", 1 is "there"; a write may also be torn in five ways.
    fn num_outcomes(&self) -> usize {
        if matches!(self, Self::Write { .. }) { 7 } else { 2 }
    }

    fn apply(&self, image: &mut Image, outcome: usize) {
        if outcome == 0 {
            return;
        }
        match self {
            Self::Link { dir, name, node } => {
                image.directory_mut(*dir).insert(name.clone(), *node);
            }
            Self::Unlink { dir, name } => {
                image.directory_mut(*dir).remove(name);
            }
            Self::Rename { dir, from, to, node } => {
                let entries = image.directory_mut(*dir);
                if entries.get(from) == Some(node) {
                    entries.remove(from);
                }
                entries.insert(to.clone(), *node);
            }
            Self::Write { node, bytes } => image.0[*node] = Node::File(torn(bytes, outcome)),
        }
    }
}

fn torn(bytes: &[u8], outcome: usize) -> Vec<u8> {
    let (half, end) = bytes.split_at(bytes.len() / 2);
    match outcome {
        1 => bytes.to_vec(),
        2 => half.to_vec(),
        3 => bytes[..bytes.len().saturating_sub(1)].to_vec(),
        4 => vec![0; bytes.len()],
        5 => [half, &vec![0; end.len()]].concat(),
        _ => [&vec![0xa5; half.len()], end].concat(),
    }
}

impl Image {
    fn directory(&self, node: usize) -> io::Result<&BTreeMap<String, usize>> {
        match &self.0[node] {
            Node::Directory(entries) => Ok(entries),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn directory_mut(&mut self, node: usize) -> &mut BTreeMap<String, usize> {
        let Node::Directory(entries) = &mut self.0[node] else { panic!("an effect on the entries of a file") };
        entries
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        path.components().try_fold(0, |node, component| match component {
            Component::RootDir => Ok(node),
            Component::Normal(name) => {
                self.directory(node)?.get(name.to_str().unwrap()).copied().ok_or(io::ErrorKind::NotFound.into())
            }
            other => panic!("{other:?} in a path of the store"),
        })
    }

    /// Paths with the content of files, in order.
    fn walk(&self) -> Vec<(String, Option<&Vec<u8>>)> {
        let mut found = Vec::new();
        let mut open = vec![(String::new(), 0)];
        while let Some((path, node)) = open.pop() {
            match &self.0[node] {
                Node::File(bytes) => found.push((path, Some(bytes))),
                Node::Directory(entries) => {
                    open.extend(entries.iter().map(|(name, node)| (format!("{path}/{name}"), *node)));
                    found.push((path, None));
                }
            }
        }
        found.sort();
        found
    }

    fn reachable(&self) -> BTreeSet<usize> {
        let mut seen = BTreeSet::from([0]);
        let mut open = vec![0];
        while let Some(node) = open.pop() {
            if let Node::Directory(entries) = &self.0[node] {
                open.extend(entries.values().filter(|node| seen.insert(**node)));
            }
        }
        seen
    }
}

impl State {
    fn mark(&mut self) {
        if let Some(points) = &mut self.points {
            points.push(CrashPoint {
                durable: self.durable.clone(),
                pending: self.pending.clone(),
                acknowledged: self.acknowledged,
            });
        }
    }

    fn do_now(&mut self, effect: Effect) {
        effect.apply(&mut self.live, 1);
        self.pending.push(effect);
        self.mark();
    }

    fn make_durable(&mut self, is_covered: impl Fn(&Effect) -> bool) {
        let (covered, pending) = std::mem::take(&mut self.pending).into_iter().partition(is_covered);
        self.pending = pending;
        let covered: Vec<Effect> = covered;
        covered.iter().for_each(|effect| effect.apply(&mut self.durable, 1));
        // What can no longer be seen, whatever happens, multiplies the states for nothing.
        let mut visible = self.durable.reachable();
        for effect in &self.pending {
            if let Effect::Link { node, .. } | Effect::Rename { node, .. } = effect {
                visible.insert(*node);
            }
        }
        self.pending.retain(|effect| match effect {
            Effect::Link { dir, .. } | Effect::Unlink { dir, .. } | Effect::Rename { dir, .. } => visible.contains(dir),
            Effect::Write { node, .. } => visible.contains(node),
        });
        self.mark();
    }

    /// The parent's node and the last name of a path.
    fn parent(&self, path: &Path) -> io::Result<(usize, String)> {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        Ok((self.live.find(path.parent().unwrap())?, name))
    }

    fn create(&mut self, path: &Path, node: Node) -> io::Result<usize> {
        let (dir, name) = self.parent(path)?;
        if self.live.directory(dir)?.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.live.0.push(node.clone());
        self.durable.0.push(node);
        let node = self.live.0.len() - 1;
        self.do_now(Effect::Link { dir, name, node });
        Ok(node)
    }
}

impl Fs for SimFs {
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        let state = self.state();
        match state.live.find(path) {
            Ok(node) if state.live.directory(node).is_ok() => Ok(Some(EntryKind::Directory)),
            Ok(_) => Ok(Some(EntryKind::File)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.state();
        let node = state.live.find(dir)?;
        // Backwards, so that nobody relies on an order.
        Ok(state.live.directory(node)?.keys().rev().cloned().collect())
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.state().create(dir, Node::Directory(BTreeMap::new())).map(drop)
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let file = state.create(path, Node::File(Vec::new()))?;
        state.do_now(Effect::Write { node: file, bytes: bytes.to_vec() });
        state.make_durable(|effect| matches!(effect, Effect::Write { node, .. } if *node == file));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = state.live.find(from)?;
        let ((dir, from), (to_dir, to)) = (state.parent(from)?, state.parent(to)?);
        assert_eq!(dir, to_dir, "a rename between directories");
        if state.live.directory(dir)?.contains_key(&to) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.do_now(Effect::Rename { dir, from, to, node });
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let synced = state.live.find(path)?;
        state.make_durable(|effect| match effect {
            Effect::Link { dir, .. } | Effect::Unlink { dir, .. } | Effect::Rename { dir, .. } => *dir == synced,
            Effect::Write { .. } => false,
        });
        Ok(())
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let state = self.state();
        match &state.live.0[state.live.find(path)?] {
            Node::File(bytes) if bytes.len() as u64 > limit => Err(io::ErrorKind::FileTooLarge.into()),
            Node::File(bytes) => Ok(bytes.clone()),
            Node::Directory(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = state.live.find(path)?;
        let names: Vec<String> = state.live.directory(node)?.keys().cloned().collect();
        for name in names {
            state.do_now(Effect::Unlink { dir: node, name });
        }
        let (dir, name) = state.parent(path)?;
        state.do_now(Effect::Unlink { dir, name });
        Ok(())
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<LockGuard>> {
        let path = path.to_owned();
        if !self.locks.lock().unwrap().insert(path.clone()) {
            return Ok(None);
        }
        Ok(Some(LockGuard::new(HeldLock { path, locks: Arc::clone(&self.locks) })))
    }
}

struct HeldLock {
    path: PathBuf,
    locks: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        self.locks.lock().unwrap().remove(&self.path);
    }
}

#[test]
fn the_simulated_disk_forgets_what_was_not_synced() {
    let fs = SimFs::default();
    fs.create_dir(Path::new("/a")).unwrap();
    fs.write_synced(Path::new("/a/x"), b"1234").unwrap();
    fs.record();
    let point = fs.take_points().remove(0);
    let mut trees = BTreeSet::new();
    point.for_each_state(|fs| {
        trees.insert(fs.tree().join(" "));
    });
    assert_eq!(trees.into_iter().collect::<Vec<_>>(), ["", " /a", " /a /a/x"]);

    fs.sync_dir(Path::new("/a")).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    fs.record();
    fs.take_points().remove(0).for_each_state(|fs| {
        assert_eq!(fs.read(Path::new("/a/x"), 4).unwrap(), b"1234");
    });
}
