//! Where the policy of a run takes its networks from: a folder that is looked at after every epoch, or what a run kept of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esper_disk::{Fs, make_dirs, replace_file};
use leyline::error::{BoxError, ErrorKind};
use leyline::id::EpochIndex;
use tamiyo::PolicyKind;
use tamiyo::policy::learned::{Held, Networks};
use tolaria::checkpoint::Signing;
use tolaria::trainer::report::EpochReport;

use crate::config::EsperConfig;
use crate::exit::UsageError;
use crate::policy::file::{FileError, MANIFEST_FILE, WEIGHTS_FILE, bytes_of, digest, read, read_beside};

/// Folder of a run with the networks that decided in it, each in one of its digest.
const KEPT_DIR: &str = "policies";

/// The networks of a run with this configuration, where its policy has any; each is kept in `run_dir` before it decides.
///
/// # Errors
/// [`UsageError`] when there is none to begin with.
pub fn networks(
    config: &EsperConfig,
    signing: Option<Signing>,
    keep: Option<(Arc<dyn Fs>, &Path)>,
) -> anyhow::Result<Option<Box<dyn Networks>>> {
    let (Some(_), Some(dir)) = (network(config, signing.as_ref())?, config.policy.learned.file.clone()) else {
        return Ok(None);
    };
    let keep = keep.map(|(fs, run_dir)| (fs, run_dir.join(KEPT_DIR)));
    Ok(Some(Box::new(Watched { dir, signing, keep, told: None })))
}

/// The network that the policy of this configuration begins with, where it has one.
///
/// # Errors
/// [`UsageError`] when there is none, or it cannot be used.
pub(crate) fn network(config: &EsperConfig, signing: Option<&Signing>) -> anyhow::Result<Option<Held>> {
    if config.policy.policy != PolicyKind::Learned {
        return Ok(None);
    }
    let Some(dir) = &config.policy.learned.file else {
        let problem =
            "configuration: `policy.learned.file` is absent: expected a folder that `esper policy train` wrote";
        return Err(UsageError(problem.to_owned()).into());
    };
    let read = read(dir, signing).map_err(|error| {
        let error = anyhow::Error::new(error);
        UsageError(format!(
            "configuration: `policy.learned.file` is {}, which cannot be used: {error:#}; expected a folder that `esper policy train` wrote",
            dir.display()
        ))
    });
    Ok(Some(read?.0))
}

/// One network from the first decision on, whatever its folder holds later.
#[derive(Debug)]
pub(crate) struct One(pub(crate) Held);

impl Networks for One {
    fn look(&mut self, _epoch: EpochIndex, held: Option<&str>) -> Option<Result<Held, BoxError>> {
        held.is_none().then(|| Ok(self.0.clone()))
    }
}

/// What is not claimed of a run with this configuration on data with this digest, by the network that it begins with; see
/// [`Training::learned_from`](super::Training::learned_from).
#[must_use]
pub fn warning(config: &EsperConfig, digest: &str) -> Option<String> {
    let dir = config.policy.learned.file.as_ref().filter(|_| config.policy.policy == PolicyKind::Learned)?;
    // What is wrong with it is told where it is opened.
    let (_, manifest) = read(dir, None).ok()?;
    manifest.training.learned_from(&config.data.name.to_string(), digest)
}

/// The same by all networks that a run kept, each sentence once.
///
/// # Errors
/// When the folder cannot be read. A network that is damaged says nothing.
pub fn warnings(run_dir: &Path, data: &str, digest: &str) -> io::Result<Vec<String>> {
    let kept = match fs::read_dir(run_dir.join(KEPT_DIR)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        kept => kept?.collect::<io::Result<Vec<_>>>()?,
    };
    let networks = kept.into_iter().filter_map(|entry| read(&entry.path(), None).ok());
    let found = networks.filter_map(|(_, manifest)| manifest.training.learned_from(data, digest));
    Ok(found.collect::<BTreeSet<String>>().into_iter().collect())
}

/// A folder that is looked at.
#[derive(Debug)]
pub struct Watched {
    dir: PathBuf,
    signing: Option<Signing>,
    keep: Option<(Arc<dyn Fs>, PathBuf)>,
    /// What was said last about what is there and cannot be used.
    told: Option<String>,
}

