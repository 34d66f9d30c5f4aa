//! Threads, open files and memory of pipelines. A program of its own, since it counts those of its
//! process, where the system tells them.

use anabranch::data::{Dataset, text};
use std::fs;
use std::path::Path;

/// Returns the number of entries in a folder of the system about this process.
fn count(folder: &str) -> Option<usize> {
    Some(fs::read_dir(folder).ok()?.count())
}

/// Returns the numbers of threads and of open files.
fn in_use() -> [Option<usize>; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(count)
}

/// Returns the largest memory that this process has had, in bytes.
fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// A dataset of lines of files, of which each reads others, with threads at each depth.
fn nested(file: &Path, depth: usize) -> Dataset<String> {
    let lines = text::lines([file]).prefetch(1, 2);
    match depth {
        0 => lines,
        _ => {
            let inner = nested(file, depth - 1);
            lines.interleave(2, 1, move |_| Ok(inner.prefetch(1, 1)))
        }
    }
}

/// One test, so that no other one runs meanwhile.
#[test]
fn pipelines_leave_no_thread_and_no_file_and_take_no_memory_for_each_element() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("resources-{}.txt", std::process::id()));
    fs::write(&path, "a\nb\nc\n").expect("the folder can be written");
    let before = in_use();
    for i in 0..100 {
        let data = nested(&path, 1 + i % 3);
        let mut pass = data.iter();
        for _ in 0..i % 7 {
            assert!(pass.next().expect("there are more lines").is_ok());
        }
        drop((pass, data));
        // The system may need a moment to forget a thread that has ended.
        let is_as_before = (0..100_000).any(|_| {
            std::thread::yield_now();
            in_use() == before
        });
        assert!(is_as_before, "after {i} datasets: {:?} threads and files, before {before:?}", in_use());
    }
    fs::remove_file(&path).expect("it is there");

    let n = if std::env::var_os("ANABRANCH_SLOW").is_some() { 10_000_000 } else { 1_000_000 };
    let pipeline = |n: i64| {
        let data =
            Dataset::range(0..n).shuffle(1000, 3).filter(|x| x % 2 == 0).map_parallel(2, |x| Ok(x + 1)).batch(1000);
        data.prefetch(1, 2).iter().map(|batch| batch.expect("no element fails").iter().sum::<i64>()).sum::<i64>()
    };
    // The first elements take what all need.
    pipeline(100_000);
    let before = peak();
    assert_eq!(pipeline(n), (0..n).step_by(2).map(|x| x + 1).sum::<i64>());
    if let (Some(before), Some(after)) = (before, peak()) {
        let grown = after - before;
        assert!(grown < 4 << 20, "{n} elements take {grown} bytes more than 100,000");
    }
}
