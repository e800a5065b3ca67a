//! Buffers for flat gradients, leased and given back by dropping.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, DeviceLocation, Tensor};

use crate::error::Error;

/// Idle buffers kept unless said otherwise; more than a window has microbatches in practice.
const DEFAULT_MAX_IDLE: usize = 64;

/// How a pool is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Buffers alive: leased or waiting.
    pub allocated: usize,
    /// Bytes of those buffers.
    pub bytes: usize,
    /// Leases alive.
    pub outstanding: usize,
    /// Leases handed out so far.
    pub leases_total: u64,
    /// Buffers made so far. It stands still once the largest window of the present size has been met.
    pub allocations_total: u64,
}

/// Buffers of (P,) elements, kept for the next lease of the same size, type and device. A clone is the same pool.
///
/// Of several idle buffers the one made first is handed out. So a window finds the buffers of the one before in the
/// same order, in whichever order they came back, and a step that is recorded again points at the same memory.
///
/// Bounded: beyond its limit of idle buffers the one that waited longest is freed.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device};
/// use tolaria::grad::GradientBufferPool;
///
/// let pool = GradientBufferPool::new();
/// for _ in 0..3 {
///     let lease = pool.lease(4, DType::F32, &Device::Cpu)?;
///     assert_eq!(lease.as_tensor().to_vec1::<f32>()?, [0.0; 4]);
/// }
/// assert_eq!((pool.stats().leases_total, pool.stats().allocations_total), (3, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct GradientBufferPool {
    shelf: Arc<Mutex<Shelf>>,
}

impl GradientBufferPool {
    /// An empty pool that keeps at most 64 idle buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::with_max_idle(DEFAULT_MAX_IDLE)
    }

    /// An empty pool that keeps at most `max_idle` idle buffers.
    #[must_use]
    pub fn with_max_idle(max_idle: usize) -> Self {
        let shelf = Shelf {
            idle: Vec::new(),
            max_idle,
            outstanding: 0,
            outstanding_bytes: 0,
            leases_total: 0,
            allocations_total: 0,
        };
        Self { shelf: Arc::new(Mutex::new(shelf)) }
    }

    /// A buffer of `num_elements` zeros.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn lease(&self, num_elements: usize, dtype: DType, device: &Device) -> Result<GradientLease, Error> {
        let lease = self.lease_to_write(num_elements, dtype, device)?;
        lease.buffer.zero_set()?;
        Ok(lease)
    }

    /// As [`Self::lease`], with whatever the buffer held before, for callers that write every element.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn lease_to_write(&self, num_elements: usize, dtype: DType, device: &Device) -> Result<GradientLease, Error> {
        let key = Key { num_elements, dtype, location: device.location() };
        let kept = self.shelf().take(&key);
        let (serial, buffer) = match kept {
            Some(buffer) => buffer,
            None => {
                let made = Tensor::zeros(num_elements, dtype, device)?;
                let mut shelf = self.shelf();
                shelf.allocations_total += 1;
                (shelf.allocations_total, made)
            }
        };
        let mut shelf = self.shelf();
        shelf.outstanding += 1;
        shelf.outstanding_bytes += key.bytes();
        shelf.leases_total += 1;
        Ok(GradientLease { key, serial, buffer, shelf: Arc::clone(&self.shelf) })
    }

    /// Frees idle buffers of any other size, as after a change of the topology.
    pub fn retain(&self, num_elements: usize) {
        self.shelf().idle.retain(|idle| idle.key.num_elements == num_elements);
    }

    /// The idle buffers of this size.
    pub(crate) fn idle(&self, num_elements: usize) -> Vec<Tensor> {
        let shelf = self.shelf();
        let of_size = shelf.idle.iter().filter(|idle| idle.key.num_elements == num_elements);
        of_size.map(|idle| idle.buffer.clone()).collect()
    }

    /// How the pool is used now.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let shelf = self.shelf();
        PoolStats {
            allocated: shelf.idle.len() + shelf.outstanding,
            bytes: shelf.idle.iter().map(|idle| idle.key.bytes()).sum::<usize>() + shelf.outstanding_bytes,
            outstanding: shelf.outstanding,
            leases_total: shelf.leases_total,
            allocations_total: shelf.allocations_total,
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        lock(&self.shelf)
    }
}

impl Default for GradientBufferPool {
    fn default() -> Self {
        Self::new()
    }
}

/// A buffer of (P,) elements until it is dropped.
pub struct GradientLease {
    key: Key,
    serial: u64,
    buffer: Tensor,
    shelf: Arc<Mutex<Shelf>>,
}

impl GradientLease {
    /// The buffer, shape (P,). A clone of the tensor must not outlive the lease: the next one writes to the same memory.
    #[must_use]
    pub fn as_tensor(&self) -> &Tensor {
        &self.buffer
    }
}

impl fmt::Debug for GradientLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GradientLease").field(&self.key).finish()
    }
}

impl Drop for GradientLease {
    fn drop(&mut self) {
        lock(&self.shelf).put(Idle { key: self.key, serial: self.serial, buffer: self.buffer.clone() });
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    num_elements: usize,
    dtype: DType,
    location: DeviceLocation,
}

impl Key {
    fn bytes(&self) -> usize {
        self.num_elements * self.dtype.size_in_bytes()
    }
}

#[derive(Debug)]
struct Idle {
    key: Key,
    /// Buffers made before it, and itself.
    serial: u64,
    buffer: Tensor,
}

#[derive(Debug)]
struct Shelf {
    /// In the order of their return.
    idle: Vec<Idle>,
    max_idle: usize,
    outstanding: usize,
    outstanding_bytes: usize,
    leases_total: u64,
    allocations_total: u64,
}

impl Shelf {
    /// The buffer that was made first, with its serial number.
    fn take(&mut self, key: &Key) -> Option<(u64, Tensor)> {
        let fitting = self.idle.iter().enumerate().filter(|(_, idle)| idle.key == *key);
        let (index, _) = fitting.min_by_key(|(_, idle)| idle.serial)?;
        let Idle { serial, buffer, .. } = self.idle.remove(index);
        Some((serial, buffer))
    }

