//! Whether data are kept on a GPU or read from the host step by step.

use serde::{Deserialize, Serialize};

/// Where data are while a GPU trains on them. The numbers are the same either way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuDataset {
    /// On the GPU where they fit into the budget and nothing is done to them on the host.
    #[default]
    Auto,
    /// On the GPU.
    On,
    /// On the host; every batch is copied.
    Off,
}

/// Where data are, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Whether they are on the GPU.
    pub is_on_gpu: bool,
    /// Why, for people.
    pub reason: String,
}

impl GpuDataset {
    /// Where `num_bytes` of data go when at most `budget` may be on the GPU; `on_host` is what needs them on the host, as
    /// transforms do.
    ///
    /// ```
    /// use tolaria::batch::GpuDataset;
    ///
    /// let placed = GpuDataset::Auto.place(3 << 20, 2 << 20, None)?;
    /// assert_eq!((placed.is_on_gpu, placed.reason), (false, "3.0 MiB are more than the budget of 2.0 MiB".to_owned()));
    /// assert!(GpuDataset::Auto.place(1 << 20, 2 << 20, None)?.is_on_gpu);
    /// # Ok::<(), String>(())
    /// ```
    ///
    /// # Errors
    /// What is accepted where data are to be on the GPU and cannot be.
    pub fn place(self, num_bytes: u64, budget: u64, on_host: Option<&str>) -> Result<Placement, String> {
        let (size, most) = (mib(num_bytes), mib(budget));
        let (is_on_gpu, reason) = match (self, on_host) {
            (Self::On, Some(needed)) => return Err(format!("auto or off, since {needed} needs the data on the host")),
            (Self::On, None) => (true, format!("{size} as was asked for")),
            (Self::Off, _) => (false, "as was asked for".to_owned()),
            (Self::Auto, Some(needed)) => (false, format!("{needed} needs them there")),
            (Self::Auto, None) if num_bytes <= budget => (true, format!("{size} are within the budget of {most}")),
            (Self::Auto, None) => (false, format!("{size} are more than the budget of {most}")),
        };
        Ok(Placement { is_on_gpu, reason })
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(setting: GpuDataset, num_bytes: u64, on_host: Option<&str>, expected: Option<bool>, text: &str) {
        let placed = setting.place(num_bytes, 1000, on_host);
        assert_eq!(placed.as_ref().ok().map(|placed| placed.is_on_gpu), expected, "{placed:?}");
        let said = placed.map_or_else(|accepted| accepted, |placed| placed.reason);
        assert!(said.contains(text), "{said}");
    }

    #[test]
    fn data_go_where_they_were_asked_for_and_otherwise_where_they_fit() {
        check(GpuDataset::Auto, 1000, None, Some(true), "within the budget");
        check(GpuDataset::Auto, 1001, None, Some(false), "more than the budget");
        check(GpuDataset::Auto, 10, Some("`train.augment`"), Some(false), "`train.augment` needs them there");
        check(GpuDataset::On, 1 << 40, None, Some(true), "as was asked for");
        check(GpuDataset::On, 10, Some("`train.augment`"), None, "auto or off, since `train.augment`");
        check(GpuDataset::Off, 10, None, Some(false), "as was asked for");
    }
}
