//! Kernels that the compiler wrote: from source to machine code on the device.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::thread;

use cudarc::driver::{CudaContext, result, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};

use super::driver::{check, enter, refused};
use crate::compile::{Code, NodeKind, Program, summed_by_row};
use crate::kernel_cache::{KernelCache, KernelKey, KernelSource};
use crate::reason::{Refusal, Stage};

/// A compilation takes about 20 ms and little more for a long kernel, so that each gets a thread where there are cores.
const MAX_THREADS: usize = 16;
/// The first compiler that is known to take `--minimal`, which leaves out what a kernel without headers cannot use.
const MINIMAL_SINCE: (i32, i32) = (13, 0);
/// Lines of the compiler's complaint that are kept.
const MAX_LINES: usize = 4;

/// Machine code on the device, by source.
#[derive(Debug)]
pub(super) struct Modules {
    modules: BTreeMap<Arc<str>, Module>,
    num_cached: usize,
    kernels_wait: bool,
}

#[derive(Debug)]
struct Module {
    module: sys::CUmodule,
    context: Arc<CudaContext>,
}

// SAFETY: the driver's modules may be used from any thread.
unsafe impl Send for Module {}

/// How all sources are compiled.
struct Compiler {
    architecture: String,
    version: (i32, i32),
    options: Vec<String>,
    /// Whether kernels for the device wait for their inputs.
    kernels_wait: bool,
}

/// Lets the compiler load what it needs, in a thread of its own, once per process: its first compilation takes several
/// times as long as others. The context is current.
pub(super) fn prepare(context: &CudaContext) {
    static START: Once = Once::new();
    START.call_once(|| {
        // Why there is no compiler is told when it is needed.
        let Ok(compiler) = Compiler::for_device(context) else { return };
        let compile = move || drop(machine_code("extern \"C\" __global__ void nothing() {}", &compiler.options));
        if let Err(error) = thread::Builder::new().name("kernel-compiler".to_owned()).spawn(compile) {
            tracing::debug!(%error, "the compiler gets ready when it is needed");
        }
    });
}

impl Modules {
    /// All generated kernels of the programs. The context is current.
    pub(super) fn of(
        programs: [&Program; 2],
        context: &Arc<CudaContext>,
        cache: Option<&KernelCache>,
    ) -> Result<Self, Refusal> {
        let sources = sources(programs);
        if sources.is_empty() {
            return Ok(Self { modules: BTreeMap::new(), num_cached: 0, kernels_wait: false });
        }
        let compiler = Compiler::for_device(context)?;
        let key = |source: &Arc<str>| {
            let Compiler { architecture, version, options, .. } = &compiler;
            KernelKey::of(&KernelSource { source, architecture, compiler: *version, options })
        };
        let stored = |source: &Arc<str>| cache.and_then(|cache| cache.load(&key(source)));
        let mut modules = BTreeMap::new();
        let mut missing: Vec<Arc<str>> = Vec::new();
        for source in sources {
            // Code that is whole but not to the driver's liking is compiled again, too.
            match stored(&source).and_then(|code| Module::load(&code, context).ok()) {
                Some(module) => drop(modules.insert(source, module)),
                None => missing.push(source),
            }
        }
        let num_cached = modules.len();
        for (source, code) in missing.iter().zip(compiler.compile(&missing)?) {
            if let Some(cache) = cache {
                cache.store(&key(source), &code);
            }
            modules.insert(Arc::clone(source), Module::load(&code, context)?);
        }
        Ok(Self { modules, num_cached, kernels_wait: compiler.kernels_wait })
    }

    /// The function of this name in the machine code of a source.
    pub(super) fn function(&self, source: &Arc<str>, name: &str) -> Result<sys::CUfunction, Refusal> {
        let not_generated = |message: String| Refusal::NotCompiled { why: "generated", message };
        let module = self.modules.get(source).ok_or_else(|| not_generated(format!("`{name}` has no machine code")))?;
        let name = CString::new(name).map_err(|_| not_generated("a kernel's name holds a zero byte".to_owned()))?;
        // SAFETY: the module is loaded.
        unsafe { result::module::get_function(module.module, name) }
            .map_err(refused("cuModuleGetFunction", Stage::Compile))
    }

    /// Distinct kernels.
    pub(super) fn len(&self) -> usize {
        self.modules.len()
    }

