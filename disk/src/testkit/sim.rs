//! A disk in memory that knows which effects are durable, and enumerates what a loss of power may leave of the others.
//!
//! The model is weaker than any real file system: until the file or the directory is synced, every effect may be there
//! or not, independently of its order, and a write may also be torn. Only a rename is atomic (FS-3).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rand::{Rng, RngExt as _};

use super::image::{Effect, Image, Node};
use crate::fs::{EntryKind, Fs, FsFile, LockGuard, Open};

/// A moment at which power may be lost.
#[derive(Debug, Clone)]
pub struct CrashPoint {
    durable: Image,
    pending: Vec<Effect>,
    /// What [`SimFs::acknowledge`] was last told.
    pub acknowledged: u64,
}

/// What an advisory lock is held on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Locked {
    Path(PathBuf),
    Node(usize),
}

type Locks = Arc<Mutex<BTreeSet<Locked>>>;

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
pub struct SimFs {
    state: Arc<Mutex<State>>,
    locks: Locks,
}

impl Default for SimFs {
    fn default() -> Self {
        Self::from_image(Image(vec![Node::Directory(BTreeMap::new())]))
    }
}

impl SimFs {
    fn from_image(image: Image) -> Self {
        let state = State { live: image.clone(), durable: image, pending: Vec::new(), acknowledged: 0, points: None };
        Self { state: Arc::new(Mutex::new(state)), locks: Arc::default() }
    }

    /// From now on every effect and every sync is a crash point; so is now.
    pub fn record(&self) {
        let mut state = self.state();
        state.points = Some(Vec::new());
        state.mark();
    }

    /// The crash points since [`record`](Self::record).
    ///
    /// # Panics
    /// When nothing was recorded.
    pub fn take_points(&self) -> Vec<CrashPoint> {
        self.state().points.take().expect("a recording")
    }

    /// Tells the following crash points what the caller was promised.
    pub fn acknowledge(&self, step: u64) {
        let mut state = self.state();
        state.acknowledged = step;
        state.mark();
    }

