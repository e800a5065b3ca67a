//! The tensor library's modules of kernels, loaded on purpose and not on first use.

use std::time::Duration;

use esper_graph::{LIBRARY_MODULES, Session};
use leyline::clock::Clock;

use crate::error::Error;
use crate::gpu::open::refused;

/// Loads all modules for training, at once or one after the other, and gives the time of each in order. They are
/// unloaded again; what stays is the driver's cache of compiled kernels on disk, from which the tensor library's own
/// loads are served.
pub(super) fn load_all(
    session: &Session,
    at_once: bool,
    clock: &dyn Clock,
) -> Result<Vec<(&'static str, Duration)>, Error> {
    let load = |name: &'static str| {
        let started = clock.now();
        session.compile_library_module(name).map_err(|refusal| refused("loading a module", refusal))?;
        Ok((name, clock.now() - started))
    };
    if at_once {
        std::thread::scope(|scope| {
            let threads = LIBRARY_MODULES.map(|name| scope.spawn(move || load(name)));
            threads.into_iter().map(|thread| thread.join().expect("loading does not panic")).collect()
        })
    } else {
        LIBRARY_MODULES.into_iter().map(load).collect()
    }
}
