//! Expressions over results, and how numbers are written in documents.

use crate::measure::Measurement;
use crate::pattern::matches;
use crate::result::BenchResult;

/// What expressions may name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    /// In the order of the block's first line.
    pub(super) results: &'a [BenchResult],
}

impl Facts<'_> {
    /// The line with every expression in braces replaced by its value.
    pub(super) fn fill(&self, line: &str) -> Result<String, String> {
        let (mut out, mut rest) = (String::new(), line);
        while let Some((before, after)) = rest.split_once('{') {
            let (expression, after) = after.split_once('}').ok_or_else(|| format!("`}}` is missing after {after}"))?;
            out += before;
            out += &match (self.value(expression.trim_end_matches(" ?")), expression.ends_with(" ?")) {
                (Ok(value), _) => value,
                (Err(_), true) => "–".to_owned(),
                (Err(message), false) => return Err(format!("{{{expression}}}: {message}")),
            };
            rest = after;
        }
        Ok(out + rest)
    }

    fn value(&self, expression: &str) -> Result<String, String> {
        let mut words: Vec<&str> = expression.split_whitespace().collect();
        if let ["env", name] = words[..] {
            return self.environment(name);
        }
        if let ["config", name] = words[..] {
            let (result, name) = self.result(name)?;
            return result.config.get(name).cloned().ok_or_else(|| format!("{} has no such setting", result.name));
        }
        let format = words.pop_if(|word| word.trim_start_matches('+').starts_with('.'));
        let mut words = words.into_iter();
        let mut total = self.operand(&mut words)?;
        while let Some(operator) = words.next() {
            let value = self.operand(&mut words)?;
            total = match operator {
                "/" => total / value,
                "*" => total * value,
                "+" => total + value,
                "-" => total - value,
                _ => return Err(format!("`{operator}`: expected one of / * + -")),
            };
        }
        if !total.is_finite() {
            return Err(format!("{total} is no figure"));
        }
        written(total, format)
    }

    fn operand<'w>(&self, words: &mut impl Iterator<Item = &'w str>) -> Result<f64, String> {
        let word = words.next().ok_or("a value is missing")?;
        if let Ok(number) = word.parse() {
            return Ok(number);
        }
        let fold: fn(f64, f64) -> f64 = match word {
            "max" => f64::max,
            "min" => f64::min,
            "sum" => |a, b| a + b,
            "count" => return self.fitting(words.next()).map(|values| values.len() as f64),
            name => {
                let found = self.fitting(Some(name))?;
                return if let [value] = found[..] { Ok(value) } else { Err(format!("{} fit", found.len())) };
            }
        };
        self.fitting(words.next())?.into_iter().reduce(fold).ok_or_else(|| "nothing fits".to_owned())
    }

    /// The numbers that a name with `*` stands for; at least one.
    fn fitting(&self, name: Option<&str>) -> Result<Vec<f64>, String> {
        let (result, name) = self.result(name.ok_or("a name is missing")?)?;
        let (name, number) = name.split_once('@').unwrap_or((name, "median"));
        let number: fn(&Measurement) -> f64 = match number {
            "median" => |m| m.median,
            "min" => |m| m.min,
            "max" => |m| m.max,
            "p95" => |m| m.p95,
            "n" => |m| m.n as f64,
            other => return Err(format!("`{other}`: expected one of median, min, max, p95, n")),
        };
        let fitting = result.measurements.iter().filter(|(key, _)| matches(name, key));
        let values: Vec<f64> = fitting.map(|(_, measured)| number(measured)).collect();
        if values.is_empty() { Err(format!("{} has no `{name}`", result.name)) } else { Ok(values) }
    }

    /// The result that a name belongs to, and the name without the number of the file.
    fn result<'n>(&self, name: &'n str) -> Result<(&BenchResult, &'n str), String> {
        let numbered = name.split_once(':').and_then(|(number, rest)| Some((number.parse::<usize>().ok()?, rest)));
        let (number, name) = numbered.unwrap_or((1, name));
        let result = number.checked_sub(1).and_then(|index| self.results.get(index));
        result.map(|result| (result, name)).ok_or_else(|| format!("there is no file {number}"))
    }

    fn environment(&self, name: &str) -> Result<String, String> {
        let (result, name) = self.result(name)?;
        let environment = &result.environment;
        let found = match name {
            "cpu" => environment.cpu.clone(),
            "gpu" => environment.gpu.clone(),
            "num_cpus" => Some(environment.num_cpus.to_string()),
            "threads" => environment.rayon_num_threads.clone(),
            _ => return Err("expected one of cpu, gpu, num_cpus, threads".to_owned()),
        };
        found.ok_or_else(|| format!("{} does not know it", result.name))
    }
}

/// With groups of three digits before the point.
fn written(value: f64, format: Option<&str>) -> Result<String, String> {
    let signed = format.is_some_and(|format| format.starts_with('+'));
    let digits = match format.map(|format| format.trim_start_matches(['+', '.']).parse::<usize>()) {
        Some(digits) => digits.map_err(|_| "a format is a point and a number of digits".to_owned())?,
        None if value.fract() == 0.0 => 0,
        // Three digits, of which those before the point are never dropped.
        None => {
            let exponent = format!("{value:.2e}");
            let exponent: i32 = exponent.split_once('e').map_or(Ok(0), |(_, text)| text.parse()).unwrap_or(0);
            usize::try_from(2 - exponent).unwrap_or(0)
        }
    };
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let groups: Vec<&str> =
        whole.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap_or_default()).collect();
    let sign = if value < 0.0 {
        "−"
    } else if signed {
        "+"
    } else {
        ""
    };
    Ok(format!("{sign}{}{fraction}", groups.join(" ")))
}
