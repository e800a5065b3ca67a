//! `metrics.jsonl`: one epoch, one line; a resumed run drops the lines after its checkpoint.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use atomic_write_file::AtomicWriteFile;
use leyline::id::EpochIndex;
use tolaria::trainer::report::EpochReport;

/// Appends epochs to the file.
#[derive(Debug)]
pub(super) struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Opens the file for a run that has completed `epoch` epochs: whole lines of up to that epoch are kept, later ones
    /// and a torn last line go.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub(super) fn open(path: &Path, epoch: EpochIndex) -> anyhow::Result<Self> {
        let open = || {
            // Bytes, not text: a torn line may end inside a character.
            let bytes = match fs::read(path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                Err(error) => return Err(error),
            };
            let mut file = AtomicWriteFile::open(path)?;
            for line in bytes.split(|&byte| byte == b'\n') {
                match serde_json::from_slice::<EpochReport>(line) {
                    Ok(report) if report.epoch <= epoch => file.write_all(&[line, b"\n"].concat())?,
                    Ok(_) | Err(_) => break,
                }
            }
            file.commit()?;
            OpenOptions::new().append(true).open(path)
        };
        let file = open().with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends one epoch.
    ///
    /// # Errors
    /// When the line cannot be written.
    pub(super) fn append(&mut self, report: &EpochReport) -> anyhow::Result<()> {
        let line = serde_json::to_string(report).context("writing an epoch as JSON")?;
        // One write, so that a crash tears at most the last line.
        self.file.write_all(format!("{line}\n").as_bytes()).with_context(|| format!("writing {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use leyline::id::{SeedId, StepIndex, TopologyRevision};
    use leyline::seed::SeedStage;
    use leyline::state::Score;
    use tolaria::trainer::report::TransitionRecord;

    use super::*;

    fn report(epoch: u64) -> EpochReport {
        let score = Score { loss: 0.1, accuracy: 0.9, num_samples: 3 };
        EpochReport {
            epoch: EpochIndex(epoch),
            step: StepIndex(epoch * 2),
            topology: TopologyRevision(0),
            num_parameters: 1,
            learning_rate: 0.1,
            train: score,
            validation: score,
            gradient_norm: 1.0,
            conflict: None,
            seeds: Vec::new(),
            commands: Vec::new(),
            transitions: Vec::new(),
            wall_s: 0.5,
            samples_per_s: 6.0,
            skipped_steps: 0,
        }
    }

    #[test]
    fn lines_after_the_checkpoint_and_a_torn_line_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut log = MetricsLog::open(&path, EpochIndex(0)).unwrap();
        for epoch in 1..=3 {
            log.append(&report(epoch)).unwrap();
        }
        fs::write(&path, format!("{}{{\"epoch\":4,", fs::read_to_string(&path).unwrap())).unwrap();
        MetricsLog::open(&path, EpochIndex(2)).unwrap().append(&report(3)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let epochs: Vec<u64> =
            text.lines().map(|line| serde_json::from_str::<EpochReport>(line).unwrap().epoch.0).collect();
        assert_eq!(epochs, [1, 2, 3]);
    }

    #[test]
    fn a_file_that_is_cut_anywhere_can_be_opened_and_keeps_its_whole_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut log = MetricsLog::open(&path, EpochIndex(0)).unwrap();
        for epoch in 1..=2 {
            let reason = "gain 0,5 ± 0,1 – größer als 0 🌱".to_owned();
            let seed = SeedId(1);
            let (from, to) = (SeedStage::Training, SeedStage::Blending);
            let report =
                EpochReport { transitions: vec![TransitionRecord { seed, from, to, reason }], ..report(epoch) };
            log.append(&report).unwrap();
        }
        let whole = fs::read(&path).unwrap();
        assert!(whole.iter().any(|byte| !byte.is_ascii()), "no character takes several bytes");
        for len in 0..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            MetricsLog::open(&path, EpochIndex(2)).unwrap();
            // The last byte of a line is its line break, without which it is whole too.
            let mut ends = (0..whole.len()).filter(|&at| whole[at] == b'\n' && at <= len);
            let expected = ends.next_back().map_or(&[][..], |end| &whole[..=end]);
            assert_eq!(fs::read(&path).unwrap(), expected, "cut after {len} bytes");
        }
    }
}
