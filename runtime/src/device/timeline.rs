//! The activity of devices during a call.

use anabranch_dsl::Loc;
use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write;
use std::time::Duration;

/// The activity of the devices during a call, returned by
/// [`Function::profile`](crate::Function::profile).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Kernels and copies, in the order of their starts.
    pub spans: Vec<Span>,
    /// The time from the start of the step to its end.
    pub total: Duration,
    /// Whether the times are those of [simulated](crate::SimulatedDevice) devices, not measured
    /// times.
    pub simulated: bool,
}

/// The execution of a kernel, or the transfer of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The device, or both devices of a transfer.
    pub device: String,
    /// The operations of the kernel, or the value that was sent.
    pub name: String,
    /// The user's line.
    pub loc: Loc,
    /// The iteration numbers of the enclosing loops, outermost first.
    pub iterations: Vec<u64>,
    /// The start, measured from the start of the step.
    pub begin: Duration,
    /// The end, measured from the start of the step.
    pub end: Duration,
}

impl Timeline {
    /// Returns the time in which at least two devices ran kernels.
    pub fn overlap(&self) -> Duration {
        let mut edges: Vec<(Duration, i32, &str)> = Vec::new();
        for span in self.spans.iter().filter(|s| !s.device.contains(" -> ")) {
            edges.extend([(span.begin, 1, span.device.as_str()), (span.end, -1, span.device.as_str())]);
        }
        edges.sort();
        // The number of running kernels of each busy device. A device with several threads runs
        // several.
        let mut running: BTreeMap<&str, i32> = BTreeMap::new();
        let (mut since, mut total) = (Duration::ZERO, Duration::ZERO);
        for (at, change, device) in edges {
            if running.len() >= 2 {
                total += at - since;
            }
            since = at;
            let kernels = running.entry(device).or_default();
            *kernels += change;
            if *kernels == 0 {
                running.remove(device);
            }
        }
        total
    }

    /// Returns the timeline in the format of Chrome's trace viewer and of Perfetto: a JSON array of
    /// events.
    pub fn to_chrome_trace(&self) -> String {
        let mut devices: Vec<&str> = self.spans.iter().map(|s| s.device.as_str()).collect();
        devices.sort_unstable();
        devices.dedup();
        let mut json = String::from("[\n");
        for (i, device) in devices.iter().enumerate() {
            let name = quoted(device);
            let _ = writeln!(json, r#"{{"ph":"M","pid":0,"tid":{i},"name":"thread_name","args":{{"name":{name}}}}},"#);
        }
        for span in &self.spans {
            let thread = devices.binary_search(&span.device.as_str()).expect("every device is listed");
            let _ = writeln!(
                json,
                r#"{{"ph":"X","pid":0,"tid":{thread},"ts":{},"dur":{},"name":{},"args":{{"line":{},"iterations":"{:?}"}}}},"#,
                span.begin.as_secs_f64() * 1e6,
                (span.end - span.begin).as_secs_f64() * 1e6,
                quoted(&span.name),
                quoted(&span.loc.to_string()),
                span.iterations,
            );
        }
        let clock = if self.simulated { "simulated time" } else { "measured time" };
        let _ = write!(json, r#"{{"ph":"M","pid":0,"name":"process_name","args":{{"name":"{clock}"}}}}"#);
        json.push_str("\n]\n");
        json
    }
}

/// Returns a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

impl fmt::Display for Timeline {
    /// Writes a line for each span: begin and end, device, iterations, name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = if self.simulated { "simulated" } else { "measured" };
        writeln!(f, "{:?} ({clock})", self.total)?;
        let width = self.spans.iter().map(|s| s.device.len()).max().unwrap_or(0);
        for Span { device, name, iterations, begin, end, .. } in &self.spans {
            let iterations = if iterations.is_empty() { String::new() } else { format!(" {iterations:?}") };
            writeln!(f, "{begin:>12.3?} {end:>12.3?}  {device:width$}  {name}{iterations}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(device: &str, begin: u64, end: u64) -> Span {
        let (begin, end) = (Duration::from_micros(begin), Duration::from_micros(end));
        Span {
            device: device.to_owned(),
            name: "a \"b\"".to_owned(),
            loc: Loc::UNKNOWN,
            iterations: vec![],
            begin,
            end,
        }
    }

    #[test]
    fn overlap_is_the_time_of_two_or_more() {
        let spans =
            vec![span("/gpu:0", 0, 10), span("/gpu:0 -> /gpu:1", 0, 30), span("/gpu:1", 4, 12), span("/gpu:2", 5, 6)];
        // A device does not overlap with itself.
        let spans = [spans, vec![span("/gpu:3", 20, 26), span("/gpu:3", 22, 24)]].concat();
        let timeline = Timeline { spans, total: Duration::from_micros(30), simulated: true };
        assert_eq!(timeline.overlap(), Duration::from_micros(6));
        let json = timeline.to_chrome_trace();
        assert!(json.contains(r#""name":"a \"b\"""#) && json.contains("simulated time"), "{json}");
    }
}