impl Watched {
    fn find(&self, held: Option<&str>) -> Result<Option<Held>, FileError> {
        let manifest = bytes_of(&self.dir, MANIFEST_FILE)?;
        if held == Some(&*digest(&manifest)) {
            return Ok(None);
        }
        let found = read_beside(&self.dir, manifest, self.signing.as_ref())?;
        if let Some((fs, dir)) = &self.keep {
            // What decides can be asked again.
            let dir = dir.join(&found.held.digest);
            let failed = |source| FileError::Io { path: dir.clone(), source };
            make_dirs(&**fs, &dir).map_err(failed)?;
            for (name, bytes) in [WEIGHTS_FILE, MANIFEST_FILE].iter().zip(found.bytes.iter().rev()) {
                replace_file(&**fs, &dir.join(name), bytes).map_err(failed)?;
            }
        }
        Ok(Some(found.held))
    }
}

impl Networks for Watched {
    fn look(&mut self, _epoch: EpochIndex, held: Option<&str>) -> Option<Result<Held, BoxError>> {
        match self.find(held) {
            Ok(found) => {
                self.told = None;
                found.map(Ok)
            }
            Err(error) => {
                let text = format!("{:#}", anyhow::Error::new(error));
                let is_new = self.told.as_ref() != Some(&text);
                self.told = Some(text.clone());
                is_new.then(|| Err(BoxError::new(Refused(text))))
            }
        }
    }
}

/// What was said, once more.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl leyline::error::Error for Refused {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Corrupt
    }
}

/// The networks that a run kept, as its reports tell when each was found.
#[derive(Debug)]
pub struct Kept {
    dir: PathBuf,
    found: BTreeMap<EpochIndex, Result<String, String>>,
}

impl Kept {
    /// Of a run folder with these reports.
    #[must_use]
    pub fn of(run_dir: &Path, epochs: &[EpochReport]) -> Self {
        let told = |report: &EpochReport| {
            let found = report.waiting.iter().find_map(|why| match &*why.rule {
                "policy_loaded" => Some(Ok(why.detail.clone())),
                "policy_refused" => Some(Err(why.detail.clone())),
                _ => None,
            });
            found.map(|found| (report.epoch, found))
        };
        Self { dir: run_dir.join(KEPT_DIR), found: epochs.iter().filter_map(told).collect() }
    }
}

impl Networks for Kept {
    fn look(&mut self, epoch: EpochIndex, _held: Option<&str>) -> Option<Result<Held, BoxError>> {
        Some(match self.found.get(&epoch)? {
            Ok(digest) => {
                // Its name is no path: a report may say anything.
                let is_name = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
                let named = if is_name { digest } else { "none" };
                read(&self.dir.join(named), None).map(|(held, _)| held).map_err(BoxError::new)
            }
            Err(why) => Err(BoxError::new(Refused(why.clone()))),
        })
    }
}

#[cfg(test)]
mod tests {
    use esper_disk::StdFs;
    use esper_weights::Weights;
    use leyline::policy::Rationale;
    use serde_json::{Value, json};
    use tamiyo::policy::learned::{NUM_FEATURES, NUM_OUTPUTS, Network, Parts};

    use super::*;
    use crate::policy::file::{SIGNATURE_FILE, Training, write};
    use crate::signature::SignatureArgs;

    fn network(bias: f32) -> Network {
        Network::new(Parts {
            mean: vec![0.0; NUM_FEATURES],
            scale: vec![1.0; NUM_FEATURES],
            hidden_weight: vec![0.25; 2 * NUM_FEATURES],
            hidden_bias: vec![0.5; 2],
            output_weight: vec![-1.0; 2 * NUM_OUTPUTS],
            output_bias: vec![bias; NUM_OUTPUTS],
        })
        .unwrap()
    }

    fn put(dir: &Path, network: &Network, signing: Option<&Signing>) {
        write(&StdFs, dir, network, Training::default(), signing).unwrap();
    }

