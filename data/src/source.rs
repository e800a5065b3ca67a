//! From a configuration to checked, split and identified samples.

use super::{DataConfig, DataDigest, DataName, Error, Splits, Table, csv, digits, image, mnist1d};

/// Samples before they are divided.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// All samples.
    pub table: Table,
    /// Rows of the published training part, which comes first; absent where no test part was published.
    pub num_training: Option<usize>,
}

/// What a run needs to know about its data.
#[derive(Debug)]
pub struct Prepared {
    /// The three parts.
    pub splits: Splits,
    /// Identifies them, for the run record.
    pub digest: DataDigest,
}

/// Reads or generates the configured data set, divides it and digests the parts.
///
/// # Errors
/// [`Error`]; nothing is fetched, a missing file is answered with the commands that fetch it.
pub fn load(config: &DataConfig) -> Result<Prepared, Error> {
    let plan = config.split_plan()?;
    let source = match &config.name {
        DataName::Digits => Source { table: digits::read()?, num_training: None },
        DataName::Mnist1d => mnist1d::generate(&config.mnist1d)?,
        DataName::Mnist => image::MNIST.read(&config.folder)?,
        DataName::FashionMnist => image::FASHION_MNIST.read(&config.folder)?,
        DataName::Csv(path) => Source { table: csv::read(path, config.csv_scale.get())?, num_training: None },
    };
    let splits = Splits::cut(source, &plan)?;
    let digest = DataDigest::of(&splits);
    Ok(Prepared { splits, digest })
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
        let mut config = config_for(DataName::Csv(path));
        config.csv_scale = Scale::new(16.0).unwrap();
        let (mine, embedded) = (load(&config).unwrap(), load(&config_for(DataName::Digits)).unwrap());
        assert_eq!(mine.splits.train.inputs(), embedded.splits.train.inputs());
        assert_eq!(mine.splits.assignment, embedded.splits.assignment);
        assert_eq!(mine.splits.train.sample_shape(), [64]);
        assert_ne!(mine.digest, embedded.digest);
    }

    #[test]
    fn a_missing_user_file_is_named() {
        let error = load(&config_for(DataName::Csv("no/such.csv".into()))).unwrap_err();
        assert_eq!(error.to_string(), "cannot read no/such.csv");
    }
}
