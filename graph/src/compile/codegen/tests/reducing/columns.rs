//! Programs that reduce columns, alone and with work before and after.

/// A reduction alone, of columns that hold `rows` elements each.
pub(super) fn columns(word: &str, rows: usize, columns: usize) -> String {
    let (all, each, elements) = (4 * rows * columns, 4 * columns, rows * columns);
    format!(
        "blocks x0={all} x1={each}
        %0 kernel fast_f32 fused {elements} by {rows} (x0 r[0..{all}], x1 w[0..{each}]) 0:f32({columns}:1 {rows}:{columns}) -> 1:f32=row $1 {{ load 0; {word} $0 }}"
    )
}

/// [`columns`] of 16 bits.
pub(super) fn columns_of_halves(word: &str, rows: usize, columns: usize) -> String {
    let (all, each, elements) = (2 * rows * columns, 2 * columns, rows * columns);
    format!(
        "blocks x0={all} x1={each}
        %0 kernel fast_bf16 fused {elements} by {rows} (x0 r[0..{all}], x1 w[0..{each}]) 0:bf16({columns}:1 {rows}:{columns}) -> 1:bf16=row $3 {{ load 0; convert f32 $0; {word} $1; convert bf16 $2 }}"
    )
}

/// Products of two types, of columns that hold `rows` elements each.
fn products(word: &str, rows: usize, columns: usize) -> String {
    let (half, all, each, elements) = (2 * rows * columns, 4 * rows * columns, 4 * columns, rows * columns);
    let dims = format!("{columns}:1 {rows}:{columns}");
    format!(
        "blocks x0={half} x1={all} x2={each}
        %0 fused {elements} by {rows} (x0 r[0..{half}], x1 r[0..{all}], x2 w[0..{each}]) 0:bf16({dims}), 1:f32({dims}) -> 2:f32=row $4 {{ load 0; convert f32 $0; load 1; mul $1 $2; {word} $3 }}"
    )
}

/// Sums over the first and the third of four dimensions, of elements where a mask is set, times a number for each element of
/// a column, less another one for each of the second dimension. That one is left as it is, too.
fn composed(element: &str, [first, second, third, fourth]: [usize; 4]) -> String {
    let (columns, rows) = (second * fourth, first * third);
    let elements = columns * rows;
    let dims = format!("{second}:{} {fourth}:1 {first}:{} {third}:{fourth}", third * fourth, second * third * fourth);
    let all = elements * if element == "bf16" { 2 } else { 4 };
    let (each, of_rows, of_second) = (4 * columns, 4 * rows, 4 * second);
    format!(
        "blocks x0={all} x1={elements} x2={of_rows} x3={of_second} x4={each} x5={each}
        %0 fused {elements} by {rows} (x0 r[0..{all}], x1 r[0..{elements}], x2 r[0..{of_rows}], x3 r[0..{of_second}], x4 w[0..{each}], x5 w[0..{each}]) 0:{element}({dims}), 1:u8({columns}:1 {rows}:{columns}), 2:f32({columns}:0 {rows}:1), 3:f32({second}:1 {}:0) -> 4:f32=row $9, 5:f32=row $7 {{ load 0; convert f32 $0; load 1; const f32 0.5; select $2 $1 $3; load 2; mul $4 $5; load 3; sub $6 $7; row_sum_strided $8 }}",
        fourth * rows
    )
}

/// [`columns`], and what is made of each result with a number of its own, in two types.
fn continued(word: &str, rows: usize, columns: usize) -> String {
    let (all, each, half, elements) = (4 * rows * columns, 4 * columns, 2 * columns, rows * columns);
    format!(
        "blocks x0={all} x1={each} x2={each} x3={half} g4={each}
        %0 alloc g4
        %1 kernel fast_f32 fused {elements} by {rows} (x0 r[0..{all}], g4 w[0..{each}]) 0:f32({columns}:1 {rows}:{columns}) -> 1:f32=row $1 {{ load 0; {word} $0 }}
        %2 fused {columns} (g4 r[0..{each}], x1 r[0..{each}], x2 w[0..{each}], x3 w[0..{half}]) 0:f32, 1:f32 -> 2:f32=$2, 3:bf16=$5 {{ load 0; load 1; add $0 $1; const f32 -3.0; mul $2 $3; convert bf16 $4 }}
        %3 free g4"
    )
}

