//! The plots.

use crate::figures::{Figure, Waits, number};
use crate::measure::{median, quantile};
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

const WIDTH: u32 = 760;
const COLORS: [RGBColor; 3] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x7f, 0x7f, 0x7f),
];

/// Plots the distribution of waits. No plot if there are none.
pub(crate) fn waits(file: &Path, waits: &[Waits]) -> Outcome {
    let curves = waits.iter().map(|waits| {
        let curve = (0..=1000).map(|per_mille| {
            let share = f64::from(per_mille) / 1000.0;
            (quantile(waits.millis.clone(), share), 100.0 * share)
        });
        (waits.label, curve.collect::<Vec<_>>())
    });
    let curves: Vec<_> = curves.collect();
    // Without the longest few of a thousand, which would compress the rest.
    let ends = waits
        .iter()
        .map(|waits| quantile(waits.millis.clone(), 0.995));
    let end = ends.fold(0.0, f64::max);
    if end == 0.0 {
        return Ok(());
    }
    let area = SVGBackend::new(file, (WIDTH, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(
            "How long an acquisition waits: 4 processes, 64 tasks, limit 4, holds of 5 ms",
            ("sans-serif", 17),
        )
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("milliseconds")
        .y_desc("% of acquisitions")
        .x_label_formatter(&|millis| format!("{millis:.0}"))
        .y_label_formatter(&|share| format!("{share:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for ((label, curve), color) in curves.into_iter().zip(COLORS) {
        let curve = curve.into_iter().take_while(|(millis, _)| *millis <= end);
        let series = LineSeries::new(curve, color.stroke_width(2));
        chart
            .draw_series(series)?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

/// Plots pairs a second on one contended mutex, for each implementation. No plot if there are none.
pub(crate) fn hot_name(file: &Path, figures: &[Figure]) -> Outcome {
    const PEERS: [(&str, &str); 4] = [
        ("hot_name_vs_rslock", "rslock (Rust)"),
        ("hot_name_vs_redis_semaphore", "redis-semaphore (Node.js)"),
        ("hot_name_vs_redlock_npm", "redlock (Node.js)"),
        ("hot_name_vs_redis_py", "redis-py (Python)"),
    ];
    let measured: Vec<_> = PEERS
        .iter()
        .filter_map(|(name, label)| {
            let figure = figures.iter().find(|figure| figure.about.name == *name)?;
            Some((figure, *label))
        })
        .collect();
    if measured.is_empty() {
        return Ok(());
    }
    let ours = median(measured.iter().map(|(figure, _)| figure.ours));
    let mut bars = vec![("tower-permit", ours)];
    bars.extend(
        measured
            .iter()
            .map(|(figure, label)| (*label, figure.other)),
    );

    let rates = bars.iter().map(|(_, rate)| *rate);
    let (least, most) = (
        rates.clone().fold(f64::INFINITY, f64::min),
        rates.fold(0.0, f64::max),
    );
    let height = 100 + 50 * bars.len() as u32;
    let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let start = least.max(1.0) / 4.0;
    let mut chart = ChartBuilder::on(&area)
        .caption(
            "One hot mutex: 256 tasks, acquire and release",
            ("sans-serif", 17),
        )
        .margin(12)
        .x_label_area_size(44)
        .build_cartesian_2d((start..most * 8.0).log_scale(), 0.0..bars.len() as f64)?;
    chart
        .configure_mesh()
        .x_desc("pairs a second (each line is ten times the last)")
        .x_label_formatter(&|rate| number(*rate))
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (n, (label, rate)) in bars.iter().enumerate() {
        let bottom = (bars.len() - 1 - n) as f64;
        let color = if n == 0 { COLORS[0] } else { COLORS[2] };
        let corners = [(start, bottom + 0.15), (*rate, bottom + 0.6)];
        let text = format!("{label}: {}", number(*rate));
        chart.draw_series([Rectangle::new(corners, color.filled())])?;
        chart.draw_series([Text::new(text, (start, bottom + 0.92), ("sans-serif", 14))])?;
    }
    area.present()?;
    Ok(())
}
