//! The layers of `esper-layers` on the device, against `f64` on the CPU.

use esper_layers::check::{decoding_cases, linear_cases, norm_attention_cases};

use crate::gpu::open::Gpu;
use crate::gpu::report::{Report, promise};

pub(super) fn run(gpu: &Gpu, report: &mut Report) {
    let groups = [
        ("linear", linear_cases(&gpu.device)),
        ("norm_attention", norm_attention_cases(&gpu.device)),
        ("decoding", decoding_cases(&gpu.device)),
    ];
    for (group, cases) in groups {
        match cases {
            Ok(cases) => {
                for (case, error, allowed) in cases {
                    report.check(format!("layers.{group}.{}", case.replace(' ', "_")), |_| {
                        // Not the other way round, so that an error which is no number fails.
                        promise(error <= allowed, || format!("error {error:e}, allowed {allowed:e}"))?;
                        Ok(format!("error {error:e}, allowed {allowed:e}"))
                    });
                }
            }
            Err(error) => report.check(format!("layers.{group}"), |_| Err(error.into())),
        }
    }
}
