//! Functions of `bf16` numbers that are not the recorded kernels': their source on the processor, of every number there is.

use std::process::Command;

use crate::compile::codegen::helpers::{APPROXIMATE, BF16_ROUND};
use crate::compile::codegen::with_helpers;

const HOST: &str = include_str!("host.cpp");

/// Compares with the library's functions, rounded to `f32` first as the device's are to a few places, however far within their bounds the
/// device's approximations are off.
const COMPARED: &str = "
int main() {
  int differ = 0;
  for (reciprocals = -1; reciprocals <= 1; reciprocals++) {
    for (powers = -2; powers <= 2; powers++) {
      for (unsigned int number = 0; number < 65536u; number++) {
        const float x = __uint_as_float(number << 16);
        const float found[] = {bf16_normal_cdf(x), bf16_erf(x)};
        const float expected[] = {bf16_round(normcdff(x)), bf16_round(static_cast<float>(std::erf(static_cast<double>(x))))};
        for (int of = 0; of < 2; of++) {
          if (__float_as_uint(found[of]) == __float_as_uint(expected[of])) continue;
          differ++;
          std::printf(\"%d of %g: %g, not %g\\n\", of, x, found[of], expected[of]);
        }
      }
    }
  }
  return differ > 0;
}
";

/// Units in the last place by which approximations are off: as many as the device's may be.
const APPROXIMATIONS: &str = "
static int reciprocals, powers;
static float off(const float x, const int by) {
  if (x < 1.17549435e-38f) return 0.0f;
  return std::isfinite(x) ? __uint_as_float(__float_as_uint(x) + by) : x;
}
static float approximate_reciprocal(const float x) { return off(1.0f / x, reciprocals); }
static float approximate_power_of_two(const float x) { return off(std::exp2(x), powers); }
static float normcdff(const float x) { return static_cast<float>(0.5 * std::erfc(-std::sqrt(0.5) * x)); }
";

fn found(helpers: &str) -> Option<(bool, String)> {
    if Command::new("c++").arg("--version").output().is_err() {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let text = [HOST, "#undef fmaxf\n#undef fminf\n", APPROXIMATIONS, helpers, COMPARED].concat();
    std::fs::write(folder.path().join("functions.cpp"), text).expect("a file");
    let mut compiler = Command::new("c++");
    compiler.current_dir(folder.path());
    compiler.args(["-std=c++17", "-O1", "-w", "-ffp-contract=off", "-o", "functions", "functions.cpp"]);
    let result = compiler.output().expect("the compiler runs");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    let run = Command::new(folder.path().join("functions")).output().expect("it runs");
    Some((run.status.success(), String::from_utf8_lossy(&run.stdout).into_owned()))
}

#[test]
fn the_error_function_and_the_normal_distribution_of_every_number_round_as_exact_ones_of_f32_do() {
    let helpers = with_helpers("bf16_normal_cdf( bf16_erf(");
    let helpers = helpers.replace(BF16_ROUND, "").replace(APPROXIMATE, "").replace("bf16_normal_cdf( bf16_erf(", "");
    let Some((is_same, said)) = found(&helpers) else { return };
    assert!(is_same, "{said}");
    // As the fit has it, without the factor that keeps away from ties.
    let product = "__fmul_rn(__fmul_rn(t, power), sum)";
    assert!(helpers.contains(product));
    let nearer = helpers.replace(product, "__fmul_rn(__fmul_rn(__fmul_rn(t, power), sum), 0.99999905f)");
    let (is_same, said) = found(&nearer).expect("there is a compiler");
    assert!(!is_same && said.lines().all(|line| line.starts_with("0 of 0.539062")), "{said}");
}
