//! Curves as a drawing: both axes logarithmic, one SVG file without dependencies.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 55.0;
/// Blue and orange first: they differ for every kind of color vision (Okabe and Ito 2008).
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// What lies outside is no measurement, and powers of ten would overflow.
const SMALLEST: f64 = 1e-30;
const LARGEST: f64 = 1e30;

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve {
    /// Its name in the legend.
    pub(crate) label: String,
    /// Values of both axes. What a logarithm cannot show, 0 for example, is left out.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws `curves` with logarithmic axes, ticks at 1, 2 and 5 of each decade, and a legend.
pub(crate) fn log_log_svg(title: &str, [x_label, y_label]: [&str; 2], curves: &[Curve]) -> String {
    let shown: Vec<Vec<(f64, f64)>> = curves.iter().map(|curve| drawable(&curve.points)).collect();
    let all = || shown.iter().flatten();
    let x_axis = Axis::over(all().map(|point| point.0), LEFT, WIDTH - RIGHT);
    let y_axis = Axis::over(all().map(|point| point.1), HEIGHT - BOTTOM, TOP);
    let mut body = String::new();
    draw_axes(&mut body, &x_axis, &y_axis);
    for (index, points) in shown.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        let places = points.iter().map(|(x, y)| (x_axis.place(*x), y_axis.place(*y)));
        draw_curve(&mut body, color, &places.collect::<Vec<_>>());
        draw_legend(&mut body, index, color, &curves[index].label);
    }
    let (middle_x, middle_y) = (f64::midpoint(LEFT, WIDTH - RIGHT), f64::midpoint(TOP, HEIGHT - BOTTOM));
    let [title, x_label, y_label] = [title, x_label, y_label].map(escape);
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>
<text x="{middle_x}" y="24" text-anchor="middle" font-size="15">{title}</text>
{body}<text x="{middle_x}" y="{x_label_y}" text-anchor="middle">{x_label}</text>
<text transform="translate(18 {middle_y}) rotate(-90)" text-anchor="middle">{y_label}</text>
</svg>
"#,
        x_label_y = HEIGHT - 14.0,
    )
}

/// A logarithmic axis between two places of the drawing.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Reaches from the tick below the smallest value to the tick above the largest one, at least one tick further.
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut smallest, mut largest) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (smallest, largest) = (smallest.min(value), largest.max(value));
        }
        if smallest > largest {
            (smallest, largest) = (1.0, 10.0);
        }
        let ticks = ticks_around(smallest, largest);
        let low = ticks.iter().copied().rfind(|tick| *tick <= smallest).unwrap_or(smallest);
        let high = ticks.iter().copied().find(|tick| *tick > low && *tick >= largest).unwrap_or(largest * 2.0);
        Self { low, high, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * (value / self.low).ln() / (self.high / self.low).ln()
    }

    fn ticks(&self) -> Vec<f64> {
        let slack = 1e-9;
        let within = |tick: &f64| *tick >= self.low * (1.0 - slack) && *tick <= self.high * (1.0 + slack);
        let mut ticks: Vec<f64> = ticks_around(self.low, self.high).into_iter().filter(within).collect();
        if ticks.len() > 13 {
            // Over many decades their own ticks are enough.
            ticks.retain(|tick| (tick.log10() - tick.log10().round()).abs() < slack);
        }
        ticks
    }
}

/// 1, 2 and 5 times the powers of ten, from below `smallest` to above `largest`.
fn ticks_around(smallest: f64, largest: f64) -> Vec<f64> {
    let mut ticks = Vec::new();
    let mut exponent = smallest.log10().floor() - 1.0;
    while exponent <= largest.log10().ceil() + 1.0 {
        ticks.extend([1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powf(exponent)));
        exponent += 1.0;
    }
    ticks
}

fn drawable(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let shows = |value: f64| (SMALLEST..LARGEST).contains(&value);
    points.iter().copied().filter(|(x, y)| shows(*x) && shows(*y)).collect()
}

fn draw_axes(body: &mut String, x_axis: &Axis, y_axis: &Axis) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in x_axis.ticks() {
        let x = x_axis.place(tick);
        line(body, [x, TOP, x, bottom], "#dddddd");
        text(body, [x, bottom + 18.0], "middle", &number(tick));
    }
    for tick in y_axis.ticks() {
        let y = y_axis.place(tick);
        line(body, [LEFT, y, right, y], "#dddddd");
        text(body, [LEFT - 6.0, y + 4.0], "end", &number(tick));
    }
    line(body, [LEFT, bottom, right, bottom], "black");
    line(body, [LEFT, TOP, LEFT, bottom], "black");
}