    /// Whether they wait for their inputs: all that is written here does, where the device can.
    pub(super) fn kernels_wait(&self) -> bool {
        self.kernels_wait
    }

    /// Those that were not compiled anew.
    pub(super) fn num_cached(&self) -> usize {
        self.num_cached
    }
}

fn sources(programs: [&Program; 2]) -> BTreeSet<Arc<str>> {
    let nodes = programs.into_iter().flat_map(|program| &program.nodes);
    let source = |kind: &NodeKind| match kind {
        NodeKind::Kernel(kernel) => match summed_by_row(kernel).map_or_else(|| kernel.code.clone(), |own| own.code) {
            Code::Generated(source) => Some(source),
            Code::Recorded(_) => None,
        },
        _ => None,
    };
    nodes.filter_map(|node| source(&node.kind)).collect()
}

impl Module {
    fn load(code: &[u8], context: &Arc<CudaContext>) -> Result<Self, Refusal> {
        // SAFETY: the bytes are a whole image, as the compiler made it: the cache checks that by a digest.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) };
        let module = module.map_err(refused("cuModuleLoadData", Stage::Compile))?;
        Ok(Self { module, context: Arc::clone(context) })
    }
}

impl Drop for Module {
    /// The graphs that launch its kernels are gone by then.
    fn drop(&mut self) {
        let entered = enter(&self.context);
        // SAFETY: nobody uses the module any more, and it is unloaded once.
        let unloaded = unsafe { result::module::unload(self.module) };
        if entered.is_err() || unloaded.is_err() {
            tracing::debug!(?entered, ?unloaded, "generated kernels were not unloaded");
        }
    }
}

impl Compiler {
    fn for_device(context: &CudaContext) -> Result<Self, Refusal> {
        let attribute = |name| {
            // SAFETY: the device is that of a live context.
            let value = unsafe { result::device::get_attribute(context.cu_device(), name) };
            value.map_err(refused("cuDeviceGetAttribute", Stage::Compile))
        };
        let major = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let architecture = format!("sm_{major}{minor}");
        let version = version()?;
        // No contraction to fused multiply-adds: the kernels that are replaced round after every operation.
        let mut options = vec![format!("--gpu-architecture={architecture}"), "--fmad=false".to_owned()];
        options.push("--std=c++17".to_owned());
        if version >= MINIMAL_SINCE {
            options.push("--minimal".to_owned());
        }
        Ok(Self { architecture, version, options, kernels_wait: major >= 9 })
    }

    /// The machine code of each source, in their order; several are compiled at a time.
    fn compile(&self, sources: &[Arc<str>]) -> Result<Vec<Vec<u8>>, Refusal> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(source) = sources.get(index) else { return done };
                done.push((index, machine_code(source, &self.options)));
            }
        };
        let num_cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let num_threads = sources.len().min(num_cores).min(MAX_THREADS);
        let mut done = thread::scope(|scope| {
            let threads: Vec<_> = (1..num_threads).map(|_| scope.spawn(work)).collect();
            let mut done = work();
            for thread in threads {
                done.extend(thread.join().unwrap_or_else(|payload| resume_unwind(payload)));
            }
            done
        });
        done.sort_unstable_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, code)| code).collect()
    }
}

/// A failure of the compiler. The library itself is linked, so that a program without it does not start; its helper
/// libraries are looked for when they are needed.
fn not_compiled(message: impl Into<String>) -> Refusal {
    Refusal::NotCompiled { why: "nvrtc", message: message.into() }
}

fn version() -> Result<(i32, i32), Refusal> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the call writes two numbers.
    let asked = unsafe { nvrtc_sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    asked.result().map_err(|error| not_compiled(format!("nvrtcVersion: {error}"))).map(|()| (major, minor))
}

/// A source that the compiler knows, until it is dropped.
struct Source(nvrtc_sys::nvrtcProgram);

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: the program was created and is destroyed once.
        if let Err(error) = unsafe { nvrtc::destroy_program(self.0) } {
            tracing::debug!(%error, "a source was not released");
        }
    }
}

