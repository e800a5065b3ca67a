//! The table of known kernels against the sources of candle: every name, every parameter, every expression.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::compile::CANDLE_VERSION;
use crate::compile::pointwise::ElementType;
use crate::compile::table::{Entry, Parameter, entries};

/// A kernel as the source defines it.
struct Definition {
    /// Type without `const`, whether it is an address, and whether what it points to is only read.
    parameters: Vec<(String, bool, bool)>,
    /// Without white space.
    body: String,
}

/// A macro with parameters: their names, and what it stands for.
type Macros = BTreeMap<String, (Vec<String>, String)>;

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Text in words and what is between them.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let end = if is_word(first) { end } else { first.len_utf8() };
        tokens.push(&rest[..end]);
        rest = &rest[end..];
    }
    tokens
}

/// Length of the text up to and with the bracket that closes the one at its start.
fn closing(text: &str, [open, close]: [char; 2]) -> usize {
    let mut depth = 0;
    for (position, c) in text.char_indices() {
        depth += i32::from(c == open) - i32::from(c == close);
        if depth == 0 {
            return position + 1;
        }
    }
    panic!("unbalanced: {text}")
}

/// The parts of a list in brackets, at its outermost commas.
fn parts(list: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for c in list[1..list.len() - 1].chars() {
        depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().unwrap().push(c);
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// Takes definitions of macros out of a source, and every other directive.
fn take_macros(source: &str, macros: &mut Macros) -> String {
    let joined = without_comments(source).replace("\\\n", "\u{1}").replace("\\ \n", "\u{1}");
    let mut rest = String::new();
    for line in joined.lines() {
        let line = line.replace('\u{1}', " ");
        let Some(directive) = line.trim_start().strip_prefix('#') else {
            rest.push_str(&line);
            rest.push('\n');
            continue;
        };
        if let Some(definition) = directive.strip_prefix("define ")
            && let Some(open) = definition.find(|c| !is_word(c))
            && definition[open..].starts_with('(')
        {
            let end = open + closing(&definition[open..], ['(', ')']);
            let (name, names) = (definition[..open].to_owned(), parts(&definition[open..end]));
            macros.insert(name, (names, definition[end..].to_owned()));
        }
    }
    rest
}

fn expand(text: &str, macros: &Macros) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(&token) = tokens(&rest[..rest.len().min(200)]).first() {
        let after = &rest[token.len()..];
        match macros.get(token) {
            Some((names, body)) if after.starts_with('(') => {
                let end = closing(after, ['(', ')']);
                let given: BTreeMap<&String, String> = names.iter().zip(parts(&after[..end])).collect();
                let body = body.replace("##", "\u{2}");
                let replaced: String = tokens(&body)
                    .into_iter()
                    .map(|token| given.get(&token.to_owned()).map_or(token, String::as_str))
                    .filter(|token| *token != "\u{2}")
                    .collect();
                expanded.push_str(&expand(&replaced, macros));
                rest = &after[end..];
            }
            _ => {
                expanded.push_str(token);
                rest = after;
            }
        }
    }
    expanded
}

fn parameter(declaration: &str) -> (String, bool, bool) {
    let words: Vec<&str> = tokens(declaration).into_iter().filter(|token| !token.trim().is_empty()).collect();
    let is_pointer = words.contains(&"*");
    let kind = words.iter().find(|word| !matches!(**word, "const" | "*")).unwrap();
    ((*kind).to_owned(), is_pointer, is_pointer && words[0] == "const")
}

fn definitions(text: &str) -> BTreeMap<String, Vec<Definition>> {
    let mut definitions: BTreeMap<String, Vec<Definition>> = BTreeMap::new();
    let mut rest = text;
    while let Some(start) = rest.find("__global__") {
        let after = rest[start + "__global__".len()..].trim_start();
        let after = after.strip_prefix("void").unwrap().trim_start();
        let open = after.find('(').unwrap();
        let end = open + closing(&after[open..], ['(', ')']);
        let body_start = end + after[end..].find('{').unwrap();
        let body_end = body_start + closing(&after[body_start..], ['{', '}']);
        let parameters = parts(&after[open..end]).iter().map(|declaration| parameter(declaration)).collect();
        let body = after[body_start..body_end].chars().filter(|c| !c.is_whitespace()).collect();
        definitions.entry(after[..open].trim().to_owned()).or_default().push(Definition { parameters, body });
        rest = &after[body_end..];
    }
    definitions
}

fn declared(parameter: Parameter) -> (String, bool, bool) {
    let name = |element: ElementType| match element {
        ElementType::F32 => "float",
        ElementType::F64 => "double",
        ElementType::Bf16 => "__nv_bfloat16",
        ElementType::U8 => "uint8_t",
        ElementType::U32 => "uint32_t",
        ElementType::I64 => "int64_t",
    };
    let (kind, is_pointer, is_const) = match parameter {
        Parameter::Size => ("size_t", false, false),
        Parameter::Unsigned => ("uint32_t", false, false),
        Parameter::Signed => ("int", false, false),
        Parameter::Float => ("float", false, false),
        Parameter::Double => ("double", false, false),
        Parameter::Flag => ("bool", false, false),
        Parameter::Value(element) => (name(element), false, false),
        Parameter::Info => ("size_t", true, true),
        Parameter::Input(element) => (name(element), true, true),
        Parameter::Output(element) => (name(element), true, false),
    };
    (kind.to_owned(), is_pointer, is_const)
}

/// What an entry says that the source does not.
fn complaint(name: &str, entry: &Entry, definitions: &BTreeMap<String, Vec<Definition>>) -> Option<String> {
    let Some(found) = definitions.get(name) else { return Some(format!("{name} is not in the sources")) };
    let expected: Vec<_> = entry.parameters.iter().map(|parameter| declared(*parameter)).collect();
    if let Some(other) = found.iter().find(|definition| definition.parameters != expected) {
        return Some(format!("{name} has parameters {:?}, not {expected:?}", other.parameters));
    }
    let expression: String = entry.expression?.chars().filter(|c| !c.is_whitespace()).collect();
    let assigns = |definition: &Definition| definition.body.contains(&format!("={expression};"));
    (!found.iter().all(assigns)).then(|| format!("{name} does not compute {expression}"))
}

/// The version of a package in a lock file.
fn version_of(lock: &str, package: &str) -> Option<String> {
    let after = lock.split(&format!("name = \"{package}\"\nversion = \"")).nth(1)?;
    Some(after.split('"').next()?.to_owned())
}

/// Why the table does not hold for the versions in a lock file.
fn refusal(lock: &str) -> Option<String> {
    let packages = ["candle-kernels", "candle-core", "candle-nn"];
    let version = |package: &&str| version_of(lock, package).is_some_and(|version| version != CANDLE_VERSION);
    packages.iter().find(|package| version(package)).map(|package| format!("{package} is not {CANDLE_VERSION}"))
}

fn lock() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock")).unwrap()
}

