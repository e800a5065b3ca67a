//! Comparison of many pairs of tensors on the device, with one read for all of them.

use candle_core::{DType, Result, Tensor};

use crate::host_read::read_u32;

/// Pairs of tensors, each under a label.
#[derive(Debug)]
pub(super) struct Comparison<L> {
    entries: Vec<(L, Count)>,
    /// Flat pairs that are not compared yet, and their elements.
    pending: Vec<(Tensor, Tensor)>,
    num_pending: usize,
    /// One count for each pair that was compared.
    counts: Vec<Tensor>,
}

#[derive(Debug, Clone, Copy)]
enum Count {
    /// Known without looking at elements.
    Known(u64),
    /// This one of the device's counts.
    OnDevice(usize),
}

impl<L> Comparison<L> {
    /// Elements that are compared at once: many small tensors take few launches, and large ones little extra memory.
    const GROUP: usize = 1 << 20;

    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), pending: Vec::new(), num_pending: 0, counts: Vec::new() }
    }

    /// Adds a pair. Where one of the two is absent, or the shapes or dtypes differ, all elements count as different.
    pub(super) fn add(&mut self, label: L, found: Option<&Tensor>, expected: Option<&Tensor>) -> Result<()> {
        let count = match (found, expected) {
            (None, None) => return Ok(()),
            (Some(found), Some(expected)) if found.dims() == expected.dims() && found.dtype() == expected.dtype() => {
                if self.pending.last().is_some_and(|(last, _)| last.dtype() != found.dtype()) {
                    self.flush()?;
                }
                self.pending.push((found.flatten_all()?, expected.flatten_all()?));
                self.num_pending += found.elem_count();
                Count::OnDevice(self.counts.len() + self.pending.len() - 1)
            }
            (found, expected) => {
                let elements = [found, expected].map(|tensor| tensor.map_or(0, Tensor::elem_count));
                Count::Known(elements[0].max(elements[1]).max(1) as u64)
            }
        };
        self.entries.push((label, count));
        if self.num_pending >= Self::GROUP { self.flush() } else { Ok(()) }
    }

    /// The labels whose pairs differ, each with the number of its differing elements, in the order of addition.
    ///
    /// # Sync
    /// One device-to-host copy; none when nothing was compared.
    pub(super) fn differing(mut self) -> Result<Vec<(L, u64)>> {
        self.flush()?;
        let counts = if self.counts.is_empty() { Vec::new() } else { read_u32(&Tensor::stack(&self.counts, 0)?)? };
        let resolve = |count| match count {
            Count::Known(count) => count,
            Count::OnDevice(index) => u64::from(counts[index]),
        };
        let resolved = self.entries.into_iter().map(|(label, count)| (label, resolve(count)));
        Ok(resolved.filter(|&(_, count)| count > 0).collect())
    }

    fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let (found, expected): (Vec<Tensor>, Vec<Tensor>) = self.pending.drain(..).unzip();
        let lengths: Vec<usize> = found.iter().map(Tensor::elem_count).collect();
        let differing = differing_elements(&join(found)?, &join(expected)?)?.to_dtype(DType::U32)?;
        let mut start = 0;
        for length in lengths {
            self.counts.push(differing.narrow(0, start, length)?.sum_all()?);
            start += length;
        }
        self.num_pending = 0;
        Ok(())
    }
}

fn join(mut tensors: Vec<Tensor>) -> Result<Tensor> {
    match tensors.pop() {
        Some(only) if tensors.is_empty() => Ok(only),
        Some(last) => {
            tensors.push(last);
            Tensor::cat(&tensors, 0)
        }
        None => candle_core::bail!("no tensors to join"),
    }
}

/// 1 where elements differ and are not both NaN, else 0; dtype `u8`.
fn differing_elements(found: &Tensor, expected: &Tensor) -> Result<Tensor> {
    let both_nan = (found.ne(found)? * expected.ne(expected)?)?;
    found.ne(expected)? - both_nan
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::host_read::read_f32;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    #[track_caller]
    fn check(found: &[f32], expected: &[f32], num_differing: u64) {
        let mut comparison = Comparison::new();
        comparison.add((), Some(&tensor(found)), Some(&tensor(expected))).unwrap();
        let counts: Vec<u64> = comparison.differing().unwrap().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, if num_differing == 0 { vec![] } else { vec![num_differing] }, "{found:?} {expected:?}");
    }

    #[test]
    fn elements_differ_unless_equal_or_both_nan() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        check(&[1.0, 2.0], &[1.0, 2.0], 0);
        check(&[1.0, 2.0], &[1.0, f32::from_bits(2.0_f32.to_bits() + 1)], 1);
        check(&[nan, nan, 1.0], &[nan, 1.0, nan], 2);
        check(&[nan], &[f32::from_bits(nan.to_bits() + 1)], 0);
        check(&[inf, inf, -inf], &[inf, -inf, -inf], 1);
        check(&[0.0, -0.0], &[-0.0, 0.0], 0);
        check(&[f32::from_bits(1)], &[0.0], 1);
        check(&vec![0.0; 300], &vec![1.0; 300], 300);
    }

    #[test]
    fn what_is_absent_or_of_another_shape_differs_without_a_look_at_elements() {
        let mut comparison = Comparison::new();
        let (two, three) = (tensor(&[1.0, 2.0]), tensor(&[1.0, 2.0, 3.0]));
        comparison.add("absent here", None, Some(&two)).unwrap();
        comparison.add("absent there", Some(&three), None).unwrap();
        comparison.add("absent", None, None).unwrap();
        comparison.add("shape", Some(&two), Some(&three)).unwrap();
        comparison.add("dtype", Some(&two), Some(&two.to_dtype(DType::BF16).unwrap())).unwrap();
        let expected = [("absent here", 2), ("absent there", 3), ("shape", 3), ("dtype", 2)];
        assert_eq!(comparison.differing().unwrap(), expected);
    }

    #[test]
    fn groups_and_dtypes_do_not_mix_up_the_counts() {
        let large = Tensor::zeros(Comparison::<usize>::GROUP - 1, DType::F32, &Device::Cpu).unwrap();
        let half = |tensor: &Tensor| tensor.to_dtype(DType::F16).unwrap();
        let pairs = [
            (large.clone(), (&large + 1.0).unwrap()),
            (tensor(&[1.0]), tensor(&[1.0])),
            (tensor(&[1.0, 1.0]), tensor(&[1.0, 3.0])),
            (half(&tensor(&[1.0, 1.0, 2.0])), half(&tensor(&[5.0, 4.0, 3.0]))),
            (tensor(&[7.0]), tensor(&[8.0])),
            (large.clone(), large.clone()),
        ];
        let mut comparison = Comparison::new();
        for (index, (found, expected)) in pairs.iter().enumerate() {
            comparison.add(index, Some(found), Some(expected)).unwrap();
        }
        let all = large.elem_count() as u64;
        assert_eq!(comparison.differing().unwrap(), [(0, all), (2, 1), (3, 3), (4, 1)]);
        assert_eq!(read_f32(&large.narrow(0, 0, 1).unwrap()).unwrap(), [0.0], "nothing is written");
    }
}
