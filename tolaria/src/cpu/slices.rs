//! Tensors of the CPU as slices.

use std::cell::Cell;
use std::ops::Range;

use candle_core::{CpuStorage, DType, Error, InplaceOp1, Layout, Result, Storage, Tensor, WithDType};
use half::bf16;

/// The elements of a contiguous tensor.
pub(crate) fn slice<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let range = elements(layout)?;
    Ok(&storage.as_slice::<T>()?[range])
}

/// Elements that a kernel writes.
pub(crate) trait Written: WithDType {
    fn of(storage: &mut CpuStorage) -> Option<&mut Vec<Self>>;
}

macro_rules! written {
    ($($element:ty = $variant:ident),*) => {$(
        impl Written for $element {
            fn of(storage: &mut CpuStorage) -> Option<&mut Vec<Self>> {
                if let CpuStorage::$variant(values) = storage { Some(values) } else { None }
            }
        }
    )*};
}

written!(f32 = F32, f64 = F64, bf16 = BF16, i16 = I16);

/// The elements of a contiguous tensor, to be written.
pub(crate) fn slice_mut<'a, T: Written>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [T]> {
    let range = elements(layout)?;
    let found = storage_dtype(storage);
    match T::of(storage) {
        Some(values) => Ok(&mut values[range]),
        None => Err(Error::UnexpectedDType { msg: "a kernel writes", expected: T::DTYPE, got: found }.bt()),
    }
}

/// Runs `f` on the elements of contiguous `f32` tensors of the CPU.
pub(crate) fn with_slices<R>(tensors: &[&Tensor], f: impl FnOnce(&[&[f32]]) -> R) -> Result<R> {
    let guards: Vec<_> = tensors.iter().map(|tensor| tensor.storage_and_layout()).collect();
    let slices = guards
        .iter()
        .map(|(storage, layout)| match &**storage {
            Storage::Cpu(storage) => slice::<f32>(storage, layout),
            _ => Err(Error::Msg("a CPU kernel was given a tensor of another device".to_owned()).bt()),
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(f(&slices))
}

/// Runs `f` on the elements of a contiguous tensor of the CPU, to be written.
pub(crate) fn with_slice_mut<T: Written, R>(tensor: &Tensor, f: impl FnOnce(&mut [T]) -> R) -> Result<R> {
    let once = Once::new("write-slice", |storage: &mut CpuStorage, layout: &Layout| Ok(f(slice_mut(storage, layout)?)));
    once.run(tensor)
}

/// Runs `f` on the elements of a contiguous `f64` tensor of the CPU, to be written, or without one.
pub(crate) fn with_sums<R>(tensor: Option<&Tensor>, f: impl FnOnce(Option<&mut [f64]>) -> R) -> Result<R> {
    match tensor {
        Some(tensor) => with_slice_mut(tensor, |sums| f(Some(sums))),
        None => Ok(f(None)),
    }
}

/// Whether every element of a contiguous tensor of the CPU is as `fits` wants it; one that is no float is.
pub(crate) fn all_elements(tensor: &Tensor, fits: impl Fn(f64) -> bool) -> Result<bool> {
    let (storage, layout) = tensor.storage_and_layout();
    let range = elements(layout)?;
    Ok(match &*storage {
        Storage::Cpu(CpuStorage::F16(values)) => values[range].iter().all(|value| fits(value.to_f64())),
        Storage::Cpu(CpuStorage::BF16(values)) => values[range].iter().all(|value| fits(value.to_f64())),
        Storage::Cpu(CpuStorage::F32(values)) => values[range].iter().all(|value| fits(f64::from(*value))),
        Storage::Cpu(CpuStorage::F64(values)) => values[range].iter().all(|value| fits(*value)),
        _ => true,
    })
}

/// An operation in place that happens once and gives a value.
struct Once<F, R> {
    name: &'static str,
    work: Cell<Option<F>>,
    value: Cell<Option<R>>,
}

impl<R, F: FnOnce(&mut CpuStorage, &Layout) -> Result<R>> Once<F, R> {
    fn new(name: &'static str, work: F) -> Self {
        Self { name, work: Cell::new(Some(work)), value: Cell::new(None) }
    }

    fn run(self, tensor: &Tensor) -> Result<R> {
        tensor.inplace_op1(&self)?;
        Ok(self.value.take().expect("an operation that succeeds has run"))
    }
}

impl<R, F: FnOnce(&mut CpuStorage, &Layout) -> Result<R>> InplaceOp1 for Once<F, R> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let work = self.work.take().expect("an operation runs once");
        self.value.set(Some(work(storage, layout)?));
        Ok(())
    }
}

fn elements(layout: &Layout) -> Result<Range<usize>> {
    let (start, end) =
        layout.contiguous_offsets().ok_or_else(|| Error::RequiresContiguous { op: "f32 kernel" }.bt())?;
    Ok(start..end)
}

fn storage_dtype(storage: &CpuStorage) -> DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}
