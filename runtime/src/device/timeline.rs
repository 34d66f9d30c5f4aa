//! The activity of devices during a call.

use anabranch_dsl::Loc;
use std::cmp::Reverse;
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
    /// How many spans were left out. A function on a single device keeps the first 100,000.
    pub left_out: u64,
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
    /// The bytes that the kernel reads and writes, those of a broadcast element once. `None` if
    /// they are unknown, and for functions on several devices.
    pub bytes: Option<usize>,
    /// The iteration numbers of the enclosing loops, outermost first. Empty for functions on a
    /// single device.
    pub iterations: Vec<u64>,
    /// The start, measured from the start of the step.
    pub begin: Duration,
    /// The end, measured from the start of the step.
    pub end: Duration,
}

/// The time of all spans with the same name and line, of [`Timeline::by_operation`].
#[derive(Clone, Debug, PartialEq)]
pub struct OperationTime {
    /// The device.
    pub device: String,
    /// The operations of the kernel.
    pub name: String,
    /// The user's line.
    pub loc: Loc,
    /// How often it ran.
    pub count: u64,
    /// The time of all runs.
    pub total: Duration,
    /// The bytes that all runs read and write, if they are known.
    pub bytes: Option<usize>,
}

/// The times of operations, the longest first. Written as a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationTimes(pub Vec<OperationTime>);

impl fmt::Display for OperationTimes {
    /// Writes a line for each operation: its share of the time of all, the time, how often it ran,
    /// the rate of memory traffic, its name and line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Duration = self.0.iter().map(|of| of.total).sum();
        for OperationTime { device, name, loc, count, total, bytes } in &self.0 {
            let share = 100.0 * total.as_secs_f64() / all.as_secs_f64().max(1e-12);
            let rate = bytes.map_or_else(String::new, |n| format!("{:.1} GB/s", n as f64 / 1e9 / total.as_secs_f64()));
            write!(f, "{share:>5.1} % {total:>12.3?} {count:>9} x {rate:>12}  {device}  {name}")?;
            if loc.is_known() {
                write!(f, "  ; {loc}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Timeline {
    /// Returns the times of operations, the longest first: these are worth making faster.
    ///
    /// A function on a single device has a span for the whole call. Its time here is the rest,
    /// without the other spans: scalars that have no native code, spans that were left out, and the
    /// call itself.
    pub fn by_operation(&self) -> OperationTimes {
        let mut times: BTreeMap<(&str, &str, String), OperationTime> = BTreeMap::new();
        for (i, span) in self.spans.iter().enumerate() {
            let of = times.entry((&span.device, &span.name, span.loc.to_string())).or_insert_with(|| OperationTime {
                device: span.device.clone(),
                name: span.name.clone(),
                loc: span.loc,
                count: 0,
                total: Duration::ZERO,
                bytes: Some(0),
            });
            let is_whole_call = i == 0 && span.begin.is_zero() && span.end == self.total;
            let others = if is_whole_call { &self.spans[1..] } else { &[] };
            let others: Duration = others.iter().map(|other| other.end - other.begin).sum();
            of.count += 1;
            of.total += (span.end - span.begin).saturating_sub(others);
            of.bytes = of.bytes.zip(span.bytes).map(|(all, bytes)| all + bytes);
        }
        let mut times: Vec<OperationTime> = times.into_values().collect();
        times.sort_by_key(|of| Reverse(of.total));
        OperationTimes(times)
    }

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
            bytes: Some(8),
            iterations: vec![],
            begin,
            end,
        }
    }

    #[test]
    fn concurrent_kernels_of_a_device_keep_their_times() {
        // One within the other, on two threads; the step begins before and ends after them.
        let spans = vec![span("/cpu:0", 1, 9), span("/cpu:0", 2, 5)];
        let timeline = Timeline { spans, total: Duration::from_micros(10), simulated: false, left_out: 0 };
        let times = timeline.by_operation().0;
        assert_eq!((times.len(), times[0].count, times[0].bytes), (1, 2, Some(16)));
        assert_eq!(times[0].total, Duration::from_micros(11));
    }

    #[test]
    fn overlap_is_the_time_of_two_or_more() {
        let spans =
            vec![span("/gpu:0", 0, 10), span("/gpu:0 -> /gpu:1", 0, 30), span("/gpu:1", 4, 12), span("/gpu:2", 5, 6)];
        // A device does not overlap with itself.
        let spans = [spans, vec![span("/gpu:3", 20, 26), span("/gpu:3", 22, 24)]].concat();
        let timeline = Timeline { spans, total: Duration::from_micros(30), simulated: true, left_out: 0 };
        assert_eq!(timeline.overlap(), Duration::from_micros(6));
        let json = timeline.to_chrome_trace();
        assert!(json.contains(r#""name":"a \"b\"""#) && json.contains("simulated time"), "{json}");
    }
}
