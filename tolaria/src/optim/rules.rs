//! The element-wise rules: what a step does to one number of a parameter, and what it remembers about it.
//!
//! A rule is written once. Here it becomes a function over slices for the CPU; the build script writes the same text for a
//! GPU (`rules.cuh`, used by `kernels/optimizer.cu`). So it is what both languages read alike: assignments of `+ - * /` and
//! `sqrtf`, `signf` and `keptf`, each rounded, `let` for a number of its own, and no literals (a number is a setting). Nothing else of the crate
//! is used here.
//!
//! A rule over a whole matrix is two of these, and in between what makes a step of all its elements: `muon.rs`.

#![allow(clippy::assign_op_pattern, reason = "the rules read as formulas")]
#![allow(
    unused_mut,
    unused_variables,
    reason = "an average leaves the parameter, its gradient and constants of others alone"
)]

/// A rule in words that both languages read.
pub(crate) struct Source {
    pub(crate) name: &'static str,
    /// Names of the parameter's number and of the gradient's.
    pub(crate) element: [&'static str; 2],
    pub(crate) state: &'static [&'static str],
    pub(crate) settings: &'static [&'static str],
    pub(crate) constants: &'static [&'static str],
    /// A block in braces.
    pub(crate) body: &'static str,
}

/// Most settings and constants of a rule; what a kernel has room for.
pub(crate) const MAX_SETTINGS: usize = 8;
pub(crate) const MAX_CONSTANTS: usize = 4;
/// Numbers of a parameter in the table of an update: its constants, and what is drawn for it.
pub(crate) const TABLE_WIDTH: usize = MAX_CONSTANTS + 1;

/// What the parameters of an update are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Of `f32`.
    Whole,
    /// Of `bf16`, each with its lower halves.
    Halves,
    /// Of `f32`, some of them with a copy of `bf16`.
    Copied,
    /// Of `bf16`, rounded at random.
    Drawn,
}

