//! Progress of a run, for the person in front of it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How the progress of a run is shown, on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShowProgress {
    /// A bar on a terminal. Elsewhere, with the environment variable `CI`, and if `TERM` is `dumb`
    /// or not set, a line every 30 seconds. `NO_COLOR` takes the colors away.
    #[default]
    Auto,
    /// Not at all.
    Hidden,
    /// A line each time that this much time has passed.
    Lines(Duration),
}

/// The time between lines, if no other is set.
const BETWEEN_LINES: Duration = Duration::from_secs(30);

/// The shortest time between two changes of a bar, so that fast steps do not wait for it.
const BETWEEN_DRAWS: Duration = Duration::from_millis(100);

/// The progress of a loop over steps: a bar, or lines. A [`Trainer`](crate::Trainer) has one; it is
/// also there for other loops.
///
/// It shows the number of the step, a text of yours such as the loss, the rate in steps per second
/// since this process began the loop, and the time that is left at this rate, if the number of
/// steps is known.
///
/// ```
/// use anabranch::train::{FitProgress, ShowProgress};
///
/// // 40 of 100 steps were done by an earlier process.
/// let mut progress = FitProgress::new(ShowProgress::Auto, 40, Some(100));
/// for step in 41..=100 {
///     progress.update(step, || format!("loss {:.4}", 1.0 / step as f64));
/// }
/// progress.finish();
/// ```
#[derive(Debug)]
pub struct FitProgress {
    view: ProgressView,
    started: Instant,
    counted: CountedSteps,
    /// The time of the last change, and its text.
    last: (Duration, String),
}

#[derive(Debug)]
enum ProgressView {
    Hidden,
    Bar(ProgressBar),
    Lines(Duration),
}

/// The numbers of the steps of a loop.
#[derive(Clone, Copy, Debug)]
struct CountedSteps {
    /// The step at which this process began.
    first: u64,
    done: u64,
    total: Option<u64>,
}

impl FitProgress {
    /// Begins after `done` steps of `n_steps`, or of an unknown number of steps.
    pub fn new(show: ShowProgress, done: u64, n_steps: Option<u64>) -> FitProgress {
        let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let view = match show {
            ShowProgress::Hidden => ProgressView::Hidden,
            ShowProgress::Lines(every) => ProgressView::Lines(every),
            ShowProgress::Auto if shows_bar(std::io::stderr().is_terminal(), var) => {
                ProgressView::Bar(bar(done, n_steps, var("NO_COLOR").is_none()))
            }
            ShowProgress::Auto => ProgressView::Lines(BETWEEN_LINES),
        };
        let counted = CountedSteps { first: done, done, total: n_steps };
        FitProgress { view, started: Instant::now(), counted, last: (Duration::ZERO, String::new()) }
    }

    /// Notes that `done` steps are done. `text` is called if it is shown.
    pub fn update(&mut self, done: u64, text: impl FnOnce() -> String) {
        self.counted.done = done;
        let between = match self.view {
            ProgressView::Hidden => return,
            ProgressView::Bar(_) => BETWEEN_DRAWS,
            ProgressView::Lines(every) => every,
        };
        let elapsed = self.started.elapsed();
        if elapsed.saturating_sub(self.last.0) >= between {
            self.last = (elapsed, text());
            self.show();
        }
    }

    /// Writes a line of text without breaking a bar.
    pub fn note(&self, line: &str) {
        match &self.view {
            ProgressView::Hidden => {}
            ProgressView::Bar(bar) => bar.suspend(|| eprintln!("{line}")),
            ProgressView::Lines(_) => eprintln!("{line}"),
        }
    }

    /// Ends. A bar stays as it is; a last line follows earlier ones.
    pub fn finish(&mut self) {
        self.show();
        if let ProgressView::Bar(bar) = &self.view {
            bar.abandon();
        }
        self.view = ProgressView::Hidden;
    }