/// The sources of the kernels, where the registry has them.
fn folder() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let registries = fs::read_dir(home.join("registry/src")).ok()?;
    let folders = registries.flatten().map(|entry| entry.path().join(format!("candle-kernels-{CANDLE_VERSION}/src")));
    folders.into_iter().find(|folder| folder.is_dir())
}

fn all_definitions(folder: &Path) -> BTreeMap<String, Vec<Definition>> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
    let mut all = BTreeMap::new();
    for file in ["affine", "binary", "cast", "conv", "fill", "indexing", "reduce", "sort", "ternary", "unary"] {
        let mut macros = Macros::new();
        for header in ["binary_op_macros.cuh", "compatibility.cuh"] {
            take_macros(&read(header), &mut macros);
        }
        let text = take_macros(&read(&format!("{file}.cu")), &mut macros);
        all.extend(definitions(&expand(&text, &macros)));
    }
    all
}

#[test]
fn the_lock_file_has_the_version_of_the_table_and_another_one_would_be_refused() {
    let lock = lock();
    assert_eq!(version_of(&lock, "candle-core").as_deref(), Some(CANDLE_VERSION));
    assert_eq!(refusal(&lock), None);
    let newer = lock.replace(
        &format!("name = \"candle-core\"\nversion = \"{CANDLE_VERSION}\""),
        "name = \"candle-core\"\nversion = \"0.11.2\"",
    );
    assert_eq!(refusal(&newer), Some(format!("candle-core is not {CANDLE_VERSION}")));
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that could not compare anything has to say so")]
fn the_sources_have_every_kernel_of_the_table_with_its_parameters_and_expression() {
    let Some(folder) = folder() else {
        eprintln!("skipped: the registry has no sources of candle-kernels {CANDLE_VERSION}");
        return;
    };
    let definitions = all_definitions(&folder);
    assert!(definitions.len() > 500, "only {} kernels were found in the sources", definitions.len());
    let complaints: Vec<String> =
        entries().iter().filter_map(|(name, entry)| complaint(name, entry, &definitions)).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert!(entries().len() > 400, "{}", entries().len());
    assert!(!entries().keys().any(|name| name.contains("_f16") || name.contains("f8") || name.starts_with("sum_")));
}

#[test]
fn a_wrong_entry_is_found_in_name_parameter_and_expression() {
    let text = r#"
        #define UNARY(T, NAME, FUNC) extern "C" __global__ void NAME(const size_t n, const T *inp, T *out) { \
            T x = inp[n]; out[n] = FUNC; }
        UNARY(float, double_f32, x + x)
    "#;
    let mut macros = Macros::new();
    let rest = take_macros(text, &mut macros);
    let definitions = definitions(&expand(&rest, &macros));
    let entry = |parameters: &[Parameter], expression| {
        let mut entry = entries()["uneg_f32"].clone();
        (entry.parameters, entry.expression) = (parameters.to_vec(), Some(expression));
        entry
    };
    let f32 = ElementType::F32;
    let right = [Parameter::Size, Parameter::Input(f32), Parameter::Output(f32)];
    let wrong = [Parameter::Size, Parameter::Output(f32), Parameter::Output(f32)];
    assert_eq!(complaint("double_f32", &entry(&right, "x+x"), &definitions), None);
    assert!(complaint("double_f64", &entry(&right, "x+x"), &definitions).is_some());
    assert!(complaint("double_f32", &entry(&wrong, "x+x"), &definitions).is_some());
    assert!(complaint("double_f32", &entry(&right[..2], "x+x"), &definitions).is_some());
    assert!(complaint("double_f32", &entry(&right, "x"), &definitions).is_some());
}