    /// Replaces the content of a file, durably.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn poke(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        let node = state.live.find(path).expect("a file");
        state.live.0[node] = Node::File(Arc::new(bytes.to_vec()));
        state.durable.0[node] = Node::File(Arc::new(bytes.to_vec()));
    }

    /// Every name on the disk, for messages.
    pub fn tree(&self) -> Vec<String> {
        let state = self.state();
        state.live.walk().into_iter().map(|(path, _)| path).collect()
    }

    /// Makes everything durable.
    pub fn settle(&self) {
        let mut state = self.state();
        state.durable = state.live.clone();
        state.pending.clear();
    }

    /// Digest of all names and contents.
    pub fn digest(&self) -> [u8; 32] {
        let state = self.state();
        let mut hasher = blake3::Hasher::new();
        for (path, content) in state.live.walk() {
            // The length in front keeps a name from running into a content.
            let content = content.map_or(&b"directory"[..], |bytes| bytes.as_slice());
            for part in [path.as_bytes(), content] {
                hasher.update(&part.len().to_le_bytes()).update(part);
            }
        }
        hasher.finalize().into()
    }

    /// Makes a copy of everything below the existing directory `dir` of the operating system's disk.
    ///
    /// # Errors
    /// When it cannot be written there.
    pub fn export(&self, dir: &Path) -> io::Result<()> {
        for (path, content) in self.state().live.walk() {
            let path = dir.join(path.trim_start_matches('/'));
            match content {
                Some(bytes) => std::fs::write(path, &**bytes)?,
                None if path == dir => {}
                None => std::fs::create_dir(path)?,
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding it")
}

impl CrashPoint {
    /// Calls `check` with the disk of every state that this crash may leave.
    pub fn for_each_state(&self, mut check: impl FnMut(SimFs)) {
        let choices = self.choices();
        let mut chosen = vec![0; choices.len()];
        loop {
            check(self.state(&chosen));
            // The next number in the mixed radix of the choices.
            let Some(digit) = (0..chosen.len()).find(|&digit| chosen[digit] + 1 < choices[digit]) else { return };
            chosen[digit] += 1;
            chosen[..digit].fill(0);
        }
    }

    /// As [`for_each_state`](Self::for_each_state) where there are at most `max` states; of more, as many as `max`, drawn, some
    /// of them perhaps twice. From three on, nothing and everything are among them.
    pub fn for_some_states(&self, max: usize, rng: &mut impl Rng, mut check: impl FnMut(SimFs)) {
        let choices = self.choices();
        if choices.iter().try_fold(1_usize, |product, num| product.checked_mul(*num)).is_some_and(|all| all <= max) {
            return self.for_each_state(check);
        }
        for index in 0..max {
            let chosen: Vec<usize> = match index {
                1 if max > 2 => vec![0; choices.len()],
                2 => vec![1; choices.len()],
                _ => choices.iter().map(|num| rng.random_range(0..*num)).collect(),
            };
            check(self.state(&chosen));
        }
    }

    fn choices(&self) -> Vec<usize> {
        self.pending.iter().map(Effect::num_outcomes).collect()
    }

    fn state(&self, chosen: &[usize]) -> SimFs {
        let mut image = self.durable.clone();
        for (effect, outcome) in self.pending.iter().zip(chosen) {
            effect.apply(&mut image, *outcome);
        }
        SimFs::from_image(image)
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
            Effect::Write { node, .. } | Effect::SetLen { node, .. } => visible.contains(node),
        });
        self.mark();
    }

    fn sync_file(&mut self, file: usize) {
        self.make_durable(
            |effect| matches!(effect, Effect::Write { node, .. } | Effect::SetLen { node, .. } if *node == file),
        );
    }

    /// The parent's node and the last name of a path.
    fn parent(&self, path: &Path) -> io::Result<(usize, String)> {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name of text").to_owned();
        Ok((self.live.find(path.parent().expect("not the root"))?, name))
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
        let file = state.create(path, Node::File(Arc::default()))?;
        state.do_now(Effect::Write { node: file, offset: 0, bytes: Arc::new(bytes.to_vec()) });
        state.sync_file(file);
        Ok(())
    }

    fn open(&self, path: &Path, which: Open) -> io::Result<Box<dyn FsFile>> {
        let mut state = self.state();
        let node = match (state.live.find(path), which) {
            (Ok(_), Open::New) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Ok(node), _) => state.live.file(node).map(|_| node)?,
            (Err(error), Open::New | Open::OrCreate) if error.kind() == io::ErrorKind::NotFound => {
                state.create(path, Node::File(Arc::default()))?
            }
            (Err(error), _) => return Err(error),
        };
        Ok(Box::new(SimFile {
            state: Arc::clone(&self.state),
            locks: Arc::clone(&self.locks),
            node,
            held: Mutex::default(),
        }))
    }

    fn copy_mode(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = state.live.find(from)?;
        let ((dir, from), (to_dir, to)) = (state.parent(from)?, state.parent(to)?);
        assert_eq!(dir, to_dir, "a rename between directories");
        let replaced = state.live.directory(dir)?.get(&to).copied();
        if replaced.is_some_and(|replaced| [replaced, node].iter().any(|node| state.live.directory(*node).is_ok())) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.do_now(Effect::Rename { dir, from, to, node });
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = state.live.find(from)?;
        let (dir, name) = state.parent(to)?;
        if state.live.directory(dir)?.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.do_now(Effect::Link { dir, name, node });
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let node = state.live.find(path)?;
        state.live.file(node)?;
        let (dir, name) = state.parent(path)?;
        state.do_now(Effect::Unlink { dir, name });
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let synced = state.live.find(path)?;
        state.make_durable(|effect| match effect {
            Effect::Link { dir, .. } | Effect::Unlink { dir, .. } | Effect::Rename { dir, .. } => *dir == synced,
            Effect::Write { .. } | Effect::SetLen { .. } => false,
        });
        Ok(())
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let state = self.state();
        let bytes = state.live.file(state.live.find(path)?)?;
        if bytes.len() as u64 > limit { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes.to_vec()) }
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
        let mut state = self.state();
        if state.live.find(path).is_err() {
            state.create(path, Node::File(Arc::default()))?;
        }
        Ok(HeldLock::take(&self.locks, Locked::Path(path.to_owned())).map(LockGuard::new))
    }
}

