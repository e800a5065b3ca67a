//! What is on a disk in memory, and the effects that change it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

/// Within one of them a write is there or not; what is behind the end of the file does not show.
const SECTOR: usize = 512;

/// A file's content or a directory's entries; a node is found by its index.
#[derive(Debug, Clone)]
pub(super) enum Node {
    File(Arc<Vec<u8>>),
    Directory(BTreeMap<String, usize>),
}

/// Nodes by index; 0 is the root. Nodes that no directory names are not there.
#[derive(Debug, Clone)]
pub(super) struct Image(pub(super) Vec<Node>);

#[derive(Debug, Clone)]
pub(super) enum Effect {
    Link { dir: usize, name: String, node: usize },
    Unlink { dir: usize, name: String },
    Rename { dir: usize, from: String, to: String, node: usize },
    Write { node: usize, offset: usize, bytes: Arc<Vec<u8>> },
    SetLen { node: usize, len: usize },
}

impl Effect {
    /// 0 is "not there", 1 is "there"; a write may also be torn, in five ways, or in three within a sector of a file that was there.
    pub(super) fn num_outcomes(&self) -> usize {
        match self {
            Self::Write { offset, bytes, .. } if *offset > 0 && offset % SECTOR + bytes.len() <= SECTOR => 5,
            Self::Write { .. } => 7,
            Self::Link { .. } | Self::Unlink { .. } | Self::Rename { .. } | Self::SetLen { .. } => 2,
        }
    }

    pub(super) fn apply(&self, image: &mut Image, outcome: usize) {
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
            Self::Write { node, offset, bytes } => {
                let (content, written) = (image.file_mut(*node), torn(bytes, outcome));
                // What lies before it and is not there reads as zeros.
                content.resize(content.len().max(offset + written.len()), 0);
                content[*offset..offset + written.len()].copy_from_slice(&written);
            }
            Self::SetLen { node, len } => image.file_mut(*node).resize(*len, 0),
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
    pub(super) fn directory(&self, node: usize) -> io::Result<&BTreeMap<String, usize>> {
        match &self.0[node] {
            Node::Directory(entries) => Ok(entries),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn directory_mut(&mut self, node: usize) -> &mut BTreeMap<String, usize> {
        let Node::Directory(entries) = &mut self.0[node] else { panic!("an effect on the entries of a file") };
        entries
    }

    pub(super) fn file_mut(&mut self, node: usize) -> &mut Vec<u8> {
        let Node::File(content) = &mut self.0[node] else { panic!("an effect on the content of a directory") };
        Arc::make_mut(content)
    }

    pub(super) fn file(&self, node: usize) -> io::Result<&Arc<Vec<u8>>> {
        match &self.0[node] {
            Node::File(content) => Ok(content),
            Node::Directory(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn num_names(&self, wanted: usize) -> usize {
        let entries = |node: &usize| match &self.0[*node] {
            Node::Directory(entries) => entries.values().filter(|node| **node == wanted).count(),
            Node::File(_) => 0,
        };
        self.reachable().iter().map(entries).sum()
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<usize> {
        path.components().try_fold(0, |node, component| match component {
            Component::RootDir => Ok(node),
            Component::Normal(name) => self
                .directory(node)?
                .get(name.to_str().expect("a name of text"))
                .copied()
                .ok_or(io::ErrorKind::NotFound.into()),
            other => panic!("{other:?} in a path"),
        })
    }

    /// Paths with the content of files, in order.
    pub(super) fn walk(&self) -> Vec<(String, Option<&Arc<Vec<u8>>>)> {
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

    pub(super) fn reachable(&self) -> BTreeSet<usize> {
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