/// [`columns_of_halves`], and each result added to zero, as gradients are, and then to another one.
fn accumulated(word: &str, rows: usize, columns: usize) -> String {
    let (all, each, elements) = (2 * rows * columns, 2 * columns, rows * columns);
    format!(
        "blocks x0={all} x1={each} x2={each} x3={each} g4={each}
        %0 alloc g4
        %1 kernel fast_bf16 fused {elements} by {rows} (x0 r[0..{all}], g4 w[0..{each}]) 0:bf16({columns}:1 {rows}:{columns}) -> 1:bf16=row $3 {{ load 0; convert f32 $0; {word} $1; convert bf16 $2 }}
        %2 kernel badd_bf16 fused {columns} (g4 r[0..{each}], x1 w[0..{each}]) 0:bf16 -> 1:bf16=$2 {{ const bf16 0.0; load 0; add $0 $1 }}
        %3 free g4
        %4 kernel badd_bf16 pointwise [{columns}] (x1 r[0..{each}], x2 r[0..{each}], x3 w[0..{each}]) 0:bf16, 1:bf16 -> 2:bf16 {{ load 0; load 1; add $0 $1 }}"
    )
}

pub(super) fn cases() -> Vec<String> {
    let mut cases = Vec::new();
    for (rows, wide) in [(33, 8), (64, 9), (100, 33), (512, 64), (1000, 13), (1024, 24), (1025, 8), (3000, 17)] {
        cases.push(columns("row_sum_strided", rows, wide));
        cases.push(columns("row_max", rows, wide));
    }
    cases.push(columns("row_min", 2, 40));
    for (rows, wide) in [(33, 8), (100, 33), (1025, 8), (3000, 17)] {
        cases.push(columns_of_halves("row_sum_strided", rows, wide));
        cases.push(columns_of_halves("row_min_nan", rows, wide));
    }
    // What is special among the numbers goes by threes: so do none of these.
    for (rows, wide) in [(64, 8), (33, 16), (100, 33), (1024, 24), (1025, 9), (2, 40)] {
        cases.push(products("row_sum_strided", rows, wide));
        cases.push(products("row_max", rows, wide));
        cases.push(continued("row_sum_strided", rows, wide));
        cases.push(continued("row_min", rows, wide));
        cases.push(accumulated("row_sum_strided", rows, wide));
        cases.push(accumulated("row_max_nan", rows, wide));
        cases.push(columns("row_max_nan", rows, wide));
    }
    for shape in [[2, 2, 16, 8], [5, 3, 7, 8], [4, 2, 32, 12], [8, 8, 128, 16]] {
        cases.push(composed("f32", shape));
        cases.push(composed("bf16", shape));
    }
    cases
}

/// Reductions, and whether they are of columns that lie side by side.
pub(super) fn planned() -> Vec<(String, bool)> {
    // Twelve columns of 24 elements, beside which another tensor is read in another way.
    let beside = |dims: &str| products("row_sum_strided", 24, 12).replace("1:f32(12:1 24:12)", &format!("1:f32{dims}"));
    let sums = "row_sum_strided";
    vec![
        (columns(sums, 40, 8), true),
        (columns(sums, 40, 7), false),
        (columns(sums, 32768, 8), true),
        (columns(sums, 32769, 8), false),
        (columns(sums, 40, 8).replace("(8:1 40:8)", "(8:0 40:1)"), false),
        (columns("row_sum", 40, 8), false),
        (columns("row_sum_ordered", 20, 8), false),
        (beside("(12:1 24:12)"), true),
        // The same for all columns, or for all elements of one.
        (beside("(12:0 24:1)"), true),
        (beside("(12:1 24:0)"), true),
        // As it lies: columns are far apart.
        (beside(""), false),
        (beside("(2:144 6:1 24:6)"), false),
        (beside("(12:1 4:12 6:48)"), true),
        // The inner dimension is no part of a column.
        (beside("(16:1 18:16)"), false),
        // What differs within columns is left.
        (
            columns(sums, 40, 8)
                .replace("=row $1", "=$0")
                .replace("w[0..32]", "w[0..1280]")
                .replace("x1=32", "x1=1280"),
            false,
        ),
    ]
}