/// Per rule: the state of each element, what is the same in every step, what may change from step to step and from
/// parameter to parameter, and the update.
macro_rules! rules {
    ($($(#[$documentation:meta])* $rule:ident = $name:literal {
        state: [$($state:ident),*], settings: [$($setting:ident),*], constants: [$($constant:ident),*],
        update: |$parameter:ident, $gradient:ident| $body:block
    })+) => {
        /// Every rule, for the build script.
        pub(crate) const SOURCES: &[Source] = &[$(Source {
            name: $name,
            element: [stringify!($parameter), stringify!($gradient)],
            state: &[$(stringify!($state)),*],
            settings: &[$(stringify!($setting)),*],
            constants: &[$(stringify!($constant)),*],
            body: stringify!($body),
        }),+];

        $(
            $(#[$documentation])*
            #[derive(Debug, Clone, Copy)]
            pub(crate) struct $rule {
                $(pub(crate) $setting: f32,)*
                $(pub(crate) $constant: f32,)*
            }

            impl $rule {
                const NUM_STATES: usize = { let names: &[&str] = &[$(stringify!($state)),*]; names.len() };

                #[inline(always)]
                fn element(self, mut $parameter: f32, [$(mut $state),*]: [f32; $rule::NUM_STATES], $gradient: f32)
                    -> (f32, [f32; $rule::NUM_STATES]) {
                    let Self { $($setting,)* $($constant,)* } = self;
                    $body
                    ($parameter, [$($state),*])
                }

                #[inline(always)]
                fn update(self, $parameter: &mut [f32], $($state: &mut [f32],)* $gradient: &[f32]) {
                    let len = $parameter.len();
                    $(let $state = &mut $state[..len];)*
                    let $gradient = &$gradient[..len];
                    for at in 0..len {
                        ($parameter[at], [$($state[at]),*]) =
                            self.element($parameter[at], [$($state[at]),*], $gradient[at]);
                    }
                }
            }
        )+

        /// The rule of one parameter in one step, with its constants.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum Element {
            $($(#[$documentation])* $rule($rule),)+
        }

        impl Element {
            /// Numbers remembered about an element.
            pub(crate) const fn num_states(self) -> usize {
                match self { $(Self::$rule(_) => $rule::NUM_STATES,)+ }
            }

            /// Name of the kernel on a GPU.
            pub(crate) const fn kernel(self, numbers: Numbers) -> &'static str {
                match (self, numbers) {
                    $(
                        (Self::$rule(_), Numbers::Whole) => concat!("update_", $name),
                        (Self::$rule(_), Numbers::Halves) => concat!("update_", $name, "_halves"),
                        (Self::$rule(_), Numbers::Copied) => concat!("update_", $name, "_copied"),
                        (Self::$rule(_), Numbers::Drawn) => concat!("update_", $name, "_drawn"),
                    )+
                }
            }

            /// The settings as the kernel is told them.
            pub(crate) fn settings(self) -> [f32; MAX_SETTINGS] {
                match self { $(Self::$rule(_rule) => padded(&[$(_rule.$setting),*]),)+ }
            }

            /// The constants as the kernel reads them.
            pub(crate) fn constants(self) -> [f32; MAX_CONSTANTS] {
                match self { $(Self::$rule(_rule) => padded(&[$(_rule.$constant),*]),)+ }
            }

            /// Updates neighboring elements. `state` holds as many slices as the rule has states, and any others.
            #[inline(always)]
            pub(crate) fn update(self, parameter: &mut [f32], state: &mut [&mut [f32]], gradient: &[f32]) {
                match self {
                    $(Self::$rule(rule) => {
                        let mut _states = state.iter_mut();
                        rule.update(parameter, $(_states.next().expect(stringify!($state)),)* gradient);
                    })+
                }
            }
        }
    };
}

rules! {
    /// Plain stochastic gradient descent.
    Sgd = "sgd" {
        state: [], settings: [], constants: [learning_rate, weight_decay],
        update: |x, g| {
            x = x - (g + x * weight_decay) * learning_rate;
        }
    }
    /// Stochastic gradient descent with momentum.
    Momentum = "momentum" {
        state: [velocity], settings: [momentum], constants: [learning_rate, weight_decay],
        update: |x, g| {
            velocity = velocity * momentum + (g + x * weight_decay);
            x = x - velocity * learning_rate;
        }
    }
    /// Momentum that looks ahead by one step of it.
    Nesterov = "nesterov" {
        state: [velocity], settings: [momentum], constants: [learning_rate, weight_decay],
        update: |x, g| {
            let direction = g + x * weight_decay;
            velocity = velocity * momentum + direction;
            x = x - (direction + velocity * momentum) * learning_rate;
        }
    }
    /// Adam with decoupled weight decay. `rest` is 1 - beta; `keep` is what the parameter is multiplied with.
    AdamW = "adam_w" {
        state: [first, second], settings: [beta1, rest1, beta2, rest2, eps], constants: [keep, step_size, root_correction],
        update: |x, g| {
            first = first * beta1 + g * rest1;
            second = second * beta2 + (g * g) * rest2;
            let root = sqrtf(second) * root_correction + eps;
            x = x * keep - first / root * step_size;
        }
    }
    /// The sign of a momentum that looks at the gradient first, with decoupled weight decay. `rest` is 1 - beta; `keep` is what
    /// the parameter is multiplied with.
    Lion = "lion" {
        state: [first], settings: [beta1, rest1, beta2, rest2], constants: [keep, learning_rate],
        update: |x, g| {
            x = x * keep - signf(first * beta1 + g * rest1) * learning_rate;
            first = first * beta2 + g * rest2;
        }
    }
    /// Adam with decoupled weight decay where `root_correction` is above 0. Where it is 0, of matrices, only the momentum and, in
    /// the place of the second moment, the direction: `ahead` is the momentum, or 1 for one that does not look ahead. `rest`,
    /// `rest1` and `rest2` are 1 less what is kept; `one` is 1.
    Muon = "muon" {
        state: [first, second], settings: [rest1, rest2, eps, rest, ahead, one],
        constants: [keep, step_size, root_correction],
        update: |x, g| {
            let is_other = signf(root_correction);
            let is_matrix = one - is_other;
            first = first + (g - first) * (rest1 * is_other + rest * is_matrix);
            let direction = g + (first - g) * ahead;
            let size = g * is_other;
            second = (second + (size * size - second) * rest2) * is_other + direction * is_matrix;
            let root = sqrtf(second * is_other) * root_correction + eps;
            x = x * (one + (keep - one) * is_other) - first * is_other / root * (step_size * is_other);
        }
    }
    /// A step along the direction of a matrix; nothing for others. Constants are those of `Muon`.
    MuonStep = "muon_step" {
        state: [first, second], settings: [one], constants: [keep, step_size, root_correction],
        update: |x, g| {
            let is_matrix = one - signf(root_correction);
            x = x * (one + (keep - one) * is_matrix) - keptf(second, is_matrix) * (step_size * is_matrix);
        }
    }
    /// The average of a parameter over its updates, whose state is the parameter as it is now. It shares the constants of the rule
    /// that moved the parameter, of which none has more than three.
    Average = "average" {
        state: [x], settings: [], constants: [keep, step_size, root_correction, weight],
        update: |average, g| {
            average = average + (x - average) * weight;
        }
    }
}

/// The square root under the name that it has on a GPU.
#[inline(always)]
fn sqrtf(x: f32) -> f32 {
    x.sqrt()
}

/// 1 or -1 by its sign, 0 for 0, and no number for none; `kernels/optimizer.cu` has the same.
#[inline(always)]
fn signf(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

/// A number where the other is above 0, else 0: what is infinite is no number times 0. `kernels/optimizer.cu` has the same.
#[inline(always)]
fn keptf(x: f32, mask: f32) -> f32 {
    if mask > 0.0 { x } else { 0.0 }
}

fn padded<const N: usize>(values: &[f32]) -> [f32; N] {
    let mut padded = [0.0; N];
    padded[..values.len()].copy_from_slice(values);
    padded
}