#[derive(Debug)]
struct SimFile {
    state: Arc<Mutex<State>>,
    locks: Locks,
    node: usize,
    held: Mutex<Option<HeldLock>>,
}

impl FsFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        Ok(lock(&self.state).live.file(self.node)?.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = lock(&self.state);
        let content = state.live.file(self.node)?;
        let rest = &content[content.len().min(index(offset))..];
        let num_read = rest.len().min(buffer.len());
        buffer[..num_read].copy_from_slice(&rest[..num_read]);
        Ok(num_read)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let write = Effect::Write { node: self.node, offset: index(offset), bytes: Arc::new(bytes.to_vec()) };
        lock(&self.state).do_now(write);
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        lock(&self.state).do_now(Effect::SetLen { node: self.node, len: index(bytes) });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        lock(&self.state).sync_file(self.node);
        Ok(())
    }

    fn try_lock(&self) -> io::Result<bool> {
        let taken = HeldLock::take(&self.locks, Locked::Node(self.node));
        let is_taken = taken.is_some();
        *lock(&self.held) = taken;
        Ok(is_taken)
    }

    fn is_at(&self, path: &Path) -> io::Result<bool> {
        match lock(&self.state).live.find(path) {
            Ok(node) => Ok(node == self.node),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn num_names(&self) -> io::Result<u64> {
        Ok(lock(&self.state).live.num_names(self.node) as u64)
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("it fits into memory")
}

#[derive(Debug)]
struct HeldLock {
    what: Locked,
    locks: Locks,
}

impl HeldLock {
    fn take(locks: &Locks, what: Locked) -> Option<Self> {
        lock(locks).insert(what.clone()).then(|| Self { what, locks: Arc::clone(locks) })
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        lock(&self.locks).remove(&self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn what_was_appended_and_not_synced_may_be_lost_torn_or_leave_zeros_before_what_came_later() {
        let fs = SimFs::default();
        fs.write_synced(Path::new("/log"), b"ab").unwrap();
        fs.sync_dir(Path::new("/")).unwrap();
        let file = fs.open(Path::new("/log"), Open::Existing).unwrap();
        fs.record();
        file.write_at(2, b"cd").unwrap();
        file.write_at(4, b"ef").unwrap();
        let mut found = BTreeSet::new();
        fs.take_points().pop().unwrap().for_each_state(|fs| {
            found.insert(fs.read(Path::new("/log"), 9).unwrap());
        });
        for expected in [&b"ab"[..], b"abcd", b"abcdef", b"abc", b"ab\0\0ef", b"ab\0\0e"] {
            assert!(found.contains(expected), "{expected:?}");
        }
        fs.record();
        file.sync().unwrap();
        let mut num_states = 0;
        fs.take_points().pop().unwrap().for_each_state(|fs| {
            num_states += 1;
            assert_eq!(fs.read(Path::new("/log"), 9).unwrap(), b"abcdef");
        });
        assert_eq!(num_states, 1);
    }

    #[test]
    fn a_file_takes_the_place_of_another_whole() {
        let (fs, old, new) = (SimFs::default(), Path::new("/a"), Path::new("/b"));
        fs.write_synced(old, b"old").unwrap();
        fs.write_synced(new, b"new").unwrap();
        fs.sync_dir(Path::new("/")).unwrap();
        let open = fs.open(old, Open::Existing).unwrap();
        assert!(open.try_lock().unwrap() && !fs.open(old, Open::Existing).unwrap().try_lock().unwrap());
        fs.record();
        fs.rename(new, old).unwrap();
        assert!(!open.is_at(old).unwrap() && open.num_names().unwrap() == 0);
        let mut found = BTreeSet::new();
        fs.take_points().pop().unwrap().for_each_state(|fs| {
            found.insert((fs.tree().join(" "), fs.read(old, 9).unwrap()));
        });
        let expected = [(" /a".to_owned(), b"new".to_vec()), (" /a /b".to_owned(), b"old".to_vec())];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}