    fn signing(dir: &Path, digits: &str) -> Option<Signing> {
        let path = dir.join("key");
        fs::write(&path, digits.repeat(32)).unwrap();
        SignatureArgs { checkpoint_key: Some(path), require_signed: true }.of_policies().unwrap()
    }

    fn watched(dir: &Path, signing: Option<Signing>) -> Watched {
        Watched { dir: dir.to_owned(), signing, keep: None, told: None }
    }

    /// Puts a good network, damages it, and puts another one: what is held all along, and what is told once.
    #[track_caller]
    fn check(signed: bool, damage: impl Fn(&Path), expected: &str) {
        let (dir, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let signing = if signed { signing(keys.path(), "ab") } else { None };
        put(dir.path(), &network(1.0), signing.as_ref());
        let mut watched = watched(dir.path(), signing.clone());
        let mut look = |held: Option<&str>| watched.look(EpochIndex(1), held);
        let first = look(None).unwrap().unwrap();
        assert_eq!(first.network, network(1.0));
        assert!(look(Some(&first.digest)).is_none(), "it is held already");
        put(dir.path(), &network(2.0), signing.as_ref());
        damage(dir.path());
        let told = look(Some(&first.digest)).unwrap().unwrap_err().to_string();
        assert!(told.contains(expected), "{told}");
        assert!(look(Some(&first.digest)).is_none(), "it is told once");
        put(dir.path(), &network(3.0), signing.as_ref());
        assert_eq!(look(Some(&first.digest)).unwrap().unwrap().network, network(3.0));
    }

    fn edit(dir: &Path, change: impl Fn(&mut Value)) {
        let path = dir.join(MANIFEST_FILE);
        let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut manifest);
        fs::write(path, manifest.to_string()).unwrap();
    }

    /// Other numbers with a manifest that fits them.
    fn numbers(dir: &Path, tensors: &[(&str, Vec<usize>, Vec<f32>)]) {
        let weights = Weights::from_f32(tensors.iter().cloned()).unwrap();
        fs::write(dir.join(WEIGHTS_FILE), weights.bytes()).unwrap();
        let digest = digest(weights.bytes());
        edit(dir, |manifest| manifest["weights_blake3"] = json!(digest));
    }

    fn good() -> Vec<(&'static str, Vec<usize>, Vec<f32>)> {
        vec![
            ("features.mean", vec![NUM_FEATURES], vec![0.0; NUM_FEATURES]),
            ("features.scale", vec![NUM_FEATURES], vec![1.0; NUM_FEATURES]),
            ("hidden.weight", vec![2, NUM_FEATURES], vec![0.0; 2 * NUM_FEATURES]),
            ("hidden.bias", vec![2], vec![0.0; 2]),
            ("output.weight", vec![NUM_OUTPUTS, 2], vec![0.0; 2 * NUM_OUTPUTS]),
            ("output.bias", vec![NUM_OUTPUTS], vec![0.0; NUM_OUTPUTS]),
        ]
    }

    #[test]
    fn what_cannot_be_used_is_refused_whole_and_the_next_one_is_taken() {
        check(false, |dir| edit(dir, |m| m["format"] = json!(2)), "`format` is 2: expected 1");
        check(false, |dir| edit(dir, |m| m["features_version"] = json!(9)), "`features_version` is 9: expected 2");
        check(false, |dir| edit(dir, |m| m["hidden"] = json!(0)), "`hidden` is 0: expected 1 to 256");
        check(
            false,
            |dir| edit(dir, |m| m["hidden"] = json!(3)),
            "`hidden.weight` has shape [2, 49]: expected [3, 49]",
        );
        check(false, |dir| edit(dir, |m| m["more"] = json!(0)), "unknown field `more`");
        check(false, |dir| fs::write(dir.join(MANIFEST_FILE), "{").unwrap(), "policy.json cannot be read");
        check(false, |dir| fs::remove_file(dir.join(WEIGHTS_FILE)).unwrap(), "policy.safetensors");
        check(false, |dir| fs::write(dir.join(WEIGHTS_FILE), "half").unwrap(), "it is half written, or was changed");
        check(false, |dir| fs::write(dir.join(MANIFEST_FILE), vec![b' '; 1 << 21]).unwrap(), "more than 1048576 bytes");
        for (part, value, expected) in [
            (0, f32::NAN, "`features.mean` has the value NaN at 1"),
            (2, f32::INFINITY, "`hidden.weight` has the value inf at 1"),
            (1, 0.0, "`scale` has the number 0 at 1: expected a finite number above 0"),
        ] {
            let mut tensors = good();
            tensors[part].2[1] = value;
            check(false, |dir| numbers(dir, &tensors), expected);
        }
        check(false, |dir| numbers(dir, &good()[1..]), "`features.mean` is missing");
    }

