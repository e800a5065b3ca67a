//! From a configuration to checked, prepared, split and identified samples.

use std::path::Path;

use super::format::{Format, Reading};
use super::{
    DataConfig, DataDigest, DataName, Error, Preparation, Splits, Table, TargetPlan, Targets, TokenizerFile, digits,
    image, mnist1d, split,
};

/// What a run needs to know about its data.
#[derive(Debug)]
pub struct Prepared {
    /// The three parts, as the network takes them.
    pub splits: Splits,
    /// Identifies them, for the run record.
    pub digest: DataDigest,
    /// What was learned from the training part; what other samples are prepared by.
    pub preparation: Preparation,
    /// What was decided about a file, and why, one sentence each; none about named data sets.
    pub notes: Vec<String>,
}

/// Samples of a named data set, before they are divided.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Known {
    /// All samples, scaled.
    pub table: Table,
    /// Rows of the published training part, which comes first; absent where no test part was published.
    pub num_training: Option<usize>,
    /// What inputs were divided by.
    pub divisor: f64,
}

/// Reads or generates the configured data set, divides it, learns from the training part how samples are prepared, and
/// digests the parts.
///
/// # Errors
/// [`Error`]; nothing is fetched, a missing file is answered with the commands that fetch it.
pub fn load(config: &DataConfig) -> Result<Prepared, Error> {
    let known = match &config.name {
        DataName::Digits => Known { table: digits::read()?, num_training: None, divisor: f64::from(digits::MAX_LEVEL) },
        DataName::Mnist1d => mnist1d::generate(&config.mnist1d)?,
        DataName::Mnist => image::MNIST.read(&config.folder)?,
        DataName::FashionMnist => image::FASHION_MNIST.read(&config.folder)?,
        DataName::File(path) => return load_file(config, path),
    };
    let plan = config.split_plan()?;
    let Known { mut table, num_training, divisor } = known;
    if plan.permute_labels {
        let order = split::permuted(table.targets(), plan.seed);
        table = table.permuted(&order);
    }
    let assignment = split::assign(table.targets(), num_training, &plan)?;
    let target = TargetPlan::of(table.targets());
    let mut preparation =
        Preparation::of_whole(config.name.to_string(), table.sample_shape().to_vec(), divisor, target);
    let splits = Splits::of(&table, assignment);
    preparation.target.class_counts = splits.train.class_counts();
    Ok(Prepared { digest: DataDigest::of(&splits), splits, preparation, notes: Vec::new() })
}

fn load_file(config: &DataConfig, path: &Path) -> Result<Prepared, Error> {
    let plan = config.split_plan()?;
    let format = Format::of(path, config.format.as_deref())?;
    format.expect_followed(path, config)?;
    let file = config.tokenizer.as_deref().map(TokenizerFile::read).transpose()?;
    let tokenizer = file.as_ref().map(|file| file.open(&file.source)).transpose()?;
    let reading = Reading { config, learned: None, has_word_labels: false, tokenizer: tokenizer.as_ref() };
    let mut records = (format.read)(path, &reading)?;
    let mut notes = std::mem::take(&mut records.notes);
    let place = path.display().to_string();
    let (mut target, why) = match &records.following {
        Some(tokens) => (TargetPlan::of(tokens), "target: the token that follows each token".to_owned()),
        None => TargetPlan::decide(&records.targets, config.target_kind, &place)?,
    };
    target.is_text = format.is_text() && file.is_none();
    target.bytes_per_token = records.bytes_per_token;
    notes.push(why);
    // With the row that each sample has its target from.
    let targets_by = |target: &TargetPlan| -> Result<(Targets, Vec<usize>), Error> {
        let targets = match &records.following {
            Some(tokens) => tokens.clone(),
            None => target.encode(&records.targets, &place)?,
        };
        if !plan.permute_labels {
            let rows = (0..targets.num_samples()).collect();
            return Ok((targets, rows));
        }
        let rows = split::permuted(&targets, plan.seed);
        Ok((targets.reordered(&rows), rows))
    };
    let (targets, rows) = targets_by(&target)?;
    let assignment = split::assign(&targets, None, &plan)?;
    let train: Vec<usize> = assignment.train.iter().map(|&sample| rows[sample]).collect();
    notes.extend(target.fit(&records.targets, &train));
    let (targets, _) = targets_by(&target)?;
    let (mut preparation, inputs) = Preparation::fit(config, records, target, &assignment.train, &mut notes)?;
    preparation.tokenizer = file;
    let table = Table::new(inputs, preparation.sample_shape.clone(), targets)?;
    let splits = Splits::of(&table, assignment);
    preparation.target.class_counts = splits.train.class_counts();
    Ok(Prepared { digest: DataDigest::of(&splits), splits, preparation, notes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scale;

    fn config_for(name: DataName) -> DataConfig {
        DataConfig::new(name)
    }

    #[test]
    fn each_offline_set_loads_with_its_published_test_part_untouched() {
        let mut config = config_for(DataName::Mnist1d);
        config.mnist1d.train_samples = std::num::NonZeroUsize::new(400).unwrap();
        config.mnist1d.test_samples = std::num::NonZeroUsize::new(100).unwrap();
        let Prepared { splits, .. } = load(&config).unwrap();
        assert_eq!(splits.assignment.test, (400..500).collect::<Vec<_>>());
        assert_eq!(splits.train.num_samples() + splits.validation.num_samples(), 400);

        let splits = load(&config_for(DataName::Digits)).unwrap().splits;
        assert_eq!(splits.train.num_samples(), 1079);
    }

    #[test]
    fn a_user_file_of_the_digits_form_gives_the_embedded_digits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.csv.gz");
        std::fs::write(&path, include_bytes!("../digits/digits.csv.gz")).unwrap();
        let mut config = config_for(DataName::File(path));
        config.csv_scale = Scale::new(16.0);
        let (mine, embedded) = (load(&config).unwrap(), load(&config_for(DataName::Digits)).unwrap());
        assert_eq!(mine.splits.train.values(), embedded.splits.train.values());
        assert_eq!(mine.splits.assignment, embedded.splits.assignment);
        assert_eq!(mine.splits.train.sample_shape(), [64]);
        assert_ne!(mine.digest, embedded.digest);
    }

    #[test]
    fn a_missing_user_file_is_named() {
        let error = load(&config_for(DataName::File("no/such.csv".into()))).unwrap_err();
        assert_eq!(error.to_string(), "cannot read no/such.csv");
    }
}