fn machine_code(source: &str, options: &[String]) -> Result<Vec<u8>, Refusal> {
    let text = CString::new(source).map_err(|_| not_compiled("a source holds a zero byte"))?;
    let failed = |call: &'static str| move |error| not_compiled(format!("{call}: {error}"));
    let program = Source(nvrtc::create_program(&text, None).map_err(failed("nvrtcCreateProgram"))?);
    // SAFETY: the program is live, and so is its text.
    if let Err(error) = unsafe { nvrtc::compile_program(program.0, options) } {
        return Err(not_compiled(format!("{error}: {}", complaint(&program))));
    }
    let mut bytes = 0;
    // SAFETY: the program is compiled; the call writes a length.
    let asked = unsafe { nvrtc_sys::nvrtcGetCUBINSize(program.0, &raw mut bytes) };
    asked.result().map_err(failed("nvrtcGetCUBINSize"))?;
    if bytes == 0 {
        return Err(not_compiled("the compiler made no machine code"));
    }
    let mut code = vec![0_u8; bytes];
    // SAFETY: the buffer has the length that the compiler asked for.
    let copied = unsafe { nvrtc_sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) };
    copied.result().map_err(failed("nvrtcGetCUBIN")).map(|()| code)
}

/// The first lines of what the compiler says.
fn complaint(program: &Source) -> String {
    // SAFETY: the program is live, and was given to the compiler.
    let log = unsafe { nvrtc::get_program_log(program.0) }.unwrap_or_default();
    let bytes: Vec<u8> = log.iter().map(|&letter| letter.cast_unsigned()).take_while(|&byte| byte != 0).collect();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(MAX_LINES).collect();
    lines.join(" ")
}

/// Lets a generated kernel have as much dynamic shared memory as its launch asks for.
pub(super) fn allow_shared_memory(function: sys::CUfunction, bytes: u32) -> Result<(), Refusal> {
    /// What every kernel may have.
    const DEFAULT_BYTES: u32 = 48 << 10;
    if bytes <= DEFAULT_BYTES {
        return Ok(());
    }
    let bytes = i32::try_from(bytes).map_err(|_| not_compiled("a kernel asks for too much shared memory"))?;
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is one of a loaded module.
    let result = unsafe { sys::cuFuncSetAttribute(function, attribute, bytes) };
    check(result, "cuFuncSetAttribute", Stage::Compile)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiler() -> Compiler {
        let options = ["--gpu-architecture=sm_90", "--fmad=false", "--std=c++17"].map(str::to_owned).to_vec();
        Compiler {
            architecture: "sm_90".to_owned(),
            version: version().expect("the compiler has a version"),
            options,
            kernels_wait: true,
        }
    }

    fn doubling(name: &str) -> Arc<str> {
        format!("extern \"C\" __global__ void {name}(float* x) {{ x[threadIdx.x] *= 2.0f; }}").into()
    }

    #[test]
    fn sources_become_machine_code_in_their_order() {
        let names: Vec<String> = (0..20).map(|index| format!("kernel_number_{index}_")).collect();
        let sources: Vec<Arc<str>> = names.iter().map(|name| doubling(name)).collect();
        let codes = compiler().compile(&sources).expect("they are valid");
        assert_eq!(codes.len(), names.len());
        for (name, code) in names.iter().zip(&codes) {
            assert!(code.starts_with(b"\x7fELF"), "{name}");
            assert!(code.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
        }
        assert_eq!(compiler().compile(&sources[..1]).expect("it is valid"), codes[..1], "the code is the same again");
    }

    #[test]
    fn a_source_that_does_not_compile_is_refused_with_the_words_of_the_compiler() {
        let wrong: Arc<str> = "extern \"C\" __global__ void k(float* x) { x[0] = unheard_of; }".into();
        for sources in [vec![wrong.clone()], vec![doubling("a"), wrong, doubling("b")]] {
            let refusal = compiler().compile(&sources).expect_err("a name is not defined");
            assert_eq!(refusal.name(), "nvrtc");
            assert!(refusal.to_string().contains("unheard_of"), "{refusal}");
        }
        let zero: Arc<str> = "\0".into();
        assert_eq!(compiler().compile(&[zero]).expect_err("a zero byte").name(), "nvrtc");
    }

    #[test]
    fn an_option_that_the_compiler_does_not_know_is_refused() {
        let mut compiler = compiler();
        compiler.options.push("--no-such-option".to_owned());
        assert_eq!(compiler.compile(&[doubling("a")]).expect_err("no such option").name(), "nvrtc");
    }
}