    /// Shows the steps and the last text.
    fn show(&self) {
        let text = || self.counted.status(self.started.elapsed(), &self.last.1);
        match &self.view {
            ProgressView::Bar(bar) => {
                bar.set_position(self.counted.done);
                bar.set_message(text());
            }
            ProgressView::Lines(_) if self.last.0 > Duration::ZERO => eprintln!("{}", text()),
            ProgressView::Lines(_) | ProgressView::Hidden => {}
        }
    }
}

/// Returns whether there is a terminal that shows a bar.
fn shows_bar(is_terminal: bool, var: impl Fn(&str) -> Option<String>) -> bool {
    is_terminal && var("CI").is_none() && var("TERM").is_some_and(|term| term != "dumb")
}

fn bar(done: u64, n_steps: Option<u64>, has_colors: bool) -> ProgressBar {
    let template = match (n_steps, has_colors) {
        (Some(_), true) => "{bar:16.cyan/blue} {wide_msg}",
        (Some(_), false) => "{bar:16} {wide_msg}",
        (None, _) => "{spinner} {wide_msg}",
    };
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    let bar = ProgressBar::with_draw_target(n_steps, ProgressDrawTarget::stderr()).with_style(style);
    bar.with_position(done)
}

impl CountedSteps {
    /// Returns a line such as `step 1200/5400, loss 0.1234, 85.1 steps/s, 0:49 left`.
    fn status(&self, elapsed: Duration, text: &str) -> String {
        let mut line = format!("step {}", self.done);
        if let Some(total) = self.total {
            line += &format!("/{total}");
        }
        if !text.is_empty() {
            line += &format!(", {text}");
        }
        let rate = self.done.saturating_sub(self.first) as f64 / elapsed.as_secs_f64();
        if rate.is_finite() && rate > 0.0 {
            line += &format!(", {} steps/s", three_digits(rate));
            if let Some(left) = self.total.and_then(|total| total.checked_sub(self.done)).filter(|&left| left > 0) {
                line += &format!(", {} left", clock(left as f64 / rate));
            }
        }
        line
    }
}

fn three_digits(x: f64) -> String {
    let digits = if x < 10.0 { 2 } else { usize::from(x < 100.0) };
    format!("{x:.digits$}")
}

/// Returns seconds as `0:07` or `2:03:04`.
fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_and_the_time_left_count_the_steps_of_this_process() {
        let counted = CountedSteps { first: 1000, done: 1200, total: Some(5400) };
        let text = counted.status(Duration::from_secs(2), "loss 0.5");
        assert_eq!(text, "step 1200/5400, loss 0.5, 100 steps/s, 0:42 left");
        let all = CountedSteps { done: 5400, ..counted };
        assert_eq!(all.status(Duration::from_secs(8000), ""), "step 5400/5400, 0.55 steps/s");
        let slow = CountedSteps { first: 0, done: 1, total: Some(100) };
        assert_eq!(slow.status(Duration::from_secs(75), ""), "step 1/100, 0.01 steps/s, 2:03:45 left");
    }

    #[test]
    fn without_a_known_length_or_a_step_no_time_is_left() {
        let counted = CountedSteps { first: 7, done: 17, total: None };
        assert_eq!(counted.status(Duration::from_secs(1), "loss 2"), "step 17, loss 2, 10.0 steps/s");
        let first = CountedSteps { done: 7, total: Some(9), ..counted };
        assert_eq!(first.status(Duration::ZERO, ""), "step 7/9");
    }

    #[test]
    fn a_bar_needs_a_terminal_that_is_not_dumb_and_no_ci() {
        let with = |is_terminal, vars: &[(&str, &str)]| {
            let find = |name: &str| vars.iter().find(|(own, _)| *own == name).map(|(_, value)| value.to_string());
            shows_bar(is_terminal, find)
        };
        assert!(with(true, &[("TERM", "xterm")]));
        assert!(!with(false, &[("TERM", "xterm")]));
        assert!(!with(true, &[("TERM", "dumb")]));
        assert!(!with(true, &[]));
        assert!(!with(true, &[("TERM", "xterm"), ("CI", "true")]));
    }
}
