//! Which GPU it is.

/// Facts about a device for a record of a measurement; unknown ones are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The driver's name for it.
    pub name: Option<String>,
    /// Major and minor number.
    pub compute_capability: Option<(i32, i32)>,
    /// Newest version of CUDA that the driver knows: 1000 times the major number plus 10 times the minor one.
    pub driver_version: Option<i32>,
}

impl DeviceFacts {
    /// The name with the compute capability, for example `NVIDIA H200 (9.0)`.
    #[must_use]
    pub fn gpu(&self) -> Option<String> {
        let name = self.name.clone()?;
        Some(match self.compute_capability {
            Some((major, minor)) => format!("{name} ({major}.{minor})"),
            None => name,
        })
    }

    /// The driver's version of CUDA as people write it, for example `13.0`.
    #[must_use]
    pub fn driver_cuda(&self) -> Option<String> {
        self.driver_version.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_written_as_people_write_them() {
        let name = Some("NVIDIA H200".to_owned());
        let facts = DeviceFacts { name, compute_capability: Some((9, 0)), driver_version: Some(12_080) };
        assert_eq!(facts.gpu().as_deref(), Some("NVIDIA H200 (9.0)"));
        assert_eq!(facts.driver_cuda().as_deref(), Some("12.8"));
        assert_eq!(DeviceFacts { driver_version: Some(13_000), ..facts }.driver_cuda().as_deref(), Some("13.0"));
    }

    #[test]
    fn unknown_facts_are_absent() {
        let unknown = DeviceFacts { compute_capability: Some((9, 0)), ..DeviceFacts::default() };
        assert_eq!((unknown.gpu(), unknown.driver_cuda()), (None, None));
    }
}