    #[test]
    fn where_signatures_are_asked_for_another_key_or_none_is_refused() {
        check(true, |dir| fs::remove_file(dir.join(SIGNATURE_FILE)).unwrap(), "policy.hmac: it is missing");
        check(true, |dir| edit(dir, |m| m["training"]["runs"] = json!(7)), "of another key, or of another manifest");
        let keys = tempfile::tempdir().unwrap();
        let other = signing(keys.path(), "cd");
        check(true, |dir| put(dir, &network(2.0), other.as_ref()), "of another key, or of another manifest");
        // No signature of what was there before is left.
        check(true, |dir| put(dir, &network(2.0), None), "policy.hmac: it is missing");
    }

    #[test]
    fn networks_that_learned_from_the_data_of_the_run_are_told_each_once() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(warnings(run.path(), "digits", "d0").unwrap(), [""; 0]);
        let data = |of: &[(&str, &str)]| of.iter().map(|(name, digest)| ((*name).into(), (*digest).into())).collect();
        for (kept, of) in
            [&[("digits", "d1")][..], &[("digits", "d2"), ("other", "o")], &[("other", "o")], &[]].iter().enumerate()
        {
            let training = Training { data: data(of), ..Training::default() };
            write(&StdFs, &run.path().join(KEPT_DIR).join(kept.to_string()), &network(1.0), training, None).unwrap();
        }
        let check = |name: &str, digest: &str, expected: &[&str]| {
            let found = warnings(run.path(), name, digest).unwrap();
            assert!(found.len() == expected.len(), "{found:?}");
            assert!(found.iter().zip(expected).all(|(found, expected)| found.contains(expected)), "{found:?}");
        };
        check("digits", "d0", &["(digits), divided otherwise"]);
        check("digits", "d1", &["(digits), divided alike", "(digits), divided otherwise"]);
        check("a copy", "o", &["(a copy), divided alike"]);
        check("more", "m", &[]);
    }

    #[test]
    fn what_decides_is_kept_and_found_again_by_what_the_run_told() {
        let (dir, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        put(dir.path(), &network(1.0), None);
        let keep: Option<(Arc<dyn Fs>, PathBuf)> = Some((Arc::new(StdFs), run.path().join(KEPT_DIR)));
        let mut watched = Watched { keep, ..watched(dir.path(), None) };
        let held = watched.look(EpochIndex(1), None).unwrap().unwrap();
        fs::remove_dir_all(dir.path()).unwrap();
        let why = watched.look(EpochIndex(2), Some(&held.digest)).unwrap().unwrap_err().to_string();
        let told = |rule: &str, detail: &str| Rationale { rule: rule.to_owned(), detail: detail.to_owned() };
        let found = [
            (EpochIndex(1), told("policy_loaded", &held.digest)),
            (EpochIndex(2), told("policy_refused", &why)),
            (EpochIndex(4), told("policy_loaded", "../../elsewhere")),
        ];
        let of = |why: &Rationale| {
            if why.rule == "policy_loaded" { Ok(why.detail.clone()) } else { Err(why.detail.clone()) }
        };
        let found = found.iter().map(|(epoch, why)| (*epoch, of(why))).collect();
        let mut kept = Kept { dir: run.path().join(KEPT_DIR), found };
        assert_eq!(kept.look(EpochIndex(1), None).unwrap().unwrap(), held);
        assert_eq!(kept.look(EpochIndex(2), None).unwrap().unwrap_err().to_string(), why);
        assert!(kept.look(EpochIndex(3), None).is_none());
        assert!(kept.look(EpochIndex(4), None).unwrap().unwrap_err().to_string().contains("none"));
    }
}