fn draw_curve(body: &mut String, color: &str, places: &[(f64, f64)]) {
    if places.len() > 1 {
        let points: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        push(body, format_args!(r#"<polyline points="{}" fill="none" stroke="{color}"/>"#, points.join(" ")));
    }
    for (x, y) in places {
        push(body, format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.5" fill="{color}"/>"#));
    }
}

fn draw_legend(body: &mut String, index: usize, color: &str, label: &str) {
    let y = TOP + 18.0 * (index as f64 + 1.0);
    push(body, format_args!(r#"<rect x="{}" y="{}" width="14" height="4" fill="{color}"/>"#, LEFT + 12.0, y - 6.0));
    text(body, [LEFT + 32.0, y], "start", label);
}

fn line(body: &mut String, [x1, y1, x2, y2]: [f64; 4], color: &str) {
    push(
        body,
        format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}" stroke-width="1"/>"#
        ),
    );
}

fn text(body: &mut String, [x, y]: [f64; 2], anchor: &str, content: &str) {
    let content = escape(content);
    push(body, format_args!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{content}</text>"#));
}

fn push(body: &mut String, element: std::fmt::Arguments<'_>) {
    writeln!(body, "{element}").expect("writing to a string cannot fail");
}

fn number(tick: f64) -> String {
    if (1e-3..1e6).contains(&tick) {
        let digits = if tick < 0.95 { 3 } else { 0 };
        let fixed = format!("{tick:.digits$}");
        if digits == 0 { fixed } else { fixed.trim_end_matches('0').to_owned() }
    } else {
        format!("{tick:.0e}")
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn launch_plot(eager: &[(u32, f64)], graph: &[(u32, f64)]) -> String {
        let curve = |label: &str, points: &[(u32, f64)]| Curve {
            label: label.to_owned(),
            points: points.iter().map(|(x, y)| (f64::from(*x), *y)).collect(),
        };
        log_log_svg("Host time", ["kernels", "host time (µs)"], &[curve("eager", eager), curve("graph", graph)])
    }

    /// Confirms that tags are closed in order, attributes are quoted, and no number is missing.
    #[track_caller]
    fn check_well_formed(svg: &str) {
        let mut open = Vec::new();
        for piece in svg.split('<').skip(1) {
            let (tag, content) = piece.split_once('>').unwrap_or_else(|| panic!("no end of <{piece}"));
            assert!(!content.contains('>'), "{content}");
            let unescaped = content.split('&').skip(1).any(|rest| !rest.contains(';'));
            assert!(!unescaped, "{content}");
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{tag}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    fn circles(svg: &str, color: &str) -> usize {
        svg.lines().filter(|line| line.starts_with("<circle") && line.contains(color)).count()
    }

    #[test]
    fn both_curves_are_drawn_and_named() {
        let kernels = [1, 2, 5, 10, 30, 100, 300];
        let eager = kernels.map(|k| (k, 4.0 * f64::from(k)));
        let graph = kernels.map(|k| (k, 6.0 + 0.02 * f64::from(k)));
        let svg = launch_plot(&eager, &graph);
        check_well_formed(&svg);
        assert!(svg.contains(">eager</text>") && svg.contains(">graph</text>"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(COLORS[..2].iter().map(|color| circles(&svg, color)).collect::<Vec<_>>(), [7, 7]);
        for label in [">1<", ">10<", ">100<", ">500<", ">1000<", ">2000<", ">kernels<"] {
            assert!(svg.contains(label), "{label}");
        }
    }

    #[test]
    fn one_point_and_none_are_drawn_too() {
        let svg = launch_plot(&[(1, 4.0)], &[]);
        check_well_formed(&svg);
        assert_eq!((circles(&svg, "#0072b2"), svg.matches("<polyline").count()), (1, 0));
        assert!(svg.contains(">graph</text>"));
        check_well_formed(&launch_plot(&[], &[]));
    }

    #[test]
    fn what_has_no_logarithm_is_left_out() {
        let svg = launch_plot(&[(0, 4.0), (1, 0.0), (2, -1.0), (3, f64::NAN), (4, f64::INFINITY), (5, 1.0)], &[]);
        check_well_formed(&svg);
        assert_eq!(circles(&svg, "#0072b2"), 1);
    }

    #[test]
    fn names_are_escaped() {
        let curve = Curve { label: "a<b & \"c\"".to_owned(), points: vec![(1.0, 1.0)] };
        let svg = log_log_svg("x > y", ["<x>", "&"], &[curve]);
        check_well_formed(&svg);
        assert!(svg.contains("a&lt;b &amp; &quot;c&quot;"));
    }

    #[test]
    fn ticks_are_written_as_short_as_they_can_be() {
        let written = [0.002, 0.5, 1.0, 20.0, 50_000.0, 1e7].map(number);
        assert_eq!(written, ["0.002", "0.5", "1", "20", "50000", "1e7"]);
    }

    proptest! {
        #[test]
        fn every_point_lies_within_the_axes(points in prop::collection::vec((1e-6_f64..1e9, 1e-6_f64..1e9), 1..20)) {
            let x_axis = Axis::over(points.iter().map(|point| point.0), LEFT, WIDTH - RIGHT);
            let y_axis = Axis::over(points.iter().map(|point| point.1), HEIGHT - BOTTOM, TOP);
            for (x, y) in &points {
                let (x, y) = (x_axis.place(*x), y_axis.place(*y));
                prop_assert!((LEFT - 0.1..=WIDTH - RIGHT + 0.1).contains(&x), "{x}");
                prop_assert!((TOP - 0.1..=HEIGHT - BOTTOM + 0.1).contains(&y), "{y}");
            }
            prop_assert!((1..=20).contains(&x_axis.ticks().len()));
        }

        #[test]
        fn any_points_give_a_drawing(points in prop::collection::vec(any::<(f64, f64)>(), 0..10)) {
            let curve = Curve { label: "any".to_owned(), points };
            check_well_formed(&log_log_svg("any", ["x", "y"], &[curve]));
        }
    }
}