    fn put(&mut self, idle: Idle) {
        self.outstanding -= 1;
        self.outstanding_bytes -= idle.key.bytes();
        self.idle.push(idle);
        if self.idle.len() > self.max_idle {
            self.idle.remove(0);
        }
    }
}

/// No code panics while it holds the lock, and the shelf is sound after each of its statements.
fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;

    fn lease(pool: &GradientBufferPool, num_elements: usize) -> GradientLease {
        pool.lease(num_elements, DType::F32, &Device::Cpu).unwrap()
    }

    #[track_caller]
    fn stats(pool: &GradientBufferPool, allocated: usize, outstanding: usize, leases_total: u64) {
        let found = pool.stats();
        assert_eq!((found.allocated, found.outstanding, found.leases_total), (allocated, outstanding, leases_total));
    }

    #[test]
    fn bytes_are_those_of_buffers_of_each_type_leased_or_not() {
        let pool = GradientBufferPool::new();
        let first = lease(&pool, 4);
        let half = pool.lease(4, DType::BF16, &Device::Cpu).unwrap();
        assert_eq!(pool.stats().bytes, 16 + 8);
        drop((first, half));
        assert_eq!(pool.stats().bytes, 16 + 8);
        pool.retain(5);
        assert_eq!(pool.stats().bytes, 0);
    }

    #[test]
    fn a_buffer_is_used_again_and_starts_zeroed() {
        let pool = GradientBufferPool::new();
        let first = lease(&pool, 4);
        first.as_tensor().one_set().unwrap();
        stats(&pool, 1, 1, 1);
        drop(first);
        stats(&pool, 1, 0, 1);
        let again = lease(&pool, 4);
        assert_eq!(values(again.as_tensor()), [0.0; 4]);
        stats(&pool, 1, 1, 2);
    }

    #[test]
    fn two_leases_never_share_a_buffer() {
        let pool = GradientBufferPool::new();
        drop(lease(&pool, 4));
        let (a, b) = (lease(&pool, 4), lease(&pool, 4));
        a.as_tensor().one_set().unwrap();
        assert_eq!(values(b.as_tensor()), [0.0; 4]);
        stats(&pool, 2, 2, 3);
    }

    #[test]
    fn a_buffer_of_another_size_or_type_is_not_handed_out() {
        let pool = GradientBufferPool::new();
        drop((lease(&pool, 4), lease(&pool, 5)));
        let wide = pool.lease(4, DType::F64, &Device::Cpu).unwrap();
        assert_eq!((wide.as_tensor().elem_count(), wide.as_tensor().dtype()), (4, DType::F64));
        assert_eq!(lease(&pool, 5).as_tensor().elem_count(), 5);
        stats(&pool, 3, 1, 4);
    }

    #[test]
    fn windows_after_the_first_make_no_buffer() {
        let pool = GradientBufferPool::new();
        let window = |num_elements: usize| {
            let rows: Vec<GradientLease> = (0..8).map(|_| lease(&pool, num_elements)).collect();
            drop(rows);
            pool.stats().allocations_total
        };
        assert_eq!([window(5), window(5), window(5)], [8; 3]);
        // The network grew, and shrank again.
        assert_eq!([window(7), window(7), window(5)], [16; 3]);
        pool.retain(7);
        assert_eq!([window(7), window(5)], [16, 24]);
    }

    #[test]
    fn windows_find_their_buffers_in_one_order_however_they_come_back() {
        let pool = GradientBufferPool::new();
        let window = |num_rows: usize, first: usize| {
            let mut rows: Vec<GradientLease> = (0..num_rows).map(|_| lease(&pool, 3)).collect();
            let found: Vec<_> = rows.iter().map(|row| row.as_tensor().id()).collect();
            rows.rotate_left(first % num_rows);
            drop(rows);
            found
        };
        let widest = window(5, 0);
        for (num_rows, first) in [(5, 0), (5, 1), (5, 3), (2, 1), (4, 2), (1, 0), (5, 4), (3, 1), (5, 0)] {
            assert_eq!(window(num_rows, first), widest[..num_rows], "{num_rows} rows, returned from {first} on");
        }
    }

    #[test]
    fn idle_buffers_are_bounded_and_the_oldest_goes_first() {
        let pool = GradientBufferPool::with_max_idle(2);
        let leases = [lease(&pool, 1), lease(&pool, 2), lease(&pool, 3)];
        stats(&pool, 3, 3, 3);
        drop(leases);
        stats(&pool, 2, 0, 3);
        drop(lease(&pool, 3));
        stats(&pool, 2, 0, 4);
        pool.retain(3);
        stats(&pool, 1, 0, 4);
    }

    #[test]
    fn an_early_return_gives_the_buffer_back() {
        fn fails(pool: &GradientBufferPool) -> Result<(), Error> {
            let _held = pool.lease(2, DType::F32, &Device::Cpu)?;
            Err(Error::MissingGradient { name: "a".into() })
        }
        let pool = GradientBufferPool::new();
        assert!(fails(&pool.clone()).is_err());
        stats(&pool, 1, 0, 1);
    }
}
